"""What can be left out of a search without losing its best placement.

A candidate is left out if another, on a slot that takes the same, is as good in everything that anything depends on:
seconds, resident bytes, transient bytes, and how long weights take to it or from it. Of phases that share weights, one
way to lie is left out if in another each of them has, for every candidate, one that is as good.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from .instance import Candidate, Instance, Lie, Room, Spread
from .problem import Problem

Travel = Mapping[tuple[Room, Lie], tuple[float, ...]]
"""Seconds of all moves from (or to) weights that lie so on a slot, in one order."""


def reduced(instance: Instance) -> Instance:
    """The instance without what is dominated across layouts."""
    problem = instance.problem
    choices = {name: dict(by_room) for name, by_room in instance.choices.items()}
    for group in _groups(problem):
        leaving = _travel(instance, group[0], leaves=True)
        for room in instance.rooms:
            kept = _lies(choices, group, room, leaving)
            for name in group:
                found = tuple(c for c in choices[name].get(room, ()) if c.key in kept)
                choices[name] = {
                    **{r: c for r, c in choices[name].items() if r != room},
                    **({room: found} if found else {}),
                }
    for phase in problem.phases:
        if phase.kind == "generate":
            arriving = _travel(instance, phase.name, leaves=False)
            choices[phase.name] = {r: _engines(cs, r, arriving) for r, cs in choices[phase.name].items()}
    return replace(instance, choices=choices)


def _groups(problem: Problem) -> list[list[str]]:
    """Phases that share weights, the holder first; those of a trained model that shares them with none too."""
    groups: dict[str, list[str]] = {t: [t] for t, _ in problem.sampled_after_training()}
    for holder, other in problem.sharing():
        groups.setdefault(holder, [holder]).append(other)
    return list(groups.values())


def _travel(instance: Instance, phase: str, leaves: bool) -> Travel:
    """Of each way the weights of a phase may lie, the seconds of the moves from it, or to it; none without moves."""
    found: dict[tuple[Room, Lie], tuple[float, ...]] = {}
    pairs = [p for p in instance.problem.sampled_after_training() if p[0 if leaves else 1] == phase]
    for room, candidates in instance.choices[phase].items():
        for c in candidates:
            if (room, c.key) not in found:
                here = Spread(room, c.layout)
                found[room, c.key] = tuple(s for pair in pairs for s in _moves(instance, here, pair, leaves))
    return found


def _moves(instance: Instance, here: Spread, pair: tuple[str, str], leaves: bool) -> Iterable[float]:
    model = instance.problem.phase(pair[0]).model
    for room, candidates in sorted(instance.choices[pair[1 if leaves else 0]].items()):
        for key in sorted({c.key: c.layout for c in candidates}.items()):
            there = Spread(room, key[1])
            ends = (here, there) if leaves else (there, here)
            yield instance.move(model, *ends, False).seconds
            if room == here.room:
                yield instance.move(model, *ends, True).seconds


# ---------------------------------------------------------------- ways to lie


def _lies(
    choices: Mapping[str, Mapping[Room, tuple[Candidate, ...]]], group: list[str], room: Room, travel: Travel
) -> set[Lie]:
    """The ways to lie that all phases of a group have, and none dominates."""
    own = [{k: [c for c in choices[x].get(room, ()) if c.key == k] for k in _keys(choices[x], room)} for x in group]
    common = sorted(set.intersection(*(set(x) for x in own)))
    kept: list[Lie] = []
    for lie in common:
        others = [o for o in common if o != lie and (o in kept or o > lie)]
        if not any(
            _is_lie_as_good(own, o, lie, travel.get((room, o), ()), travel.get((room, lie), ())) for o in others
        ):
            kept.append(lie)
    return set(kept)


def _keys(by_room: Mapping[Room, tuple[Candidate, ...]], room: Room) -> set[Lie]:
    return {c.key for c in by_room.get(room, ())}


def _is_lie_as_good(
    own: list[dict[Lie, list[Candidate]]], lie: Lie, other: Lie, mine: tuple[float, ...], its: tuple[float, ...]
) -> bool:
    if any(a > b for a, b in zip(mine, its, strict=True)):
        return False
    return all(any(_is_as_good(c, o) for c in phase[lie]) for phase in own for o in phase[other])


def _is_as_good(a: Candidate, b: Candidate) -> bool:
    return a.seconds <= b.seconds and a.kept <= b.kept and a.extra <= b.extra


# ---------------------------------------------------------------- engines


def _engines(candidates: tuple[Candidate, ...], room: Room, travel: Travel) -> tuple[Candidate, ...]:
    """Without engines for which another is as good with its weights' way, wherever they come from."""
    kept: list[Candidate] = []
    for c in sorted(candidates, key=Candidate.rank):
        if not any(_is_engine_as_good(o, c, travel[room, o.key], travel[room, c.key]) for o in kept):
            kept.append(c)
    return tuple(kept)


def _is_engine_as_good(a: Candidate, b: Candidate, mine: tuple[float, ...], its: tuple[float, ...]) -> bool:
    return _is_as_good(a, b) and all(x <= y for x, y in zip(mine, its, strict=True))
