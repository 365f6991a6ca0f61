"""Generation against Hugging Face `generate`: ratios of median times, measured in turns in one process.

    OMP_NUM_THREADS=1 python benchmarks/decode.py

The model is a random Qwen2 (hidden 128, 4 layers, vocab 259, float32). Ours includes taking the weights, and the noise
keyed by seed, row and position; `generate` draws from torch's generator. Ratios below 1 mean that ours is faster.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers

from shardflow.runtime import noise
from shardflow.runtime.engines import Engine, Sampling, make_engine
from shardflow.runtime.engines.transformers_engine import TransformersEngine
from shardflow.runtime.models import loading, scoring

PROMPT = [11, 12, 13, 14]


def make_role(directory: Path) -> loading.Role:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=259,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=2,
        bos_token_id=None,
    )
    transformers.Qwen2ForCausalLM(config).save_pretrained(directory)
    return loading.load_role("causal_lm", str(directory), dtype=torch.float32)


def hugging_face(role: loading.Role, rows: int, tokens: int) -> Callable[[], object]:
    """All rows to the same length: the longest decides."""
    ids = torch.tensor([PROMPT] * rows)
    options = {
        "max_new_tokens": tokens,
        "min_new_tokens": tokens,
        "do_sample": True,
        "top_k": 0,
        "top_p": 1.0,
        "pad_token_id": 0,
    }
    return lambda: role.module.generate(ids, attention_mask=torch.ones_like(ids), **options)  # type: ignore[operator]


def engine_run(engine: Engine, role: loading.Role, samples: int, lengths: list[int]) -> Callable[[], object]:
    rows = torch.arange(len(lengths)).repeat_interleave(samples)
    keys = noise.row_keys(0, "flow", "rollout", 0, rows, torch.arange(samples).repeat(len(lengths)))
    sampling = Sampling(samples, lengths, [1.0] * len(lengths), min_new_tokens=max(lengths))

    def run() -> object:
        engine.load_weights(role, 0)
        return engine.generate([PROMPT] * len(lengths), sampling, keys)

    return run


def train_plain(role: loading.Role, seqs: scoring.Sequences) -> Callable[[], None]:
    """Forward and backward as a plain training loop writes it, padded ids made outside."""
    ids = torch.tensor([c + r for c, r in zip(seqs.context, seqs.response, strict=True)])
    new = len(seqs.response[0])

    def run() -> None:
        logits = role.module(ids[:, :-1], logits_to_keep=new, use_cache=False).logits
        F.cross_entropy(logits.flatten(0, 1), ids[:, -new:].flatten()).backward()  # type: ignore[no-untyped-call]

    return run


def train_ours(role: loading.Role, seqs: scoring.Sequences) -> Callable[[], None]:
    return lambda: (-scoring.forward(role, seqs, ("logprobs",))["logprobs"].mean()).backward()  # type: ignore[no-untyped-call]


def compare(title: str, contestants: dict[str, Callable[[], object]], rounds: int) -> None:
    """Run the contestants in turns and print each one's median time as a share of the first one's."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for round_number in range(rounds + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if round_number:
                times[name].append(time.perf_counter() - start)
    base = statistics.median(next(iter(times.values())))
    for name, measured in times.items():
        median = statistics.median(measured)
        print(f"{title:24} {name:22} {median * 1e3:8.1f} ms   ratio {median / base:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as directory:
        role = make_role(Path(directory))
    fast, general = make_engine(role), TransformersEngine()
    ragged = torch.randint(4, 65, (32,), generator=torch.Generator().manual_seed(3)).tolist()
    for title, samples, lengths in (("8 x 4 x 32 tokens", 4, [32] * 8), ("32 rows, 4-64 tokens", 1, ragged)):
        contestants = {
            "generate": hugging_face(role, samples * len(lengths), max(lengths)),
            type(fast).__name__: engine_run(fast, role, samples, lengths),
            "TransformersEngine": engine_run(general, role, samples, lengths),
        }
        compare(title, contestants, rounds)
    seqs = scoring.Sequences([PROMPT] * 32, [[7 + i % 100 for i in range(32)]] * 32)
    compare("forward + backward", {"plain": train_plain(role, seqs), "scoring": train_ours(role, seqs)}, rounds)


if __name__ == "__main__":
    main()
