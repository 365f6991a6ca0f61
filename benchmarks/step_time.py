"""Time of a GRPO step here and in TRL's GRPOTrainer: the same model, prompts, rewards and number of tokens.

    pip install -e ".[bench]"
    python benchmarks/step_time.py                      # both workloads, eager
    python benchmarks/step_time.py --compile            # compiled decoder layers in training
    python benchmarks/step_time.py --workload ragged --steps 30
    python benchmarks/step_time.py --ranks 2            # data parallel: the multi target against TRL under torchrun

Each side runs in a process of its own (so that peak memory is its own) and takes one step when it is told to; steps
alternate, so that the machine's mood is shared. Printed: seconds per step (median after warm-up), the ratio
pair by pair, the same of processor time (steadier on a busy machine), and the peak resident memory of each process.

Both workloads: 8 prompts × 4 samples, Qwen2 with 0.83 M parameters, float32, one optimizer step per batch, no
reference model. `fixed`: every completion has 32 tokens. `ragged`: 4 to 64 tokens, by prompt.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROMPTS, SAMPLES = 8, 4
FIXED_TOKENS = 32
RAGGED_TOKENS = (4, 64)
WARMUP = 3

FLOW = """
import bench_rewards
from std.advantages import z
from std.losses import clipped_policy_loss

flow bench(group=4):
    model policy = causal_lm("model")
    prompts = read("train.jsonl", batch=8 prompts)
    rollout = policy.generate(prompts, n=group, max_new_tokens=prompts.budget, min_new_tokens=64)
    reward = bench_rewards.prefix(rollout.text, prompts.answer)
    adv = z(reward, eps=0.0001)
    update policy(adamw(lr=0.001)):
        pg = clipped_policy_loss(policy.logprobs(rollout), rollout.logprobs, adv, 0.2, 0.2)
        minimize mean(mean(pg, over=token))
"""

REWARDS = '''
def prefix(text: str, answer: str) -> float:
    """1 for a right start, and a small term so that a random model has some variance."""
    digits = sum(c.isdigit() for c in text) / max(1, len(text))
    return (1.0 if text.startswith(answer) else 0.0) + 0.5 * digits
'''


# ---------------------------------------------------------------- what both sides share


def budget_of(prompt: str, workload: str) -> int:
    """Tokens of a prompt's completions."""
    if workload == "fixed":
        return FIXED_TOKENS
    low, high = RAGGED_TOKENS
    return low + (sum(map(ord, prompt)) * 37) % (high - low + 1)


def make_inputs(folder: Path, workload: str) -> None:
    """The model, the data and the flow, for both sides."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    vocab = {t: i for i, t in enumerate(["<pad>", "<bos>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")
    fast.padding_side = "left"
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(vocab), hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder / "model")
    fast.save_pretrained(folder / "model")
    numbers = torch.randint(0, 10, (1024, 2), generator=torch.Generator().manual_seed(0)).tolist()
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in numbers]
    lines = [json.dumps({**r, "budget": budget_of(r["prompt"], workload)}) for r in rows]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "bench.flow").write_text(FLOW)
    (folder / "bench_rewards.py").write_text(REWARDS)


class Gate:
    """One step per line on standard input; its seconds on standard output. Of several ranks the first one has it."""

    def __init__(self) -> None:
        self.is_first = os.environ.get("RANK", "0") == "0"
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever else prints goes to standard error
        self.started, self.started_cpu = 0.0, 0.0

    def wait(self) -> None:
        if self.is_first and not sys.stdin.readline():
            sys.exit(0)
        self.started, self.started_cpu = time.perf_counter(), time.process_time()

    def report(self) -> None:
        row = {
            "seconds": time.perf_counter() - self.started,
            "cpu": time.process_time() - self.started_cpu,
            "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }
        if self.is_first:
            print(json.dumps(row), file=self.out, flush=True)


# ---------------------------------------------------------------- the two sides


def run_shardflow(folder: Path, steps: int, compiled: bool) -> None:
    """One side: this project."""
    gate = Gate()
    from shardflow.runtime import __main__ as rank
    from shardflow.runtime import cli, run

    telemetry = run.Telemetry.step

    def step(self: Any, record: Any) -> None:
        telemetry(self, record)
        gate.report()
        gate.wait()

    run.Telemetry.step = step  # type: ignore[method-assign]
    prepare = run._execute

    def execute(*args: Any) -> None:
        gate.wait()
        prepare(*args)

    run._execute = execute
    options = [
        "--steps",
        str(steps),
        "--out",
        str(folder / "out"),
        "--save-every",
        "1000000",
        "--no-tensorboard",
        "--threads",
        "1",
    ]
    start = rank.main if "RANK" in os.environ else cli.main
    start([str(folder / "bench.flow"), *options, *(["--compile"] if compiled else [])])


def run_trl(folder: Path, steps: int, workload: str) -> None:
    """The other side: TRL."""
    gate = Gate()
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    sys.path.insert(0, str(folder))
    from bench_rewards import prefix  # type: ignore[import-not-found]

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model", padding_side="left")

    class Budget(LogitsProcessor):  # type: ignore[misc]
        """Ends each completion at its prompt's budget, and not before."""

        def __init__(self, prompts: Any) -> None:
            texts = tokenizer.batch_decode(prompts, skip_special_tokens=True)
            self.ends = prompts.shape[1] + torch.tensor([budget_of(t, workload) for t in texts])

        def __call__(self, ids: Any, scores: Any) -> Any:
            last = ids.shape[1] + 1 >= self.ends
            scores = scores.clone()
            scores[~last, tokenizer.eos_token_id] = -torch.inf
            if workload == "ragged":
                scores[last] = -torch.inf
                scores[last, tokenizer.eos_token_id] = 0.0
            return scores

    generate = model.generate

    def with_budget(*args: Any, **kwargs: Any) -> Any:
        return generate(*args, logits_processor=LogitsProcessorList([Budget(kwargs["input_ids"])]), **kwargs)

    model.generate = with_budget

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            gate.wait()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            gate.report()

    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    config = GRPOConfig(
        output_dir=str(folder / "trl"), use_cpu=True, bf16=False, report_to="none", save_strategy="no",
        per_device_train_batch_size=PROMPTS * SAMPLES // ranks, gradient_accumulation_steps=1, steps_per_generation=1,
        num_generations=SAMPLES, num_iterations=1, max_completion_length=64 if workload == "ragged" else FIXED_TOKENS,
        max_steps=steps, logging_steps=1, learning_rate=1e-3, lr_scheduler_type="constant", loss_type="grpo",
        beta=0.0, temperature=1.0, top_k=0, top_p=1.0, seed=0, use_vllm=False, disable_tqdm=True,
        gradient_checkpointing=False, dataloader_num_workers=0,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completions, answer, **_: [prefix(c, a) for c, a in zip(completions, answer, strict=True)],
        args=config,
        train_dataset=Dataset.from_list([{k: r[k] for k in ("prompt", "answer")} for r in rows]),
        callbacks=[Steps()],
    )
    trainer.train()


