"""Discrete events: runs of tasks, each started when what it waits for has ended and its slots are free.

Tasks of a slot run in the order the decision gives them, so that what is simulated is the compiled schedule. A run of a
task is an event or two whatever the number of devices: a phase ends on all devices of its slot together.

Own loop, not simpy: with the order on each slot fixed there is nothing to request or to preempt, and what is left of a
simulation is a heap of ends.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .tasks import Period, Task

Key = tuple[int, str]
"""A run of a task: its period and its name. Periods before 0 are the fill."""

Seconds = Callable[[Task, int], float]
"""How long a task of a period takes."""


@dataclass(frozen=True)
class Ran:
    """One run of a task. period: below 0 in the fill. Its rows are those of step `period + task.ahead`."""

    task: Task
    period: int
    start: float
    end: float

    @property
    def step(self) -> int:
        """The step that reads its rows."""
        return self.period + self.task.ahead


@dataclass(frozen=True)
class Network:
    """The runs of some periods in an order in which each comes after those it waits for, and who follows whom."""

    runs: tuple[Key, ...]
    followers: dict[Key, tuple[Key, ...]]
    waiting: dict[Key, int]


def unrolled(period: Period, first: int, last: int, *, together: bool = False) -> Network:
    """The runs of periods `first` to `last` − 1. From period 0 on, they begin with the fill.

    together: no period starts before the one before it has ended, as ranks report each step together.
    """
    runs = _runs(period, first, last)
    waits = {(run, on) for run in runs for on in _waits(period, run, runs, first, together)}
    order = _ordered(runs, waits, period)
    waits |= _on_slots(order, period)
    followers: dict[Key, list[Key]] = {run: [] for run in order}
    waiting = dict.fromkeys(order, 0)
    for run, on in sorted(waits):
        followers[on].append(run)
        waiting[run] += 1
    return Network(tuple(order), {k: tuple(v) for k, v in followers.items()}, waiting)


def _runs(period: Period, first: int, last: int) -> dict[Key, Task]:
    """Draws that are read k steps later run k times more at the start, with the first weights (`runtime`'s fill)."""
    begins = {t.name: -t.ahead if first == 0 and t.fills else first for t in period.tasks}
    return {(n, t.name): t for t in period.tasks for n in range(begins[t.name], last)}


def _waits(period: Period, run: Key, runs: dict[Key, Task], first: int, together: bool) -> Iterator[Key]:
    number, name = run
    for wait in period.waits:
        if wait.task == name and (number - wait.back, wait.on) in runs:
            yield number - wait.back, wait.on
    filled = [key for key in runs if key[0] < first] if number == first and first == 0 else []
    if not runs[run].fills:  # the fill ends before the first step begins
        yield from filled
    if together and number > first:
        yield from ((number - 1, t.name) for t in period.tasks)


def _ordered(runs: dict[Key, Task], waits: set[tuple[Key, Key]], period: Period) -> list[Key]:
    """By decided start, what is waited for first. Raises ValueError if runs wait for each other in a circle."""
    followers: dict[Key, list[Key]] = {run: [] for run in runs}
    waiting = dict.fromkeys(runs, 0)
    for run, on in waits:
        followers[on].append(run)
        waiting[run] += 1
    rank = {t.name: n for n, t in enumerate(period.tasks)}

    def key(run: Key) -> tuple[float, int, int, Key]:
        return run[0] * period.length + runs[run].start, run[0], rank[run[1]], run

    heap = [key(run) for run, count in waiting.items() if count == 0]
    heapq.heapify(heap)
    order: list[Key] = []
    while heap:
        run = heapq.heappop(heap)[-1]
        order.append(run)
        for follower in followers[run]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(heap, key(follower))
    if len(order) < len(runs):
        stuck = sorted({name for (_, name), count in waiting.items() if count > 0})
        raise ValueError(f"these wait for each other in a circle: {', '.join(stuck)}")
    return order


def _on_slots(order: list[Key], period: Period) -> set[tuple[Key, Key]]:
    """Each run waits for the one before it on each of its slots."""
    slots = {t.name: t.slots for t in period.tasks}
    before: dict[str, Key] = {}
    waits: set[tuple[Key, Key]] = set()
    for run in order:
        for slot in slots[run[1]]:
            if slot in before:
                waits.add((run, before[slot]))
            before[slot] = run
    return waits


def play(network: Network, period: Period, seconds: Seconds, at: float = 0.0, shift: int = 0) -> list[Ran]:
    """Run a network from `at` on, its periods counted `shift` higher. Returns its runs in the order of their ends.

    That is two events for each run: its start and its end.
    """
    tasks = {t.name: t for t in period.tasks}
    waiting = dict(network.waiting)
    ends: list[tuple[float, int, Key]] = []
    started: dict[Key, float] = {}
    places = {run: n for n, run in enumerate(network.runs)}

    def start(run: Key, now: float) -> None:
        started[run] = now
        heapq.heappush(ends, (now + seconds(tasks[run[1]], run[0] + shift), places[run], run))

    for run in network.runs:
        if waiting[run] == 0:
            start(run, at)
    ran: list[Ran] = []
    while ends:
        now, _, run = heapq.heappop(ends)
        ran.append(Ran(tasks[run[1]], run[0] + shift, started[run], now))
        for follower in network.followers[run]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                start(follower, now)
    return ran
