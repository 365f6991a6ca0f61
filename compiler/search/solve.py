"""Solve a search exactly: the shortest period, the bound that proves it, and the placement that reaches it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .bounds import as_asked, one_slot, timeless, within
from .dominance import reduced
from .instance import Candidate, Instance, Moved, Room, Spread
from .partitions import promising, restricted
from .program import Program, build, build_untimed

INSTALL = "pip install 'shardflow[plan]'"


class NoSolver(Exception):
    """OR-Tools isn't here."""

    def __init__(self) -> None:
        super().__init__(f"a placement is searched for with OR-Tools, which isn't installed: {INSTALL}")


ROUNDING = 2.5e-4
"""Of a period, what the rounding of times makes at most: an optimal placement's bound is its period within that."""


@dataclass(frozen=True)
class Effort:
    """How long to search, in OR-Tools' deterministic time (about seconds), and the gap at which to stop."""

    time: float = 30.0
    gap: float = 0.0
    workers: int = 1


@dataclass(frozen=True)
class Put:
    """A phase's slot (its number), what that takes, and what was chosen."""

    slot: int
    room: Room
    candidate: Candidate

    @property
    def spread(self) -> Spread:
        return Spread(self.room, self.candidate.layout)


@dataclass(frozen=True)
class Solution:
    """A placement found. start, end: of phases; a generation begins with the way of its weights, `moved`.

    firsts: the first rank of slots that lines fixed, by their number. bound: no period is shorter. booleans: of the
    program that proved it.
    """

    puts: Mapping[str, Put]
    start: Mapping[str, float]
    end: Mapping[str, float]
    moved: Mapping[str, Moved]
    period: float
    bound: float
    optimal: bool
    booleans: int = 0
    deterministic: float = 0.0
    firsts: Mapping[int, int] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """(period − bound) / period."""
        return max(0.0, self.period - self.bound) / self.period if self.period else 0.0


def solve(instance: Instance, effort: Effort | None = None) -> Solution | None:
    """The best placement; None if there is none. Raises NoSolver."""
    effort, instance = effort or Effort(), as_asked(instance)
    best = searched(reduced(one_slot(instance)), Effort(3.0, 0.02)).found or any_placement(instance)
    if best is None:
        return None
    best = _near_the_bound(instance, best)
    return _improved(within(instance, best.period), best, effort)


def any_placement(instance: Instance) -> Solution | None:
    """Some placement; None if there is none. What fits is found without time, however many candidates there are."""
    if any(not by_room for by_room in instance.choices.values()):
        return None
    program = _untimed(instance)
    solver = solver_for(Effort())
    if solver.solve(program.model) not in (_solver().OPTIMAL, _solver().FEASIBLE):
        return None
    chosen = {k[0]: (k, program.candidate(k)) for k, b in program.choice.items() if solver.value(b)}
    puts = {name: Put(k[1], k[2], _fastest(instance.choices[name][k[2]], c)) for name, (k, c) in chosen.items()}
    order, moved = list(program.phases), moves(instance, puts)
    start, end = timed(instance, puts, moved, order)
    return Solution(puts, start, end, moved, max(end.values()), 0.0, False, firsts=_firsts(program, solver, puts))


def _fastest(candidates: Iterable[Candidate], lean: Candidate) -> Candidate:
    """Of candidates, the one of which a leanest was made."""
    alike = (
        c for c in candidates if (c.layout, c.resident, c.transient) == (lean.layout, lean.resident, lean.transient)
    )
    return min(alike, key=Candidate.rank)


def _untimed(instance: Instance) -> Program:
    program = build_untimed(timeless(instance))
    for guard in program.guards:
        program.model.add(guard == 1)
    return program


NEAR = (1.01, 1.03, 1.1)
"""How many times longer than the lowest bound a period may be that is looked for first."""


def _near_the_bound(instance: Instance, best: Solution) -> Solution:
    """A better placement, if there is one near the lowest bound of all groupings: of those, few are left to search."""
    waiting = promising(within(instance, best.period), best.period)
    for most in (waiting[0].bound * factor for factor in NEAR if waiting):
        if most >= best.period:
            return best
        near = within(instance, most)
        tried = (
            searched(reduced(restricted(near, g, most)), Effort(0.5, 0.005), g.slot, most).found
            for g in promising(near, most)
        )
        found = min((f for f in tried if f is not None), key=lambda f: f.period, default=best)
        if found.period < best.period:
            return found
    return best


def _improved(instance: Instance, best: Solution, effort: Effort) -> Solution:
    """The best of all groupings: each is searched unless its bound shows that it can't be better."""
    spent, booleans, bounds = 0.0, 0, [best.period]
    for grouping in promising(instance, best.period):
        if grouping.bound >= best.period * (1 - effort.gap) or spent >= effort.time:
            bounds.append(grouping.bound)
            continue
        near = reduced(restricted(instance, grouping, best.period))
        result = searched(near, replace(effort, time=effort.time - spent), grouping.slot, best.period)
        spent, booleans = spent + result.effort, booleans + result.booleans
        bounds.append(max(result.bound, grouping.bound))
        best = result.found if result.found is not None and result.found.period < best.period else best
    bound = min(best.period, *bounds)
    return replace(best, bound=bound, optimal=spent < effort.time, booleans=booleans, deterministic=spent)


