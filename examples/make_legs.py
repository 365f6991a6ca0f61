"""Makes what the reasoning-gym example starts from; run by hand: `python examples/make_legs.py` (about a minute).

Needs reasoning-gym (`pip install "shardflow[gym]"`).

data/legs_*.jsonl   Rows of its task `leg_counting` (one or two kinds of animal, one to three of each), as the package
                    gives them for seed 0, with no question twice, shuffled: 200 are `test`, 1,280 `train`. The other
                    4,000 are `sft`: nothing but question and answer, and in every second row one digit of the
                    answer is wrong.
models/legs/        A Llama of 2 layers and 0.4 million weights. Its tokenizer was trained on the questions of `sft` and
                    joins words that always stand together, so that a question is five to eight tokens. The random
                    weights were trained by `flowrun examples/sft.flow` on `sft`. Stored as float16, half the size.

Run again, the data come out byte for byte. The weights depend on how kernels round; they come out about as good.
"""

import random
import tempfile
from pathlib import Path
from typing import Any

from make_addition import END, HERE, flowrun, random_llama, spoiled, store, write
from reasoning_gym import create_dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SIZES = {"min_animals": 1, "max_animals": 2, "min_instances": 1, "max_instances": 3}
EPOCHS = 16

Row = dict[str, Any]


def main() -> None:
    sft = write_data(HERE / "data")
    with tempfile.TemporaryDirectory() as folder:
        start, out = Path(folder) / "start", Path(folder) / "run"
        random_llama(start, phrase_tokenizer([row["prompt"] for row in sft]))
        data = HERE / "data/legs_sft.jsonl"
        flowrun("sft.flow", "--out", str(out), start=start, data=data, epochs=EPOCHS)
        store(out / "models/policy", HERE / "models/legs")


def write_data(folder: Path) -> list[Row]:
    """Write the three files; returns the rows of `sft`."""
    rows = different(5480)
    sft = spoiled({"prompt": row["question"], "answer": row["answer"]} for row in rows[1480:])
    write(folder / "legs_test.jsonl", rows[:200])
    write(folder / "legs_train.jsonl", rows[200:1480])
    write(folder / "legs_sft.jsonl", sft)
    return sft


def different(count: int) -> list[Row]:
    """So many rows with no question twice, shuffled: the few questions of a single animal come first without it."""
    found: dict[str, Row] = {}
    for row in create_dataset("leg_counting", size=10 * count, seed=0, **SIZES):
        found.setdefault(row["question"], row)
        if len(found) == count:
            break
    rows = list(found.values())
    random.Random(0).shuffle(rows)
    return rows


def phrase_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-pair encoding that may join across spaces, though never across a digit."""
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)
    tokens.decoder = decoders.Fuse()
    alphabet = sorted({letter for text in texts for letter in text} | set("0123456789"))
    trainer = trainers.BpeTrainer(
        vocab_size=600, min_frequency=50, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokens.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token=END)


if __name__ == "__main__":
    main()
