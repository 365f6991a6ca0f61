"""Solve a search exactly: the shortest period, the bound that proves it, and the placement that reaches it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .bounds import one_slot, within
from .dominance import reduced
from .instance import Candidate, Instance, Moved, Spread
from .program import Program, build

INSTALL = "pip install 'shardflow[plan]'"


class NoSolver(Exception):
    """OR-Tools isn't here."""

    def __init__(self) -> None:
        super().__init__(f"a placement is searched for with OR-Tools, which isn't installed: {INSTALL}")


@dataclass(frozen=True)
class Effort:
    """How long to search, in OR-Tools' deterministic time (about seconds), and the gap at which to stop."""

    time: float = 30.0
    gap: float = 0.0
    workers: int = 1


@dataclass(frozen=True)
class Put:
    """A phase's slot (its number), the devices of it, and what was chosen."""

    slot: int
    size: int
    candidate: Candidate

    @property
    def spread(self) -> Spread:
        return Spread(self.size, self.candidate.layout)


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

    @property
    def gap(self) -> float:
        """(period − bound) / period."""
        return max(0.0, self.period - self.bound) / self.period if self.period else 0.0


def solve(instance: Instance, effort: Effort | None = None) -> Solution | None:
    """The best placement; None if there is none. Raises NoSolver."""
    effort = effort or Effort()
    if any(not by_size for by_size in instance.choices.values()):
        return None
    first = _run(build(one_slot(instance)), Effort(1.0, 0.01))
    smaller = within(instance, first.period) if first else instance
    found = _run(build(reduced(smaller)), effort, first)
    return found or first


def is_possible(instance: Instance, effort: Effort | None = None) -> bool:
    """Whether there is any placement."""
    if any(not by_size for by_size in instance.choices.values()):
        return False
    return _run(build(instance, with_objective=False), effort or Effort(10.0)) is not None


def _run(program: Program, effort: Effort, hint: Solution | None = None) -> Solution | None:
    from ortools.sat.python import cp_model

    for guard in program.guards:
        program.model.add(guard == 1)
    if hint is not None:
        _hint(program, hint)
    solver = solver_for(effort)
    status = solver.solve(program.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return _read(program, solver, status == cp_model.OPTIMAL)


def solver_for(effort: Effort) -> Any:
    """A solver that gives the same answer in every run."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = effort.time
    solver.parameters.relative_gap_limit = effort.gap
    solver.parameters.num_workers = effort.workers
    solver.parameters.interleave_search = effort.workers > 1
    solver.parameters.random_seed = 1
    return solver


def _hint(program: Program, hint: Solution) -> None:
    for key, b in program.choice.items():
        put = hint.puts[key[0]]
        here = (put.slot, put.size) == key[1:3] and put.candidate == program.candidate(key)
        program.model.add_hint(b, int(here))


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
        period if is_optimal and period - bound < 1e-4 * period else min(bound, period),
        is_optimal,
        len(program.choice),
        proto.deterministic_time,
    )


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
