"""The search as a constraint program: phases × slots × sizes × layouts, in time and memory.

Booleans say which candidate a phase has on which slot; optional intervals that don't overlap say when. New weights
come at the front of their generation, which they make longer: how long is a table over (how they lie where they are
trained, where they are wanted, on the same slot or not).
"""

from collections.abc import Mapping

from ..instance import Instance
from .choices import add_choices, add_memory, add_sharing, add_slots
from .lines import add_requests
from .timing import add_intervals, add_times
from .variables import Program
from .weights import add_weights, moves_of

__all__ = ["Program", "build", "build_untimed"]

UNITS = 100_000
"""Units of time in the longest schedule: seconds are rounded up to them."""


def build_untimed(instance: Instance) -> Program:
    """Only where phases are and what that takes in memory: whether there is any placement. Requests hold by guards."""
    from ortools.sat.python import cp_model

    p = Program(instance, cp_model.CpModel(), 1.0, 1)
    add_choices(p)
    add_slots(p)
    add_sharing(p)
    add_memory(p)
    add_requests(p)
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
    add_choices(p)
    add_slots(p)
    add_sharing(p)
    add_memory(p)
    add_times(p)
    add_weights(p)
    add_intervals(p)
    add_requests(p)
    p.model.minimize(p.period)
    return p


def _longest(instance: Instance) -> float:
    """Seconds in which every phase, one after the other and each at its slowest, has surely ended."""
    each = (max((c.seconds for cs in by.values() for c in cs), default=0.0) for by in instance.choices.values())
    return sum(each) + sum(_slowest_move(instance, t, g) for t, g in instance.problem.sampled_after_training())


def _slowest_move(instance: Instance, train: str, generate: str) -> float:
    found = [m for rows in moves_of(instance, train, generate).values() for m in rows]
    return max(found, default=0.0)
