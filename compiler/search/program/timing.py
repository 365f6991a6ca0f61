"""When phases run: after those they wait for, one at a time on a slot, within the period."""

from collections.abc import Iterable
from typing import Any

from .variables import Program


def add_times(p: Program) -> None:
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


def add_intervals(p: Program) -> None:
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
