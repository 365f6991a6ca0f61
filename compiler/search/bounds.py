"""Leave out what can't be in a placement better than one that is known: exact, whatever the bound."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from .instance import Candidate, Choices, Instance, Room, pareto
from .problem import Problem


def within(instance: Instance, period: float) -> Instance:
    """The instance without the candidates that make the period longer than `period` seconds.

    A candidate is left out if what must come before and after it takes too long even at its fastest, or if the
    device-seconds that all phases need at least are more than the cluster has in a period.
    """
    fastest = {name: _least(by, lambda c, _: c.seconds) for name, by in instance.choices.items()}
    cheapest = {name: _least(by, lambda c, room: c.seconds * room.devices) for name, by in instance.choices.items()}
    slack = _slack(instance.problem, fastest, period)
    spare = instance.devices * period - sum(cheapest.values())
    tolerance = 1e-9 * max(period, 1.0)

    def fits(name: str, candidate: Candidate, room: Room) -> bool:
        more = candidate.seconds * room.devices - cheapest[name]
        return candidate.seconds <= slack[name] + tolerance and more <= spare + tolerance * instance.devices

    choices = {
        name: {r: kept for r, cs in by.items() if (kept := tuple(c for c in cs if fits(name, c, r)))}
        for name, by in instance.choices.items()
    }
    return replace(instance, choices=choices)


def _least(by_room: Mapping[Room, tuple[Candidate, ...]], of: Callable[[Candidate, Room], float]) -> float:
    return min((of(c, room) for room, cs in by_room.items() for c in cs), default=math.inf)


def _slack(problem: Problem, fastest: Mapping[str, float], period: float) -> dict[str, float]:
    """Seconds that a phase may take if all it waits for and all that wait for it are at their fastest."""
    before, after = chains(problem, fastest)
    return {x.name: period - before[x.name] - after[x.name] for x in problem.phases}


def chains(problem: Problem, seconds: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of the longest chain before each phase, and after it."""
    before: dict[str, float] = {}
    for x in problem.phases:
        before[x.name] = max((before[a] + seconds[a] for a in x.after), default=0.0)
    after = dict.fromkeys(before, 0.0)
    for x in reversed(problem.phases):
        for a in x.after:
            after[a] = max(after[a], after[x.name] + seconds[x.name])
    return before, after


def as_asked(instance: Instance) -> Instance:
    """The instance without the candidates that its lines rule out: nothing may be left out for the sake of those."""
    choices = {
        x.name: {
            room: kept for room, cs in instance.choices[x.name].items() if (kept := _asked(instance, x.name, room, cs))
        }
        for x in instance.problem.phases
    }
    return replace(instance, choices=choices)


def _asked(instance: Instance, name: str, room: Room, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    requests = [r for r in instance.requests if name in r.phases]
    if any(r.ranks is not None and not instance.is_on(room, r.ranks) for r in requests):
        return ()
    return tuple(c for c in candidates if all(r.allows(c.layout) for r in requests))


def one_slot(instance: Instance) -> Instance:
    """The instance with all phases on one slot, the largest."""
    largest = {r for r in instance.rooms if r.devices == max(x.devices for x in instance.rooms)}
    kept = ((name, {r: cs for r, cs in by.items() if r in largest}) for name, by in instance.choices.items())
    choices: Choices = {name: by for name, by in kept if by}
    missing: Choices = {name: {} for name in instance.choices if name not in choices}
    return replace(instance, choices={**choices, **missing}, slots=1)


def timeless(instance: Instance) -> Instance:
    """The instance with the candidates that matter to whether there is any placement: those that need little memory."""
    shared = {phase for pair in instance.problem.sharing() for phase in pair}

    def leanest(name: str, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        requests = (r for r in instance.requests if name in r.phases)
        return pareto((replace(c, seconds=0.0) for c in candidates), name in shared, requests)

    choices = {name: {r: leanest(name, cs) for r, cs in by.items()} for name, by in instance.choices.items()}
    return replace(instance, choices=choices)
