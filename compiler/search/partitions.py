"""Which phases may be together on a slot: every way to group them, each with a bound on its period.

What shares weights, or runs inside another, is one unit. Units are grouped in every way; the bound of a grouping is the
best of all rooms for its slots, each phase at its fastest there, memory and the ways of weights left out. A grouping
whose bound is no better than a placement at hand needs no search.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .bounds import chains
from .instance import Choices, Instance, Room
from .problem import Problem

MOST_VISITS = 20_000
"""Steps of the enumeration of rooms, after which a grouping keeps the bound of its fastest ones."""


@dataclass(frozen=True)
class Grouping:
    """Phases by the number of their slot. bound: no period is shorter. rooms: of each slot, those that may reach it."""

    slot: Mapping[str, int]
    bound: float = 0.0
    rooms: tuple[frozenset[Room], ...] = ()

    @property
    def slots(self) -> int:
        return 1 + max(self.slot.values(), default=0)

    def on(self, slot: int) -> list[str]:
        """The phases of a slot."""
        return [name for name, s in self.slot.items() if s == slot]


def units(problem: Problem) -> list[list[str]]:
    """Phases that are on one slot in any case, in the order of their first."""
    pairs = [*problem.sharing(), *((x.beside, x.name) for x in problem.phases if x.beside is not None)]
    unit = {x.name: {x.name} for x in problem.phases}
    for a, b in pairs:
        merged = unit[a] | unit[b]
        unit |= dict.fromkeys(merged, merged)
    order = [x.name for x in problem.phases]
    return [sorted(u, key=order.index) for u in {min(u, key=order.index): u for u in unit.values()}.values()]


def groupings(problem: Problem, slots: int) -> Iterator[Grouping]:
    """Every way to put the units on at most so many slots."""
    every = units(problem)
    order = [x.name for x in problem.phases]
    for numbers in _restricted(len(every), slots):
        slot = {name: n for unit, n in zip(every, numbers, strict=True) for name in unit}
        yield Grouping({name: slot[name] for name in order})


def _restricted(units: int, slots: int, used: int = 0) -> Iterator[tuple[int, ...]]:
    """Numbers of slots in which each new one is the next."""
    if units == 0:
        yield ()
        return
    for number in range(min(used + 1, slots)):
        for rest in _restricted(units - 1, slots, max(used, number + 1)):
            yield (number, *rest)


# ---------------------------------------------------------------- bounds


def promising(instance: Instance, period: float) -> list[Grouping]:
    """The groupings whose bound is below a period, the lowest bound first."""
    found = (bound_of(instance, g, period) for g in groupings(instance.problem, instance.most_slots))
    return sorted((g for g in found if g is not None), key=lambda g: (g.bound, tuple(g.slot.values())))


def bound_of(instance: Instance, grouping: Grouping, period: float) -> Grouping | None:
    """A grouping with its bound and the rooms of its slots that may reach it; None if it is not below the period."""
    fastest = {n: {r: min(c.seconds for c in cs) for r, cs in by.items() if cs} for n, by in instance.choices.items()}
    if not all(fastest.values()):
        return None
    return _Bounder(instance, fastest, grouping, period).bounded()


@dataclass
class _Bounder:
    """Enumerates the rooms of a grouping's slots. period: those whose bound is not below it are left out."""

    instance: Instance
    fastest: Mapping[str, Mapping[Room, float]]
    grouping: Grouping
    period: float
    visits: int = 0
    best: float = math.inf
    reached: list[set[Room]] = field(default_factory=list)

    def bounded(self) -> Grouping | None:
        """The grouping with its bound; None if it is not below the period."""
        options = [self._options(slot) for slot in range(self.grouping.slots)]
        if any(not o for o in options):
            return None
        self.reached = [set() for _ in options]
        least = [min(r.devices for r in o) for o in options]
        self._visit([], options, least)
        if self.visits > MOST_VISITS:
            self.best = self._bound(
                [{x: min(self.fastest[x].values()) for x in self.grouping.on(s)} for s in range(len(options))]
            )
            self.reached = [set(o) for o in options]
        if self.best >= self.period:
            return None
        return replace(self.grouping, bound=self.best, rooms=tuple(map(frozenset, self.reached)))

    def _options(self, slot: int) -> list[Room]:
        """Rooms in which all phases of a slot can run and end in time, the largest first."""
        phases = self.grouping.on(slot)
        rooms = set.intersection(*(set(self.fastest[x]) for x in phases))
        in_time = (r for r in rooms if sum(self.fastest[x][r] for x in phases) < self.period)
        return sorted(in_time, key=lambda r: (-r.devices, r.area))

    def _visit(self, chosen: list[Room], options: Sequence[Sequence[Room]], least: Sequence[int]) -> None:
        self.visits += 1
        if self.visits > MOST_VISITS:
            return
        at = len(chosen)
        bound = self._bound([self._seconds(s, chosen[s] if s < at else None) for s in range(len(options))])
        if bound >= self.period:
            return
        if at == len(options):
            self.best = min(self.best, bound)
            for slot, room in enumerate(chosen):
                self.reached[slot].add(room)
            return
        left = self.instance.devices - sum(r.devices for r in chosen) - sum(least[at + 1 :])
        for room in (r for r in options[at] if r.devices <= left):
            if self._is_free([*chosen, room]):
                self._visit([*chosen, room], options, least)

    def _is_free(self, chosen: Sequence[Room]) -> bool:
        """Whether each area has the devices that slots take of it."""
        areas = enumerate(self.instance.areas)
        return all(sum(self.instance.taken(r, number) for r in chosen) <= area.devices for number, area in areas)

    def _seconds(self, slot: int, room: Room | None) -> dict[str, float]:
        phases = self.grouping.on(slot)
        return {x: min(self.fastest[x].values()) if room is None else self.fastest[x][room] for x in phases}

    def _bound(self, seconds: Sequence[Mapping[str, float]]) -> float:
        """No period is shorter: chains of phases, and for each slot what must come before, on and after it."""
        every = {x: t for by in seconds for x, t in by.items()}
        before, after = chains(self.instance.problem, every)
        longest = max((before[x] + t + after[x] for x, t in every.items()), default=0.0)
        slots = (min(before[x] for x in by) + sum(by.values()) + min(after[x] for x in by) for by in seconds if by)
        return max(longest, *slots)


def restricted(instance: Instance, grouping: Grouping, period: float) -> Instance:
    """The instance of a grouping, with candidates that can end in time beside all others of their slot."""
    choices: dict[str, Mapping[Room, tuple[object, ...]]] = {}
    for slot in range(grouping.slots):
        phases = grouping.on(slot)
        for room in grouping.rooms[slot]:
            least = {x: min(c.seconds for c in instance.choices[x][room]) for x in phases}
            spare = period - sum(least.values()) + 1e-9 * period
            for x in phases:
                kept = tuple(c for c in instance.choices[x][room] if c.seconds - least[x] <= spare)
                choices[x] = {**choices.get(x, {}), room: kept}
    ordered: Choices = {name: choices[name] for name in instance.choices}  # type: ignore[misc]
    return replace(instance, choices=ordered, slots=grouping.slots)
