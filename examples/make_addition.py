"""Makes what the addition examples start from; run by hand: `python examples/make_addition.py` (about a minute).

data/addition_*.jsonl   The 8,100 sums of two-digit numbers, `{"prompt": "37+85=", "answer": "122"}`, shuffled by a
                        fixed seed and cut in three parts that share no row: `test` (200 rows), `train` (3,200, the
                        prompts of reinforcement learning) and `sft` (4,700). In every second row of `sft` one digit of
                        the answer is wrong, as if a careless clerk had written it.
models/addition/        A Llama of 2 layers and 0.4 million weights, over a tokenizer of single characters. Its random
                        weights were trained by `flowrun examples/sft.flow` for 13 epochs. They have learned to add, and
                        to be careless: four samples of ten are right. That is what reinforcement learning mends.
                        Stored as float16, half the size; a run loads them as float32.

Run again, the data come out byte for byte. The weights depend on how kernels round; they come out about as good.
"""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent
CHARACTERS = "0123456789+="
END = "<end>"
EPOCHS = 13
SPOILED = 0.5


def main() -> None:
    write_data(HERE / "data")
    with tempfile.TemporaryDirectory() as folder:
        start, out = Path(folder) / "start", Path(folder) / "run"
        random_llama(start, character_tokenizer())
        flowrun("sft.flow", "--out", str(out), start=start, epochs=EPOCHS)
        store(out / "models/policy", HERE / "models/addition")


def write_data(folder: Path) -> None:
    rows = sums()
    write(folder / "addition_test.jsonl", rows[:200])
    write(folder / "addition_train.jsonl", rows[200:3400])
    write(folder / "addition_sft.jsonl", spoiled(rows[3400:]))


def sums() -> list[dict[str, str]]:
    """Every sum once, in an order that a fixed seed gives."""
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10, 100) for b in range(10, 100)]
    random.Random(0).shuffle(rows)
    return rows


def spoiled(rows: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """The rows, half of them with one digit of the answer replaced by another."""
    rng = random.Random(1)
    return [{**row, "answer": misread(row["answer"], rng)} if rng.random() < SPOILED else row for row in rows]


def misread(number: str, rng: random.Random) -> str:
    at = rng.randrange(len(number))
    others = [digit for digit in "0123456789" if digit != number[at]]
    return number[:at] + rng.choice(others) + number[at + 1 :]


def write(path: Path, rows: Iterable[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def random_llama(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """A Llama with random weights, and its tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
        initializer_range=0.05,  # with the usual 0.02 so small a model takes three times as long to learn to add
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def character_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {token: i for i, token in enumerate([*CHARACTERS, END])}
    tokens = Tokenizer(models.WordLevel(vocabulary, unk_token=END))
    tokens.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokens.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token=END)


def flowrun(flow: str, *options: str, **parameters: object) -> None:
    """Run an example flow as a user would."""
    command = [sys.executable, "-m", "shardflow.runtime.cli", str(HERE / flow), *options]
    for name, value in parameters.items():
        command += ["--set", f"{name}={value}"]
    subprocess.run(command, check=True)


def store(trained: Path, folder: Path) -> None:
    """Copy a model's directory with its weights as float16."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in trained.iterdir():
        if file.suffix == ".safetensors":
            weights = {name: tensor.half() for name, tensor in load_file(file).items()}
            save_file(weights, folder / file.name, metadata={"format": "pt"})
        else:
            (folder / file.name).write_bytes(file.read_bytes())


if __name__ == "__main__":
    main()
