"""A simulation: a decision, how long its phases take, and what is asked. It changes nothing and keeps nothing."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..search.decision import Decision, Slot
from .durations import Durations
from .events import Ran
from .failures import Timeline, timeline
from .result import Options, Peak, Result, Step, Usage
from .tasks import period_of


@dataclass(frozen=True)
class Simulation:
    """A run to simulate. durations: of its phases in each step; as decided, if none are given."""

    decision: Decision
    options: Options = field(default_factory=Options)
    durations: Durations = field(default_factory=Durations)

    def run(self) -> Result:
        """Simulate it. Raises ValueError for a decision whose phases can't run."""
        period = period_of(self.decision, as_decided=not self.options.drawn)
        found = timeline(period, self.durations.seconds, self.options)
        ran = tuple(r for s in found.segments for r in s.ran)
        useful = sum(s.end - s.start for s in found.segments)
        return Result(
            self.options,
            period.staleness,
            tuple(_steps(found)),
            tuple(self._usage(slot, ran, found.end, useful) for slot in self.decision.slots),
            tuple(_peak(self.decision, slot, ran) for slot in self.decision.slots),
            found.end,
            useful,
            found.events,
            most_queued(ran),
            tuple(found.incidents),
            ran,
            tuple(found.lost),
        )

    def _usage(self, slot: Slot, ran: Iterable[Ran], total: float, useful: float) -> Usage:
        busy: dict[str, float] = defaultdict(float)
        tail = 0.0
        for r in ran:
            if slot.name in r.task.slots:
                busy[r.task.kind] += r.end - r.start
                tail += self.durations.tail(r.task, r.period)
        return Usage(slot.name, slot.devices, dict(busy), tail, total, max(0.0, total - useful))


def _steps(found: Timeline) -> Iterable[Step]:
    """Steps as they end: when all tasks of their period, and of those before, have."""
    batches: dict[int, list[Ran]] = defaultdict(list)
    for r in (r for s in found.segments for r in s.ran):
        batches[r.step].append(r)
    for segment in found.segments:
        before = segment.start
        ends: dict[int, float] = {}
        for r in segment.ran:
            ends[r.period] = max(r.end, ends.get(r.period, before))
        for number in sorted(n for n in ends if n >= segment.first):
            end = max(before, ends[number])
            yield Step(number, end - before, end, _latency(batches[number]))
            before = end


def _latency(batch: Sequence[Ran]) -> float:
    return max(r.end for r in batch) - min(r.start for r in batch) if batch else 0.0


def _peak(decision: Decision, slot: Slot, ran: Iterable[Ran]) -> Peak:
    """What a device holds at most: what stays, and what the largest phase that ran adds."""
    resident = sum(decision.resident(slot.name).values())
    extra = {x.name: sum(x.memory.transient.values()) for x in decision.on(slot.name)}
    seen = {r.task.name for r in ran if r.task.name in extra}
    during = max(sorted(seen), key=extra.__getitem__, default="")
    return Peak(slot.name, resident, resident + extra.get(during, 0.0), during)


def queued(ran: Iterable[Ran]) -> list[tuple[float, int]]:
    """(time, batches that wait) whenever it changes: made ahead, and not yet taken by the step that reads them."""
    made: dict[int, float] = {}
    taken: dict[int, float] = {}
    for r in ran:
        if r.task.is_phase and r.task.ahead:
            made[r.step] = max(r.end, made.get(r.step, 0.0))
        elif r.task.is_phase:
            taken[r.step] = min(r.start, taken.get(r.step, r.start))
    changes = Counter(made.values())
    for step, moment in taken.items():
        if step in made:
            changes[max(moment, made[step])] -= 1
    level, levels = 0, []
    for moment in sorted(changes):
        level += changes[moment]
        levels.append((moment, level))
    return levels


def most_queued(ran: Iterable[Ran]) -> int:
    """Batches of rollouts that waited at most."""
    return max((level for _, level in queued(ran)), default=0)
