"""Runs of one flow in one process and on many ranks, and what must be the same of them."""

import argparse
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from shardflow.compiler.compilation import check_flow, choose_flow, compile_flow, load_source
from shardflow.compiler.passes.check.place import Target
from shardflow.compiler.plan import Plan, encode
from shardflow.runtime.execution.interpreter import Step
from shardflow.runtime.execution.loop import Run
from shardflow.runtime.execution.phases import draw_numbers
from shardflow.runtime.ranks.world import ALONE, World
from shardflow.runtime.run import run_plan
from shardflow.runtime.values import Any_, Record

from ..workshop import Interrupted, Result, Workshop, difference, untimed

Tokens = dict[tuple[int, str, int], list[int]]
"""What was sampled: by step, name of the rollout, and number of the row."""

CLOSE = 1e-9
"""How far float64 runs of different layouts may be apart, norm-relative."""


@dataclass(frozen=True)
class Outcome:
    """What a run left: its output directory, and the tokens it sampled."""

    result: Result
    tokens: Tokens


def compiled(folder: Path, text: str, flow: str, ranks: int | None, **params: Any) -> Plan:
    """The plan of a flow's text: for so many ranks, or for one process."""
    path = folder / "test.flow"
    path.write_text(text, encoding="utf-8")
    source = load_source(path)
    target = Target("multi", ranks) if ranks else Target()
    return compile_flow(check_flow(source, choose_flow(source, flow), params, target))


def ran(world: World, plan: bytes, args: argparse.Namespace, breaks_at: int | None = None) -> Tokens:
    """Run a plan as one rank, and return what this rank sampled.

    breaks_at: the step in which the run breaks off, recorded but not committed, as a crash would make it.
    """
    tokens: Tokens = {}
    report = Run._report

    def spy(run: Run, step: Step, values: dict[str, Any_], seconds: float) -> bool:
        for name, value in values.items():
            if isinstance(value, Record) and value.kind == "rollout":
                tokens.update(_tokens(step.number, name, value))
        is_stopping = report(run, step, values, seconds)
        if step.number == breaks_at:
            raise Interrupted
        return is_stopping

    Run._report = spy  # type: ignore[method-assign, assignment]
    try:
        with suppress(Interrupted):
            run_plan(plan, args, world)
    finally:
        Run._report = report  # type: ignore[method-assign]
    return tokens


def _tokens(step: int, name: str, rollout: Record) -> Tokens:
    numbers = draw_numbers(rollout.frame).tolist()
    rows = zip(numbers, rollout.hidden["response"].rows, strict=True)
    return {(step, name.partition("@")[0].rpartition("/")[2], number): row for number, row in rows}


def alone(workshop: Workshop, plan: Plan, breaks_at: int | None = None, **options: Any) -> Outcome:
    """The run in this process."""
    args = workshop.options(**options)
    return Outcome(Result(args.out), ran(ALONE, encode(plan), args, breaks_at))


def together(pool: Any, workshop: Workshop, plan: Plan, breaks_at: int | None = None, **options: Any) -> Outcome:
    """The run on the pool's ranks."""
    args = workshop.options(**options)
    tokens: Tokens = {}
    for part in pool.run(ran, encode(plan), args, breaks_at, ranks=plan.ranks):
        for key, row in part.items():
            assert tokens.setdefault(key, row) == row, key
    return Outcome(Result(args.out), tokens)


def assert_same(a: Outcome, b: Outcome, tolerance: float = CLOSE) -> None:
    """The same tokens, and the same numbers to the tolerance."""
    assert a.tokens == b.tokens
    assert_metrics(a.result.metrics, b.result.metrics, tolerance)
    assert_samples(a.result.samples, b.result.samples, tolerance)
    assert difference(_weights(a.result.state), _weights(b.result.state)) <= tolerance
    assert a.result.meta["optimizer_steps"] == b.result.meta["optimizer_steps"]


def _weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of models and of optimizers."""
    return {k: v for k, v in state.items() if not k.startswith("queue.")}


def assert_metrics(a: list[dict[str, Any]], b: list[dict[str, Any]], tolerance: float) -> None:
    assert len(a) == len(b)
    for mine, theirs in zip(untimed(a), untimed(b), strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            assert abs(value - theirs[name]) <= tolerance * max(1.0, abs(value)), (
                name,
                mine["step"],
                value,
                theirs[name],
            )


def assert_samples(a: list[dict[str, Any]], b: list[dict[str, Any]], tolerance: float) -> None:
    """The same rows. On many ranks they may lack what lies on no rank beside them, as in a `collect`."""
    assert len(a) == len(b)
    for mine, theirs in zip(a, b, strict=True):
        assert theirs.keys() <= mine.keys(), (mine, theirs)
        for name, value in ((name, mine[name]) for name in theirs):
            if isinstance(value, float):
                assert abs(value - theirs[name]) <= tolerance * max(1.0, abs(value)), (name, value, theirs[name])
            else:
                assert value == theirs[name], (name, value, theirs[name])