# ---------------------------------------------------------------- taking turns


class Side:
    """A process that takes one step when it is told to."""

    def __init__(self, name: str, folder: Path, args: argparse.Namespace, workload: str) -> None:
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(args.ranks)] if args.ranks > 1 else []
        command = [
            sys.executable,
            *torchrun,
            __file__,
            "--side",
            name,
            "--folder",
            str(folder),
            "--workload",
            workload,
            "--steps",
            str(args.steps + 1),
        ]
        command += ["--compile"] if args.compile else []
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self.name = name
        log = (folder / f"{name}.log").open("w")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env
        )
        self.log = folder / f"{name}.log"

    def step(self) -> dict[str, float]:
        assert self.process.stdin and self.process.stdout
        print("go", file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended:\n{self.log.read_text()[-2000:]}")
        return json.loads(line)  # type: ignore[no-any-return]


def measure(workload: str, args: argparse.Namespace) -> dict[str, Any]:
    """Alternate the two sides on one workload."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        make_inputs(folder, workload)
        sides = [Side(name, folder, args, workload) for name in ("shardflow", "trl")]
        rows: list[list[dict[str, float]]] = [[s.step() for s in sides] for _ in range(args.steps)]
        for side in sides:
            side.process.terminate()  # torchrun ends its ranks then
            side.process.wait()
    timed = rows[WARMUP:]
    ours, theirs = ([r[i]["seconds"] for r in timed] for i in (0, 1))
    cpu = statistics.median(r[0]["cpu"] / r[1]["cpu"] for r in timed)
    return {
        "workload": workload,
        "compiled": args.compile,
        "ranks": args.ranks,
        "steps": len(timed),
        "shardflow_s": round(statistics.median(ours), 4),
        "trl_s": round(statistics.median(theirs), 4),
        "ratio": round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3),
        "cpu_ratio": round(cpu, 3),
        "shardflow_peak_mb": round(max(r[0]["peak"] for r in rows) / 1024),
        "trl_peak_mb": round(max(r[1]["peak"] for r in rows) / 1024),
    }


def workloads(args: argparse.Namespace) -> Iterator[str]:
    yield from [args.workload] if args.workload else ["fixed", "ragged"]


def main() -> None:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--workload", choices=("fixed", "ragged"))
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--compile", action="store_true")
    p.add_argument("--ranks", type=int, default=1, help="processes of each side, data parallel over gloo")
    p.add_argument("--side", choices=("shardflow", "trl"), help=argparse.SUPPRESS)
    p.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.side == "shardflow":
        run_shardflow(args.folder, args.steps, args.compile)
    elif args.side == "trl":
        run_trl(args.folder, args.steps, args.workload)
    else:
        for workload in workloads(args):
            print(json.dumps(measure(workload, args)), flush=True)


if __name__ == "__main__":
    main()
