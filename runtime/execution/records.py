"""What a step leaves to read: its line of numbers, and a few rollouts. Every rank reports what it alone knows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch

from ...compiler.plan import Instruction, Plan
from ...compiler.plan import Value as Name
from ..ranks.channel import Channel
from ..values import Any_, Record, Value
from .interpreter import Step
from .session import Session

SAMPLES_PER_STEP = 4
FIRST = ("reward", "kl")


class Lengths(msgspec.Struct, frozen=True):
    """Of some samples: how many there are, their tokens in all, the most of one, and how many were cut off."""

    samples: int = 0
    tokens: int = 0
    longest: int = 0
    truncated: int = 0

    def __add__(self, other: "Lengths") -> "Lengths":
        return Lengths(
            self.samples + other.samples,
            self.tokens + other.tokens,
            max(self.longest, other.longest),
            self.truncated + other.truncated,
        )


class Report(msgspec.Struct, frozen=True):
    """What one rank has to say of a step."""

    logged: dict[str, list[float]]
    counters: dict[str, float]
    generated: int
    trained: int
    rollouts: dict[str, Lengths]
    samples: list[dict[str, Any]]
    is_stopping: bool


def report_of(session: Session, step: Step, values: Mapping[str, Any_], is_stopping: bool) -> Report:
    """The report of this rank."""
    rollouts = rollouts_of(values)
    shown = _shown(rollouts) if any(session.speaks(m.name) for m in session.plan.meshes) else None
    return Report(
        step.logged,
        session.counters.drain(),
        step.generated_tokens,
        step.trained_tokens,
        {name: _lengths(r) for name, r in rollouts.items() if {"length", "truncated"} <= r.fields.keys()},
        sample_rows(shown, values, session.plan) if shown is not None else [],
        is_stopping,
    )


def _shown(rollouts: Mapping[str, Record]) -> Record | None:
    """The first rollout, as it lies where it is read, so that what was computed of it can be shown beside it."""
    first = next(iter(rollouts), "").partition("@")[0]
    copies = [r for name, r in rollouts.items() if name.partition("@")[0] == first and "text" in r.fields]
    return copies[-1] if copies else None


def reports_of_all(channel: Channel, own: Report, what: str) -> list[Report]:
    """The reports of all ranks, on every rank."""
    if channel.size == 1:
        return [own]
    encoded = channel.collect(msgspec.msgpack.encode(own), what)
    return [msgspec.msgpack.decode(e, type=Report) for e in encoded]


def step_record(number: int, reports: Sequence[Report], seconds: float, plan: Plan) -> dict[str, Any]:
    """The numbers of one step, what everybody asks for first. plan: that of all ranks."""
    metrics = step_means(reports)
    record: dict[str, Any] = {"step": number, "seconds": seconds}
    record |= {k: metrics[k] for k in FIRST if k in metrics}
    record |= {k: v for k, v in metrics.items() if k.startswith("loss.")}
    rollouts = _rollouts(reports, plan)
    if rollouts and rollouts[0].samples:
        # A metric of that name is the user's.
        record |= {k: metrics.get(k, v) for k, v in _length_metrics(rollouts[0]).items()}
    sampled = sum(r.generated for r in reports) or sum(r.tokens for r in rollouts)
    record["tokens_per_second"] = (sampled or sum(r.trained for r in reports)) / seconds
    return record | {k: v for k, v in metrics.items() if k not in record} | _counted(reports)


def step_means(reports: Sequence[Report]) -> dict[str, float]:
    """The mean of everything that was logged, whoever logged it."""
    logged: dict[str, list[float]] = {}
    for report in reports:
        for name, values in report.logged.items():
            logged.setdefault(name, []).extend(values)
    return {name: sum(values) / len(values) for name, values in logged.items()}


def _counted(reports: Sequence[Report]) -> dict[str, float]:
    names = dict.fromkeys(name for r in reports for name in r.counters)
    return {name: sum(r.counters.get(name, 0.0) for r in reports) for name in names}


def rollouts_of(values: Mapping[str, Any_]) -> dict[str, Record]:
    """The rollouts of a step by name; what a `collect` gave before what its rounds drew."""
    named = sorted(values.items(), key=lambda item: "/" in item[0])
    return {name: v for name, v in named if isinstance(v, Record) and v.kind == "rollout"}


def _lengths(rollout: Record) -> Lengths:
    lengths = rollout.fields["length"].tensor
    cut = rollout.fields["truncated"].tensor
    return Lengths(len(lengths), int(lengths.sum()), int(lengths.max()) if len(lengths) else 0, int(cut.sum()))


def _rollouts(reports: Sequence[Report], plan: Plan) -> list[Lengths]:
    """The rollouts of all ranks together, each once: before one was moved comes before after it.

    They come in the order of the plan, whoever has them: what a `collect` gave before what its rounds drew.
    """
    found = sorted(dict.fromkeys(name for r in reports for name in r.rollouts), key=lambda name: "@" in name)
    first: dict[str, str] = {}
    for name in found:
        first.setdefault(name.partition("@")[0], name)
    order = {i.out.partition("@")[0]: n for n, i in reversed([*enumerate(plan.walk())])}
    chosen = sorted(first.items(), key=lambda item: ("/" in item[0], order[item[0].rpartition("/")[2]]))
    return [sum((r.rollouts[n] for r in reports if n in r.rollouts), Lengths()) for _, n in chosen]


def _length_metrics(found: Lengths) -> dict[str, float]:
    mean, cut = found.tokens / found.samples, found.truncated / found.samples
    return {"length": mean, "length_max": float(found.longest), "truncated": cut}


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
        return value.ref.partition("@")[0] if isinstance(value, Name) else None
    if i.op == "field":
        record = i.args["record"]
        source = found.get(record.ref) if isinstance(record, Name) else None
        if isinstance(source, Record) and source.kind == "rows":
            return str(i.attrs["field"])
    return None if i.out.startswith("%") else i.out.partition("@")[0]
