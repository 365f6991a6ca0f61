"""Which candidate each phase has, on which slot; what slots take; what fits into memory."""

import math

from .variables import Program, SpreadKey

MEGABYTE = 1e6
"""Unit of memory in the program."""


def add_choices(p: Program) -> None:
    """Each phase has one candidate, on one slot."""
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


def add_slots(p: Program) -> None:
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


def add_sharing(p: Program) -> None:
    """Phases that share weights run on one slot, with weights lying alike."""
    problem = p.instance.problem
    for holder, other in problem.sharing():
        for slot in p.slots:
            p.model.add(p.on[holder, slot] == p.on[other, slot])
            for layout in _keys(p, holder, slot) | _keys(p, other, slot):
                alike = [[b for k, b in p.of(x, slot) if p.spread(k) == layout] for x in (holder, other)]
                p.model.add(sum(alike[0]) == sum(alike[1]))
    for phase in problem.phases:
        if phase.beside is not None:
            for slot in p.slots:
                p.model.add(p.on[phase.name, slot] == p.on[phase.beside, slot])


def _keys(p: Program, phase: str, slot: int) -> set[SpreadKey]:
    return {p.spread(k) for k, _ in p.of(phase, slot)}


# ---------------------------------------------------------------- memory


def add_memory(p: Program) -> None:
    """What all phases of a slot keep, and what the running one needs beside it, fit into a device."""
    has = [(room, int(p.instance.area(room).memory / MEGABYTE)) for room in p.instance.rooms]
    for slot in p.slots:
        room = sum(n * p.room[slot, r] for r, n in has)
        kept = [(math.ceil(p.candidate(k).kept / MEGABYTE), b) for x in p.phases for k, b in p.of(x, slot)]
        for phase in p.phases:
            extra = [(math.ceil(p.candidate(k).extra / MEGABYTE), b) for k, b in p.of(phase, slot)]
            p.model.add(sum(n * b for n, b in [*kept, *extra] if n) <= room)
