"""Flows run in this process on tiny models: a folder with models, data and rewards, and what a run leaves behind."""

import argparse
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from shardflow.compiler.compilation import check_flow, choose_flow, compile_flow, load_source
from shardflow.compiler.plan import Plan, encode
from shardflow.runtime.cli import parser
from shardflow.runtime.commits import CommitStore
from shardflow.runtime.run import run_plan
from shardflow.runtime.values import Any_, Record

from . import tiny

REWARDS = '''
"""Rewards of a random model: what matters is that they vary, and that they are pure."""

from shardflow.dsl.ragged import PerSequence, Ragged

def exact_match(text: str, answer: str) -> float:
    return float(sum(map(ord, text + answer)) % 2)

def overlong(length: int, most: int, buffer: int) -> float:
    return min(0.0, (most - buffer - length) / buffer)

def share(text: str) -> float:
    return sum(c.isalnum() for c in text) / (len(text) + 1)

def centred(x: Ragged) -> Ragged:
    return Ragged(x.values - x.values.mean(), x.lengths)

def so_far(x: PerSequence) -> PerSequence:
    return x.like(x.padded().cumsum(dim=1))
'''


@dataclass(frozen=True)
class Result:
    """What a run left in its output directory."""

    out: Path
    values: list[dict[str, Any_]] = field(default_factory=list)
    """What each step computed outside updates, by name."""

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return _lines(self.out / "metrics.jsonl")

    @property
    def samples(self) -> list[dict[str, Any]]:
        return _lines(self.out / "samples.jsonl")

    def column(self, name: str) -> list[Any]:
        return [record[name] for record in self.metrics if name in record]

    @property
    def state(self) -> dict[str, Tensor]:
        """Tensors of the last commit: weights and optimizer state by flat names."""
        commit = CommitStore(self.out).latest()
        assert commit is not None
        return commit.load_tensors()

    @property
    def meta(self) -> dict[str, Any]:
        commit = CommitStore(self.out).latest()
        assert commit is not None
        return commit.meta

    def weights(self, model: str = "policy") -> dict[str, Tensor]:
        prefix = f"model.{model}."
        return {k.removeprefix(prefix): v for k, v in self.state.items() if k.startswith(prefix)}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


class Interrupted(Exception):
    """A run that breaks off, as a crash would make it."""


class Workshop:
    """A folder in which flows run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = 0
        self.values: list[dict[str, Any_]] = []
        self.interrupt_at: int | None = None
        """The step in which the next run breaks off, after its record is written and before it is committed."""
        (folder / "rewards.py").write_text(REWARDS, encoding="utf-8")
        write_rows(folder / "d.jsonl", 24)
        write_rows(folder / "test.jsonl", 3, first=100)

    def compile(self, text: str, flow: str | None = None, **params: Any) -> Plan:
        """The plan of a flow's text, with some of its parameters set."""
        path = self.folder / "test.flow"
        path.write_text(text, encoding="utf-8")
        source = load_source(path)
        return compile_flow(check_flow(source, choose_flow(source, flow), params))

    def interrupted(self, flow: Plan, at: int, **options: Any) -> Result:
        """A run that breaks off in step `at`; `run(..., resume=True, out=result.out)` goes on."""
        self.interrupt_at = at
        args = self.options(**options)
        with pytest.raises(Interrupted):
            run_plan(encode(flow), args)
        self.interrupt_at = None
        return Result(args.out)

    def options(self, **options: Any) -> argparse.Namespace:
        """Options of flowrun, in float64 with quiet outputs unless said otherwise."""
        given = {"dtype": "float64", "no_tensorboard": True, "out": self.out(), **options}
        args = parser().parse_args(["test.flow"])
        for name, value in given.items():
            assert hasattr(args, name), f"flowrun has no option {name}"
            setattr(args, name, value)
        return args

    def out(self) -> Path:
        """A fresh output directory."""
        self._runs += 1
        return self.folder / "runs" / str(self._runs)

    def run(self, flow: str | Plan, steps: int | None = 3, **options: Any) -> Result:
        """Compile (if it is a text) and run."""
        plan = self.compile(flow) if isinstance(flow, str) else flow
        args = self.options(steps=steps, **options)
        self.values.clear()
        run_plan(encode(plan), args)
        return Result(args.out, list(self.values))


def make_models(folder: Path) -> None:
    """`p` and `t`: two policies with one tokenizer; `rm`: a model to score with."""
    for seed, name in enumerate(("p", "t", "rm")):
        tiny.save(folder / name, "qwen2", seed)
        # Every sixth byte ends a response, so that lengths differ.
        stops = {"eos_token_id": [257, *range(0, 256, 6)]}
        (folder / name / "generation_config.json").write_text(json.dumps(stops), encoding="utf-8")


def write_rows(path: Path, count: int, first: int = 0) -> None:
    """Sums of different lengths with answers, and a pair of a chosen and a rejected one."""
    rows = []
    for i in range(first, first + count):
        a, b = 7 * i % 23, i * i % 101
        rows.append(
            {
                "prompt": f"{a}+{b}=",
                "answer": str(a + b),
                "response": str(a + b),
                "chosen": str(a + b),
                "rejected": str(a + b + i % 9 + 1),
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def small(text: str) -> str:
    """A flow written for real models, in sizes for tiny ones; without its `place` lines."""
    text = re.sub(r"^place .*(\n[ \t]+.*)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"max_new_tokens=(512|256|1024)", "max_new_tokens=6", text)
    text = re.sub(r"max_len=512", "max_len=6", text)
    text = text.replace("rollout.length, 1024, 128", "rollout.length, 6, 2")
    text = re.sub(r"\b(64|128) prompts", "8 prompts", text)
    text = re.sub(r"minibatch=16 prompts", "minibatch=4 prompts", text)
    text = re.sub(r"\bn=(8|16)\b", "n=4", text)
    text = re.sub(r"group=(8|16)\b", "group=4", text)
    text = text.replace("warmup=10", "warmup=1").replace("pass_at_k(right, 16, 8)", "pass_at_k(right, 4, 2)")
    text = re.sub(r"every (20|100) steps", "every 2 steps", text)
    return re.sub(r"lr=[0-9.e-]+", "lr=1e-3", text)


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest norm-relative difference of two sets of tensors."""
    assert a.keys() == b.keys()
    a, b = ({k: t.detach() for k, t in tensors.items()} for tensors in (a, b))
    return max(float((a[k].double() - b[k].double()).norm() / (b[k].double().norm() + 1e-300)) for k in a)


def bit_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and a[k].equal(b[k]) for k in a)


def untimed(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of steps without what depends on the clock."""
    return [{k: v for k, v in m.items() if k not in ("seconds", "tokens_per_second")} for m in metrics]


def record_in(value: Any) -> Record:
    assert isinstance(value, Record)
    return value
