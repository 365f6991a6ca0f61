"""The search as a constraint program: phases × slots × sizes × layouts, in time and memory.

Booleans say which candidate a phase has on which slot; optional intervals that don't overlap say when. New weights
come at the front of their generation, which they make longer: how long is a table over (how they lie where they are
trained, where they are wanted, on the same slot or not).
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .instance import Candidate, Instance, Room, Spread

UNITS = 100_000
"""Units of time in the longest schedule: seconds are rounded up to them."""

MEGABYTE = 1e6
"""Unit of memory in the program."""

SpreadKey = tuple[Room, tuple[int, int, int, int]]
"""What a slot takes, and how weights lie on it."""

Key = tuple[str, int, Room, int]
"""Phase, slot, what the slot takes, number of the candidate."""


@dataclass
class Program:
    """A model under construction, and its variables. unit: seconds of a unit of time.

    choice: by Key; by_phase: the same. on: (phase, slot). room: (slot, what it takes; None: nothing). moving: of a
    generation, how long its weights take. guards: the literals that switch on what a request asks for, by the
    request's number. firsts: the first rank of each slot, where requests name ranks. slot: of each phase, where that
    is settled.
    """

    instance: Instance
    model: Any
    unit: float
    horizon: int
    choice: dict[Key, Any] = field(default_factory=dict)
    by_phase: dict[str, dict[Key, Any]] = field(default_factory=dict)
    on: dict[tuple[str, int], Any] = field(default_factory=dict)
    room: dict[tuple[int, Room | None], Any] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)
    total: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    moving: dict[str, Any] = field(default_factory=dict)
    together: dict[tuple[str, str], Any] = field(default_factory=dict)
    guards: list[Any] = field(default_factory=list)
    firsts: list[Any] = field(default_factory=list)
    period: Any = None
    slot: Mapping[str, int] | None = None

    @property
    def phases(self) -> tuple[str, ...]:
        return tuple(x.name for x in self.instance.problem.phases)

    @property
    def slots(self) -> range:
        return range(self.instance.most_slots)

    def candidate(self, key: Key) -> Candidate:
        phase, _, room, number = key
        return self.instance.choices[phase][room][number]

    def ticks(self, seconds: float) -> int:
        """Seconds in units of time, rounded up."""
        return max(0, math.ceil(seconds / self.unit - 1e-9))

    def of(self, phase: str, slot: int | None = None) -> Iterator[tuple[Key, Any]]:
        """The choices of a phase (on a slot)."""
        return ((k, b) for k, b in self.by_phase.get(phase, {}).items() if slot in (None, k[1]))


def build_untimed(instance: Instance) -> Program:
    """Only where phases are and what that takes in memory: whether there is any placement. Requests hold by guards."""
    from ortools.sat.python import cp_model

    p = Program(instance, cp_model.CpModel(), 1.0, 1)
    _choices(p)
    _slots(p)
    _sharing(p)
    _memory(p)
    _requests(p)
    return p


def build(instance: Instance, slot: Mapping[str, int] | None = None, most: float | None = None) -> Program:
    """The constraint program of an instance, with phases on these slots, for a period of at most so many seconds.

    Requests hold where their guard does.
    """
    from ortools.sat.python import cp_model

    longest = _longest(instance) if most is None else most
    p = Program(
        instance, cp_model.CpModel(), max(longest, 1e-9) / UNITS, UNITS + 2 * len(instance.problem.phases), slot=slot
    )
    _choices(p)
    _slots(p)
    _sharing(p)
    _memory(p)
    _time(p)
    _weights(p)
    _intervals(p)
    _requests(p)
    p.model.minimize(p.period)
    return p


def _longest(instance: Instance) -> float:
    """Seconds in which every phase, one after the other and each at its slowest, has surely ended."""
    each = (max((c.seconds for cs in by.values() for c in cs), default=0.0) for by in instance.choices.values())
    return sum(each) + sum(_slowest_move(instance, t, g) for t, g in instance.problem.sampled_after_training())


def _slowest_move(instance: Instance, train: str, generate: str) -> float:
    found = [m for rows in _moves(instance, train, generate).values() for m in rows]
    return max(found, default=0.0)


# ---------------------------------------------------------------- choices and slots


def _choices(p: Program) -> None:
    for phase in p.phases:
        for slot in p.slots:
            is_here = p.slot is None or p.slot[phase] == slot
            for room, candidates in p.instance.choices[phase].items() if is_here else ():
                for number in range(len(candidates)):
                    key = (phase, slot, room, number)
                    p.choice[key] = p.model.new_bool_var(f"{phase} on {slot} of {room}: {number}")
                    p.by_phase.setdefault(phase, {})[key] = p.choice[key]
            p.on[phase, slot] = p.model.new_bool_var(f"{phase} on {slot}")
            p.model.add(sum(b for _, b in p.of(phase, slot)) == p.on[phase, slot])
        p.model.add_exactly_one(p.on[phase, slot] for slot in p.slots)


def _slots(p: Program) -> None:
    """A slot takes one room, all together no more devices than there are; they are numbered by their first phase."""
    rooms = p.instance.rooms
    for slot in p.slots:
        for room in (None, *rooms):
            p.room[slot, room] = p.model.new_bool_var(f"slot {slot} takes {room}")
        p.model.add_exactly_one(p.room[slot, room] for room in (None, *rooms))
        for phase in p.phases:
            for room in rooms:
                chosen = [b for k, b in p.of(phase, slot) if k[2] == room]
                if chosen:
                    p.model.add(sum(chosen) <= p.room[slot, room])
    for number, area in enumerate(p.instance.areas):
        taken = [(p.instance.taken(room, number), b) for (_, room), b in p.room.items() if room is not None]
        p.model.add(sum(n * b for n, b in taken if n) <= area.devices)
    _numbered(p)


def _numbered(p: Program) -> None:
    """Slot g+1 begins with a phase after the first of slot g, so that no two numberings mean the same."""
    for number, phase in enumerate(p.phases):
        for slot in p.slots:
            if slot > number:
                p.model.add(p.on[phase, slot] == 0)
            elif slot > 0:
                p.model.add_bool_or([p.on[x, slot - 1] for x in p.phases[:number]]).only_enforce_if(p.on[phase, slot])
    for slot in p.slots:
        used = [p.on[phase, slot] for phase in p.phases]
        p.model.add_bool_or([*used, p.room[slot, None]])
        for b in used:
            p.model.add_implication(b, p.room[slot, None].Not())


def _sharing(p: Program) -> None:
    """Phases that share weights run on one slot, with weights lying alike."""
    problem = p.instance.problem
    for holder, other in problem.sharing():
        for slot in p.slots:
            p.model.add(p.on[holder, slot] == p.on[other, slot])
            for layout in _keys(p, holder, slot) | _keys(p, other, slot):
                alike = [[b for k, b in p.of(x, slot) if _key(p, k) == layout] for x in (holder, other)]
                p.model.add(sum(alike[0]) == sum(alike[1]))
    for phase in problem.phases:
        if phase.beside is not None:
            for slot in p.slots:
                p.model.add(p.on[phase.name, slot] == p.on[phase.beside, slot])


def _key(p: Program, key: Key) -> SpreadKey:
    return key[2], p.candidate(key).key


def _keys(p: Program, phase: str, slot: int) -> set[SpreadKey]:
    return {_key(p, k) for k, _ in p.of(phase, slot)}


# ---------------------------------------------------------------- memory


def _memory(p: Program) -> None:
    """What all phases of a slot keep, and what the running one needs beside it, fit into a device."""
    has = [(room, int(p.instance.area(room).memory / MEGABYTE)) for room in p.instance.rooms]
    for slot in p.slots:
        room = sum(n * p.room[slot, r] for r, n in has)
        kept = [(math.ceil(p.candidate(k).kept / MEGABYTE), b) for x in p.phases for k, b in p.of(x, slot)]
        for phase in p.phases:
            extra = [(math.ceil(p.candidate(k).extra / MEGABYTE), b) for k, b in p.of(phase, slot)]
            p.model.add(sum(n * b for n, b in [*kept, *extra] if n) <= room)


# ---------------------------------------------------------------- time


def _time(p: Program) -> None:
    """Phases follow those they wait for, and end within the period."""
    p.period = p.model.new_int_var(0, p.horizon, "period")
    for phase in p.instance.problem.phases:
        name = phase.name
        p.start[name] = p.model.new_int_var(0, p.horizon, f"start of {name}")
        p.total[name] = p.model.new_int_var(0, p.horizon, f"seconds of {name}")
        p.end[name] = p.model.new_int_var(0, p.horizon, f"end of {name}")
        p.model.add(p.start[name] + p.total[name] == p.end[name])
        p.model.add(p.end[name] <= p.period)
        for before in phase.after:
            p.model.add(p.start[name] >= p.end[before])


def _intervals(p: Program) -> None:
    """A slot runs one phase at a time, and is busy while it sends weights to another."""
    problem = p.instance.problem
    for name in p.phases:
        seconds = sum(p.ticks(p.candidate(k).seconds) * b for k, b in p.of(name))
        p.model.add(p.total[name] == seconds + p.moving.get(name, 0))
    sent = {s: _sending(p, t, g, s) for t, g in problem.sampled_after_training() for s in p.slots}
    for slot in p.slots:
        own = [
            p.model.new_optional_interval_var(p.start[x], p.total[x], p.end[x], p.on[x, slot], f"{x} on {slot}")
            for x in p.phases
        ]
        p.model.add_no_overlap([*own, *sent.get(slot, [])])
        _load(p, slot)
    _area(p)


def _area(p: Program) -> None:
    """Implied, for the bound: phases take no more device-seconds than the cluster has in the time left for them.

    That is the period; after a phase, for all that wait for it, what is left of the period; before it, its start.
    """
    followers = p.instance.problem.followers()
    p.model.add(_device_seconds(p, p.phases) <= p.instance.devices * p.period)
    for name, later in followers.items():
        earlier = [x for x in p.phases if name in followers[x]]
        if later:
            p.model.add(_device_seconds(p, later) <= p.instance.devices * (p.period - p.end[name]))
        if earlier:
            p.model.add(_device_seconds(p, earlier) <= p.instance.devices * p.start[name])


def _device_seconds(p: Program, phases: Iterable[str]) -> Any:
    return sum(k[2].devices * p.ticks(p.candidate(k).seconds) * b for x in phases for k, b in p.of(x))


def _sending(p: Program, train: str, generate: str, slot: int) -> list[Any]:
    """The interval in which the slot of a trained model sends its weights elsewhere."""
    sends = p.model.new_bool_var(f"{train} sends from {slot}")
    apart = p.together[train, generate].Not()
    p.model.add_bool_and([p.on[train, slot], apart]).only_enforce_if(sends)
    p.model.add_bool_or([p.on[train, slot].Not(), apart.Not(), sends])
    end = p.model.new_int_var(0, p.horizon, f"{train} has sent from {slot}")
    return [
        p.model.new_optional_interval_var(
            p.start[generate], p.moving[generate], end, sends, f"{train} sends from {slot}"
        )
    ]


def _load(p: Program, slot: int) -> None:
    """Implied, for the bound: the period is at least what a slot has to do."""
    load = sum(p.ticks(p.candidate(k).seconds) * b for x in p.phases for k, b in p.of(x, slot))
    p.model.add(load <= p.period)


# ---------------------------------------------------------------- weights


def _weights(p: Program) -> None:
    """How long the new weights of a generation take."""
    for train, generate in p.instance.problem.sampled_after_training():
        together = p.model.new_bool_var(f"{train} with {generate}")
        p.together[train, generate] = together
        for slot in p.slots:
            p.model.add(p.on[train, slot] == p.on[generate, slot]).only_enforce_if(together)
            p.model.add_bool_or([p.on[train, slot].Not(), p.on[generate, slot].Not(), together])
        p.moving[generate] = p.model.new_int_var(0, p.horizon, f"weights of {generate}")
        _table(p, train, generate, together)


def _table(p: Program, train: str, generate: str, together: Any) -> None:
    """Rows and columns of equal times are one class: nothing is lost, and the table is small."""
    times = _moves(p.instance, train, generate)
    sources, targets = sorted({s for s, _ in times}), sorted({t for _, t in times})
    ticks = {k: tuple(p.ticks(m) for m in ms) for k, ms in times.items()}
    source_class = _classes(sources, lambda s: tuple(ticks[s, t] for t in targets))
    target_class = _classes(targets, lambda t: tuple(ticks[s, t] for s in sources))
    chosen = [_class_of(p, x, c) for x, c in ((train, source_class), (generate, target_class))]
    rows = {
        (source_class[s], target_class[t], same, ticks[s, t][same])
        for s in sources
        for t in targets
        for same in (0, 1)
        if ticks[s, t][same] <= p.horizon
    }
    p.model.add_allowed_assignments([*chosen, together, p.moving[generate]], sorted(rows))


def _moves(instance: Instance, train: str, generate: str) -> dict[tuple[SpreadKey, SpreadKey], tuple[float, float]]:
    """Seconds of each pair of spreads: apart, and on the same slot (as apart where slots can't be one)."""
    model = instance.problem.phase(train).model
    found: dict[tuple[SpreadKey, SpreadKey], tuple[float, float]] = {}
    for s, source in _spreads(instance, train).items():
        for t, target in _spreads(instance, generate).items():
            apart = instance.move(model, source, target, False).seconds
            same = instance.move(model, source, target, True).seconds if s[0] == t[0] else apart
            found[s, t] = (apart, same)
    return found


def _spreads(instance: Instance, phase: str) -> dict[SpreadKey, Spread]:
    """How the weights of a phase may lie."""
    by_room = instance.choices[phase].items()
    return {(room, c.key): Spread(room, c.layout) for room, cs in by_room for c in cs}


def _classes(items: Iterable[SpreadKey], of: Any) -> dict[SpreadKey, int]:
    numbers: dict[Any, int] = {}
    return {item: numbers.setdefault(of(item), len(numbers)) for item in items}


def _class_of(p: Program, phase: str, classes: dict[SpreadKey, int]) -> Any:
    number = p.model.new_int_var(0, max(classes.values(), default=0), f"class of {phase}")
    p.model.add(number == sum(classes[_key(p, k)] * b for k, b in p.of(phase)))
    return number


# ---------------------------------------------------------------- requests


def _requests(p: Program) -> None:
    if any(r.ranks is not None for r in p.instance.requests):
        p.firsts = _positions(p)
    for number, request in enumerate(p.instance.requests):
        guard = p.model.new_bool_var(f"request {number}: {request.label}")
        p.guards.append(guard)
        for phase in request.phases:
            for key, b in p.of(phase):
                if not request.allows(p.candidate(key).layout):
                    p.model.add_implication(guard, b.Not())
            if request.ranks is not None:
                _on_ranks(p, phase, request.ranks, guard)
            if request.beside is not None:
                for slot in p.slots:
                    p.model.add(p.on[phase, slot] == p.on[request.beside, slot]).only_enforce_if(guard)


def _positions(p: Program) -> list[Any]:
    """The first rank of each slot: no two overlap, and each is aligned to its own size or to nodes."""
    firsts, intervals = [], []
    for slot in p.slots:
        first = p.model.new_int_var(0, p.instance.devices, f"first of {slot}")
        devices = p.model.new_int_var(0, p.instance.devices, f"devices of {slot}")
        last = p.model.new_int_var(0, p.instance.devices, f"after the last of {slot}")
        p.model.add(devices == sum(room.devices * p.room[slot, room] for room in p.instance.rooms))
        intervals.append(p.model.new_interval_var(first, devices, last, f"ranks of {slot}"))
        for room in p.instance.rooms:
            area, step = p.instance.area(room), min(room.devices, p.instance.area(room).unit)
            times = p.model.new_int_var(0, (area.devices - room.devices) // step, "")
            p.model.add(first == area.first + step * times).only_enforce_if(p.room[slot, room])
        firsts.append(first)
    p.model.add_no_overlap(intervals)
    return firsts


def _on_ranks(p: Program, phase: str, ranks: range, guard: Any) -> None:
    for slot in p.slots:
        here = [guard, p.on[phase, slot]]
        p.model.add(p.firsts[slot] == ranks.start).only_enforce_if(here)
        alike = [p.room[slot, r] for r in p.instance.rooms if p.instance.is_on(r, ranks)]
        p.model.add_bool_or([*alike, *(b.Not() for b in here)])
