"""What a step leaves to read: its line of numbers, and a few rollouts. Every rank reports what it alone knows."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch

from ...compiler.plan import Instruction, Plan, original
from ...compiler.plan import Value as Name
from ..ranks.channel import Channel
from ..values import Any_, Frame, Record, Value
from .interpreter import Step, frames_of
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


Number = tuple[int, int]
"""A row's place among those of all ranks: the root's row that it is under, and which one it is there."""


class Sample(msgspec.Struct, frozen=True):
    """What a rank knows of a row of a rollout."""

    number: Number
    columns: dict[str, Any]


class Report(msgspec.Struct, frozen=True):
    """What one rank has to say of a step."""

    logged: dict[str, list[float]]
    counters: dict[str, float]
    generated: int
    trained: int
    rollouts: dict[str, Lengths]
    samples: list[Sample]
    is_stopping: bool


def report_of(session: Session, step: Step, values: Mapping[str, Any_], is_stopping: bool) -> Report:
    """The report of this rank."""
    rollouts = rollouts_of(values)
    return Report(
        step.logged,
        session.counters.drain(),
        step.generated_tokens,
        step.trained_tokens,
        {name: _lengths(r) for name, r in rollouts.items() if {"length", "truncated"} <= r.fields.keys()},
        own_samples(session, values),
        is_stopping,
    )


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
        first.setdefault(original(name), name)
    order = {original(i.out): n for n, i in reversed([*enumerate(plan.walk())])}
    chosen = sorted(first.items(), key=lambda item: ("/" in item[0], order[item[0].rpartition("/")[2]]))
    return [sum((r.rollouts[n] for r in reports if n in r.rollouts), Lengths()) for _, n in chosen]


def _length_metrics(found: Lengths) -> dict[str, float]:
    mean, cut = found.tokens / found.samples, found.truncated / found.samples
    return {"length": mean, "length_max": float(found.longest), "truncated": cut}


# ---------------------------------------------------------------- rollouts to read


def own_samples(session: Session, values: Mapping[str, Any_]) -> list[Sample]:
    """Of the first rows of the step's first rollout those that this rank has, with all that it knows of them.

    They may lie here more than once, as they were made and as they were dealt anew, and each time with other values.
    """
    axis, speaks = _shown_axis(session.whole), any(session.speaks(m.name) for m in session.plan.meshes)
    frames = {id(f): f for v in values.values() for f in frames_of(v) if f.name == axis}
    known: dict[Number, dict[str, Any]] = {}
    for frame in frames.values():
        if frame.chain()[-1].deal is None and not speaks:
            continue  # all ranks of the mesh have all rows: one tells of them
        numbers = _first_numbers(frame)
        if not numbers:
            continue
        columns = {name: value.rows for name, value in _columns(frame, values, session.plan).items()}
        for row, number in enumerate(numbers):
            _add(known, number, {name: column[row] for name, column in columns.items()})
    return [Sample(number, found) for number, found in known.items()]


def sample_rows(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """A few rollouts as a person reads them: prompt, text, the data columns in use, every named value.

    They are the first ones of all ranks, and hold what any of them knows.
    """
    known: dict[Number, dict[str, Any]] = {}
    for sample in (s for r in reports for s in r.samples):
        _add(known, sample.number, sample.columns)
    rows = [known[number] for number in sorted(known)[:SAMPLES_PER_STEP]]
    return [{name: row[name] for name in ("prompt", "text") if name in row} | row for row in rows]


def _add(known: dict[Number, dict[str, Any]], number: Number, columns: Mapping[str, Any]) -> None:
    """Note more columns of a row; those that were known before stay."""
    row = known.setdefault(number, {})
    row |= {name: value for name, value in columns.items() if name not in row}


def _shown_axis(plan: Plan) -> str | None:
    """The axis of the first rollout; what a `collect` gave comes before what its rounds drew."""
    found = sorted(((name, i) for i, name in _instructions(plan)), key=lambda item: "/" in item[0])
    types = [i.type for _, i in found if i.type.startswith(_ROLLOUT)]
    return types[0].removeprefix(_ROLLOUT).removesuffix("]") if types else None


_ROLLOUT = "rollout["


def _first_numbers(frame: Frame) -> list[Number]:
    """Which rows of all those are that come first here; only such as can be among the first of all ranks."""
    root = frame.chain()[-1]
    count = SAMPLES_PER_STEP if frame.numbers is None else int((frame.numbers < SAMPLES_PER_STEP).sum())
    above = frame.path(root)[:count]
    seen: Counter[int] = Counter()
    numbers = []
    for row in (above if root.deal is None else root.deal.mine()[above]).tolist():
        numbers.append((row, seen[row]))
        seen[row] += 1
    return numbers


def _columns(frame: Frame, values: Mapping[str, Any_], plan: Plan) -> dict[str, Value]:
    """What can be said of a rollout's rows at one site."""
    columns: dict[str, Value] = {}
    for rollout in (r for r in rollouts_of(values).values() if r.frame is frame):
        for name, part in (("prompt", rollout.hidden), ("text", rollout.fields)):
            if name in part:
                columns.setdefault(name, part[name].on(frame))
    for name, value in _readable(values, plan):
        if name not in columns and frame.is_under(value.frame):
            columns[name] = value.on(frame)
    return columns


def _readable(values: Mapping[str, Any_], plan: Plan) -> Iterator[tuple[str, Value]]:
    """Values per row by the names a reader knows: of data columns, of what is recorded, the flow's own."""
    found = dict(values) | {i.out: values[name] for i, name in _instructions(plan) if name in values}
    called = {original(i.out): _name(i, found) for i, _ in _instructions(plan) if i.op == "collected"}
    for i, _ in sorted(_instructions(plan), key=lambda x: x[0].op != "field"):
        name, value = _name(i, found), found.get(_operand(i) or i.out)
        if name and i.op == "own":  # of what a `collect` gave, which has its name from there
            name = called.get(name, name)
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
        return original(value.ref) if isinstance(value, Name) else None
    if i.op == "field":
        record = i.args["record"]
        source = found.get(record.ref) if isinstance(record, Name) else None
        if isinstance(source, Record) and source.kind == "rows":
            return str(i.attrs["field"])
    return None if i.out.startswith("%") else original(i.out)