def is_possible(instance: Instance, effort: Effort | None = None) -> bool:
    """Whether there is any placement."""
    cp_model = _solver()
    if any(not by_room for by_room in instance.choices.values()):
        return False
    return bool(solver_for(effort or Effort(5.0)).solve(_untimed(instance).model) != cp_model.INFEASIBLE)


@dataclass(frozen=True)
class Result:
    """What a search gave: the best it found, a bound of all it searched, and the effort it took."""

    found: Solution | None
    bound: float
    effort: float = 0.0
    booleans: int = 0


def searched(
    instance: Instance, effort: Effort, slot: Mapping[str, int] | None = None, most: float | None = None
) -> Result:
    """Search with phases on these slots (None: on any), for a period of at most so many seconds. Raises NoSolver."""
    cp_model = _solver()
    if any(not by_room for by_room in instance.choices.values()):
        return Result(None, math.inf)
    program = build(instance, slot, most)
    for guard in program.guards:
        program.model.add(guard == 1)
    solver = solver_for(effort)
    status = solver.solve(program.model)
    used, booleans = solver.response_proto.deterministic_time, len(program.choice)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Result(None, math.inf if status == cp_model.INFEASIBLE else 0.0, used, booleans)
    found = _read(program, solver, status == cp_model.OPTIMAL)
    return Result(found, found.bound, used, booleans)


def _solver() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise NoSolver from None
    return cp_model


def solver_for(effort: Effort) -> Any:
    """A solver that gives the same answer in every run."""
    solver = _solver().CpSolver()
    solver.parameters.max_deterministic_time = effort.time
    solver.parameters.relative_gap_limit = effort.gap
    solver.parameters.num_workers = effort.workers
    solver.parameters.interleave_search = effort.workers > 1
    solver.parameters.random_seed = 1
    solver.parameters.linearization_level = 2  # else bounds may rise by one unit of time at a time
    return solver


# ---------------------------------------------------------------- what was found


def _read(program: Program, solver: Any, is_optimal: bool) -> Solution:
    puts = {k[0]: Put(k[1], k[2], program.candidate(k)) for k, b in program.choice.items() if solver.value(b)}
    order = sorted(program.phases, key=lambda x: (solver.value(program.start[x]), program.phases.index(x)))
    moved = moves(program.instance, puts)
    start, end = timed(program.instance, puts, moved, order)
    period = max(end.values(), default=0.0)
    bound = max(0.0, solver.best_objective_bound - 2 * len(order)) * program.unit
    proto = solver.response_proto
    return Solution(
        puts,
        start,
        end,
        moved,
        period,
        period if is_optimal and period - bound < ROUNDING * period else min(bound, period),
        is_optimal,
        len(program.choice),
        proto.deterministic_time,
        _firsts(program, solver, puts),
    )


def _firsts(program: Program, solver: Any, puts: Mapping[str, Put]) -> dict[int, int]:
    """The first rank of each slot, where lines name ranks."""
    return {n: solver.value(program.firsts[n]) for n in {put.slot for put in puts.values()} if program.firsts}


def moves(instance: Instance, puts: Mapping[str, Put]) -> dict[str, Moved]:
    """The ways of new weights, by the generation that waits for them."""
    return {
        g: instance.move(instance.problem.phase(t).model, puts[t].spread, puts[g].spread, puts[t].slot == puts[g].slot)
        for t, g in instance.problem.sampled_after_training()
    }


def timed(
    instance: Instance, puts: Mapping[str, Put], moved: Mapping[str, Moved], order: list[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Start and end of each phase, as early as the order on each slot allows."""
    trained = {g: t for t, g in instance.problem.sampled_after_training()}
    free: dict[int, float] = {}
    start: dict[str, float] = {}
    end: dict[str, float] = {}
    for name in order:
        slots = {puts[name].slot, *([puts[trained[name]].slot] if name in moved else [])}
        way = moved[name].seconds if name in moved else 0.0
        ready = [end[a] for a in instance.problem.phase(name).after] + [
            free.get(s, 0.0) for s in slots if way or s == puts[name].slot
        ]
        start[name] = max(ready, default=0.0)
        end[name] = start[name] + way + puts[name].candidate.seconds
        free |= dict.fromkeys(slots if way else [], start[name] + way)
        free[puts[name].slot] = end[name]
    return start, end


def excess(puts: Mapping[str, Put], instance: Instance) -> float:
    """Bytes by which the fullest device of a placement exceeds its memory; 0 or less where it fits."""
    worst = float("-inf")
    for slot, room in {(put.slot, put.room) for put in puts.values()}:
        here = [put.candidate for put in puts.values() if put.slot == slot]
        worst = max(worst, sum(c.kept for c in here) + max(c.extra for c in here) - instance.area(room).memory)
    return worst
