"""What a step leaves to read: its line of numbers, and a few rollouts."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...compiler.plan import Instruction, Plan
from ...compiler.plan import Value as Name
from ..values import Any_, Record, Value
from .interpreter import Step

SAMPLES_PER_STEP = 4
FIRST = ("reward", "kl")


def step_record(step: Step, values: Mapping[str, Any_], seconds: float) -> dict[str, Any]:
    """The numbers of one step, what everybody asks for first."""
    metrics = step.means()
    record: dict[str, Any] = {"step": step.number, "seconds": seconds}
    record |= {k: metrics[k] for k in FIRST if k in metrics}
    record |= {k: v for k, v in metrics.items() if k.startswith("loss.")}
    rollouts = rollouts_of(values)
    if rollouts:
        # A metric of that name is the user's.
        record |= {k: metrics.get(k, v) for k, v in _lengths(rollouts[0]).items()}
    sampled = step.generated_tokens or sum(int(r.fields["length"].tensor.sum()) for r in rollouts)
    record["tokens_per_second"] = (sampled or step.trained_tokens) / seconds
    return record | {k: v for k, v in metrics.items() if k not in record}


def rollouts_of(values: Mapping[str, Any_]) -> list[Record]:
    """The rollouts of a step; what a `collect` gave before what its rounds drew."""
    named = sorted(values.items(), key=lambda item: "/" in item[0])
    return [v for _, v in named if isinstance(v, Record) and v.kind == "rollout"]


def _lengths(rollout: Record) -> dict[str, float]:
    lengths = rollout.fields["length"].tensor.double()
    if not len(lengths):
        return {}
    cut = rollout.fields["truncated"].tensor.double()
    return {"length": float(lengths.mean()), "length_max": float(lengths.max()), "truncated": float(cut.mean())}


# ---------------------------------------------------------------- rollouts to read


def sample_rows(rollout: Record, values: Mapping[str, Any_], plan: Plan) -> list[dict[str, Any]]:
    """A few rollouts as a person reads them: prompt, text, the data columns in use, every named value."""
    count = min(SAMPLES_PER_STEP, rollout.frame.size)
    columns: dict[str, list[Any]] = {
        "prompt": rollout.hidden["prompt"].rows[:count],
        "text": rollout.fields["text"].rows[:count],
    }
    for name, value in _readable(values, plan):
        if name not in columns and rollout.frame.is_under(value.frame):
            columns[name] = value.on(rollout.frame).rows[:count]
    return [{name: column[row] for name, column in columns.items()} for row in range(count)]


def _readable(values: Mapping[str, Any_], plan: Plan) -> Iterator[tuple[str, Value]]:
    """Values per row by the names a reader knows: of data columns, of what is recorded, the flow's own."""
    found = {i.out: values[name] for i, name in _instructions(plan) if name in values}
    for i, _ in sorted(_instructions(plan), key=lambda x: x[0].op != "field"):
        name, value = _name(i, found), found.get(_operand(i) or i.out)
        if name and isinstance(value, Value) and value.frame is not None and _is_plain(value):
            yield name, value


def _is_plain(value: Value) -> bool:
    return isinstance(value.data, torch.Tensor) or all(isinstance(x, str) for x in value.data)


def _instructions(plan: Plan) -> Iterator[tuple[Instruction, str]]:
    """Instructions outside updates, each with the name that its value has after the step."""
    for block in (*(a.program for a in plan.ahead), plan.program):
        for i in block:
            yield i, i.out
            if i.op == "collect":
                yield from ((x, f"{i.out}/{x.out}") for x in i.body)


def _operand(i: Instruction) -> str | None:
    value = i.args.get("value")
    return value.ref if i.op == "record" and isinstance(value, Name) else None


def _name(i: Instruction, found: Mapping[str, Any_]) -> str | None:
    if i.op == "record":
        return str(i.attrs["metric"])
    if i.op == "collected":
        value = i.args["value"]
        return value.ref if isinstance(value, Name) else None
    if i.op == "field":
        record = i.args["record"]
        source = found.get(record.ref) if isinstance(record, Name) else None
        if isinstance(source, Record) and source.kind == "rows":
            return str(i.attrs["field"])
    return None if i.out.startswith("%") else i.out
