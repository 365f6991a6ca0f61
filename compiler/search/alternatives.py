"""What lost, and by how much: other groupings of phases, each at its best, and other layouts of each phase."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from .bounds import as_asked, within
from .decision import Alternative
from .dominance import reduced
from .instance import Candidate, Instance
from .partitions import Grouping, bound_of, groupings, restricted, units
from .polish import instead
from .problem import Problem
from .solve import Effort, Put, Solution, excess, searched

SLOWEST = 3.0
"""Groupings that are more times slower than the best aren't followed."""

WIDER = (1.01, 1.03, 1.1, 1.3, 2.0)
"""How many times slower than its bound a grouping may be, tried in this order."""

TOGETHER = "all phases on all devices"
EXCLUDED = "excluded by the `place` lines"

EFFORT = Effort(1.0, 0.01)
LAYOUTS = 2
"""Other layouts of a phase that are told of."""


def alternatives(instance: Instance, best: Solution) -> tuple[Alternative, ...]:
    """Groupings that have a name, then the nearest other layouts of each phase."""
    return (*_groupings(instance, best), *_layouts(instance, best))


# ---------------------------------------------------------------- groupings


def _groupings(instance: Instance, best: Solution) -> Iterator[Alternative]:
    chosen = {name: put.slot for name, put in best.puts.items()}
    for what, grouping in named(instance.problem, instance.most_slots).items():
        is_chosen = dict(grouping.slot) == _numbered(chosen, instance.problem)
        if is_chosen or grouping.slots > instance.devices:
            continue
        if excludes(instance, grouping) or (what == TOGETHER and _parts(instance)):
            yield Alternative(what, None, None, EXCLUDED)
        else:
            period = period_of(instance, grouping, best.period)
            why = "" if period else f"none was found that is at most {SLOWEST:g} times slower"
            yield Alternative(what, period, period / best.period - 1 if period else None, why)


def named(problem: Problem, slots: int) -> dict[str, Grouping]:
    """Groupings that people ask for, by what they are called."""
    every = {tuple(g.slot.values()): g for g in groupings(problem, slots)}
    order = [x.name for x in problem.phases]
    each = units(problem)
    engines = {x.name for x in problem.phases if x.kind == "generate"}
    wanted = {TOGETHER: dict.fromkeys(order, 0)}
    if engines and len(engines) < len(order):
        wanted["generation apart from the rest"] = {x: int(x not in engines) for x in order}
    family = _family(problem)
    if len(set(family.values())) > 1:
        wanted[_together(problem, family)] = {x.name: family[x.model] for x in problem.phases}
    if 1 < len(each) <= slots:
        wanted["every phase apart"] = {name: n for n, unit in enumerate(each) for name in unit}
    found: dict[str, Grouping] = {}
    for what, slot in wanted.items():
        key = tuple(_numbered(slot, problem).values())
        if key in every and every[key] not in found.values():
            found[what] = every[key]
    return found


def excludes(instance: Instance, grouping: Grouping) -> bool:
    """Whether lines rule a grouping out by where they put phases."""
    slot = grouping.slot
    places: dict[int, set[range]] = {}
    for request in instance.requests:
        for name in request.phases:
            if request.beside is not None and slot[name] != slot[request.beside]:
                return True
            if request.ranks is not None:
                places.setdefault(slot[name], set()).add(request.ranks)
    taken = [rank for found in places.values() for ranks in found for rank in ranks]
    left = instance.devices - len(taken)
    crowded = len(set(taken)) < len(taken) or left < len(set(slot.values())) - len(places)
    return crowded or any(len(found) > 1 for found in places.values())


def _parts(instance: Instance) -> bool:
    """Whether a line puts a phase on some of the devices only."""
    return any(r.ranks is not None and len(r.ranks) < instance.devices for r in instance.requests)


def _family(problem: Problem) -> dict[str, int]:
    """The model that generates and what starts with its weights, against the others."""
    engines = {x.model for x in problem.phases if x.kind == "generate"}
    kin = engines | {m.name for m in problem.models if m.of in engines}
    return {m.name: int(m.name not in kin) for m in problem.models}


def _together(problem: Problem, family: Mapping[str, int]) -> str:
    sides = [", ".join(m.name for m in problem.models if family[m.name] == side) for side in (0, 1)]
    return " | ".join(f"{{{side}}}" for side in sides)


def _numbered(slot: Mapping[str, int], problem: Problem) -> dict[str, int]:
    """The same grouping with slots numbered by their first phase."""
    numbers: dict[int, int] = {}
    return {x.name: numbers.setdefault(slot[x.name], len(numbers)) for x in problem.phases}


def period_of(instance: Instance, grouping: Grouping, best: float) -> float | None:
    """The best period of a grouping; None if none is found within `SLOWEST` times the best of all.

    Looks among ever slower placements, from the grouping's own bound on: of those near it, few are left to search.
    """
    limit, instance = best * SLOWEST, as_asked(instance)
    bounded = bound_of(within(instance, limit), grouping, limit)
    if bounded is None:
        return None
    tried = (_within(instance, grouping, min(limit, bounded.bound * factor)) for factor in WIDER)
    return next((found for found in tried if found is not None), None)


def _within(instance: Instance, grouping: Grouping, most: float) -> float | None:
    near = within(instance, most)
    bounded = bound_of(near, grouping, most)
    if bounded is None:
        return None
    found = searched(reduced(restricted(near, bounded, most)), EFFORT, grouping.slot, most).found
    return found.period if found else None


# ---------------------------------------------------------------- layouts


def _layouts(instance: Instance, best: Solution) -> Iterator[Alternative]:
    shared = {name for pair in instance.problem.sharing() for name in pair}
    for name, put in best.puts.items():
        if name not in shared:
            others = (_instead(instance, best, name, other) for other in _others(instance, best, name, put))
            yield from sorted(others, key=lambda a: (a.period is None, a.period or 0.0))[:LAYOUTS]


def _others(instance: Instance, best: Solution, name: str, put: Put) -> list[Put]:
    """Of each other layout that lines allow the fastest candidate that fits beside the rest; else the fastest."""
    asked = [r for r in instance.requests if name in r.phases]
    found: dict[tuple[int, ...], list[Put]] = {}
    for c in sorted(instance.choices[name][put.room], key=Candidate.rank):
        if c.key != put.candidate.key and all(r.allows(c.layout) for r in asked):
            found.setdefault(c.key, []).append(replace(put, candidate=c))
    fitting = ((p for p in puts if excess({**best.puts, name: p}, instance) <= 0) for puts in found.values())
    return [next(inside, puts[0]) for inside, puts in zip(fitting, found.values(), strict=True)]


def _instead(instance: Instance, best: Solution, name: str, put: Put) -> Alternative:
    """What becomes of the placement with another layout of one phase."""
    what = f"{name} with {put.candidate.layout}"
    over = excess({**best.puts, name: put}, instance)
    if over > 0:
        return Alternative(what, None, None, f"needs {over / 1e9:.1f} GB more than a device has")
    period = instead(instance, best, name, put).period
    return Alternative(what, period, period / best.period - 1)
