"""What `place` lines ask for, each under a literal of its own: layouts, ranks, places beside others."""

from typing import Any

from .variables import Program


def add_requests(p: Program) -> None:
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
