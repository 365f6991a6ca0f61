"""One period of a decision as tasks: its phases and transfers, what each waits for, and how many periods back.

Nothing is modelled here: tasks, slots, order and precedences are the decision's own. Row-wise operators have no time of
their own; what waits for an operator waits for the phases that it follows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..search.decision import Decision, Phase, Transfer

HOST = "host"
CLOSE = 1e-9
"""Seconds by which a start may lie before the end it waits for, in a decision's rounded times."""


@dataclass(frozen=True)
class Task:
    """A phase or a transfer of every period.

    name: unique. kind: of the phase or the transfer. slots: those it occupies; rows occupy none, because they are sent
    and received beside what is computed. places: the slots it concerns. start, end, seconds: as decided. ahead:
    how many steps ahead of the period's own step its rows are read. fills: whether it also runs in the fill, where the
    rows of the first steps are made.
    """

    name: str
    kind: str
    slots: tuple[str, ...]
    places: tuple[str, ...]
    start: float
    end: float
    seconds: float
    ahead: int
    fills: bool
    of: Phase | Transfer

    @property
    def is_phase(self) -> bool:
        return isinstance(self.of, Phase)


@dataclass(frozen=True)
class Wait:
    """`task` of a period waits for `on` of the period `back` periods before."""

    task: str
    on: str
    back: int


@dataclass(frozen=True)
class Period:
    """What happens in every period, in the order in which it is decided to start, and who waits for whom."""

    tasks: tuple[Task, ...]
    waits: tuple[Wait, ...]
    length: float
    staleness: int

    def task(self, name: str) -> Task:
        return next(t for t in self.tasks if t.name == name)


def period_of(decision: Decision, *, as_decided: bool = False) -> Period:
    """The period of a decision. Raises ValueError for one that names phases or slots it doesn't have.

    as_decided: without ways of rows that the decision's own times don't count.
    """
    phases = {x.name: _phase(x) for x in decision.phases}
    transfers = [
        _transfer(t, n, phases)
        for n, t in enumerate(decision.transfers)
        if not as_decided or _is_counted(t, phases.get(t.before))
    ]
    tasks = tuple(sorted((*phases.values(), *transfers), key=lambda t: (t.start, t.end, t.name)))
    _check(tasks, decision)
    waits = [*_of_phases(decision, phases), *_of_transfers(transfers, phases)]
    known = {wait: None for wait in (*waits, *_beside(transfers, waits)) if wait.task != wait.on or wait.back}
    ahead = max((t.ahead for t in phases.values()), default=0)
    return Period(tasks, tuple(known), decision.period, ahead)


def _is_counted(t: Transfer, reader: Task | None) -> bool:
    return t.kind != "rows" or reader is None or reader.start >= t.end - CLOSE


def _phase(x: Phase) -> Task:
    return Task(x.name, x.kind, (x.slot,), (x.slot,), x.start, x.end, x.seconds, x.ahead, x.ahead > 0, x)


def _transfer(t: Transfer, number: int, phases: dict[str, Task]) -> Task:
    """What moves rows or follows a phase belongs to its step, what is brought for a phase to the step of that one."""
    sources = [phases[n] for n in t.after if n in phases]
    reader = phases.get(t.before)
    ahead = max((x.ahead for x in sources), default=0)
    if reader is not None and t.kind != "rows":
        ahead = reader.ahead + (0 if reader.start >= t.end - CLOSE else 1)
    places = tuple(dict.fromkeys(s for s in (t.source, t.target) if s != HOST))
    kept = () if t.kind == "rows" else places if t.seconds > 0 else places[-1:]  # what takes no time keeps no other
    name = f"{t.kind} {t.model} {t.source} → {t.target} #{number}"
    fills = t.kind == "rows" and ahead > 0
    return Task(name, t.kind, kept, places, t.start, t.end, t.seconds, ahead, fills, t)


def _check(tasks: Iterable[Task], decision: Decision) -> None:
    slots = {s.name for s in decision.slots}
    for task in tasks:
        for slot in task.places:
            if slot not in slots:
                raise ValueError(f"`{task.name}` is on slot `{slot}`; the decision has {', '.join(sorted(slots))}")


# ---------------------------------------------------------------- who waits for whom


def _of_phases(decision: Decision, phases: dict[str, Task]) -> Iterator[Wait]:
    operators = {o.name: o.after for o in decision.operators}
    trained = {x.model: x.name for x in decision.phases if x.kind == "train"}
    for x in decision.phases:
        for name in _phases_behind(x.after, operators, phases):
            yield Wait(x.name, name, max(0, phases[name].ahead - x.ahead))
        for other in decision.phases:
            if other.ahead > x.ahead:  # a step starts with what it takes out of the queue
                yield Wait(x.name, other.name, other.ahead - x.ahead)
        if x.model in trained:  # version t is what the update of step t − 1 left
            yield Wait(x.name, trained[x.model], 1)


def _phases_behind(names: Iterable[str], operators: dict[str, tuple[str, ...]], phases: dict[str, Task]) -> list[str]:
    """The phases among some names, and behind the operators among them."""
    found: list[str] = []
    for name in names:
        if name in phases:
            found.append(name)
        elif name in operators:
            found += _phases_behind(operators[name], operators, phases)
        else:
            raise ValueError(f"something waits for `{name}`, which the decision doesn't have")
    return list(dict.fromkeys(found))


def _of_transfers(transfers: Iterable[Task], phases: dict[str, Task]) -> Iterator[Wait]:
    for task in transfers:
        assert isinstance(task.of, Transfer)
        sources = [phases[n] for n in task.of.after if n in phases]
        reader = phases.get(task.of.before)
        for source in sources:
            yield Wait(task.name, source.name, _back(source, task))
        if reader is not None:
            yield Wait(reader.name, task.name, _until(task, reader, sources))


def _back(source: Task, task: Task) -> int:
    """0 where a transfer comes after its source in the period, else 1: it moves what the period before left."""
    return 0 if task.start >= source.end - CLOSE else 1


def _until(task: Task, reader: Task, sources: list[Task]) -> int:
    """How many periods later a transfer's reader is.

    Rows are read by the step they were made for; of all else, the order of the period says it.
    """
    if task.kind == "rows" and sources:
        return max(max(0, s.ahead - reader.ahead - _back(s, task)) for s in sources)
    return 0 if reader.start >= task.end - CLOSE else 1


def _beside(transfers: Iterable[Task], waits: Iterable[Wait]) -> Iterator[Wait]:
    """What is brought for a phase comes when the phase could begin; what follows a phase follows what it puts away."""
    transfers, waits = list(transfers), list(waits)
    later = {(w.on, w.task): w.back for w in waits}
    moving = {t.name for t in transfers}
    for task in transfers:
        assert isinstance(task.of, Transfer)
        reader, sources = task.of.before, task.of.after
        for w in waits:
            if reader and w.task == reader and w.on not in moving and task.kind != "rows":
                back = w.back - later.get((task.name, reader), 0)
                if back >= 0:
                    yield Wait(task.name, w.on, back)
            if not reader and w.on in sources and w.task != task.name:
                yield Wait(w.task, task.name, w.back)
