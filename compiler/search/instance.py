"""What the solver is given: candidates with their costs, sizes of slots, and what moves weights."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from msgspec.structs import astuple

from .decision import Bytes, Layout
from .problem import Problem

MOST_SLOTS = 4
"""Groups of devices that the search makes at most."""


@dataclass(frozen=True)
class Candidate:
    """One way to run a phase on a slot of a size: seconds and their parts, bytes per device by kind."""

    layout: Layout
    seconds: float
    resident: Bytes
    transient: Bytes
    parts: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def key(self) -> tuple[int, int, int, int]:
        """How the weights lie, whatever the micro-batches: phases that share weights have the same."""
        return (self.layout.tp, self.layout.pp, self.layout.dp, self.layout.fsdp)

    @cached_property
    def kept(self) -> float:
        """Bytes per device, all the time."""
        return sum(self.resident.values())

    @cached_property
    def extra(self) -> float:
        """Bytes per device while the phase runs."""
        return sum(self.transient.values())

    def rank(self) -> tuple[Any, ...]:
        """The fastest first; equals in a fixed order."""
        return (self.seconds, self.kept, self.extra, astuple(self.layout))


@dataclass(frozen=True)
class Spread:
    """How a model's weights lie: on a slot of so many devices, in a layout."""

    devices: int
    layout: Layout


@dataclass(frozen=True)
class Moved:
    """New weights on their way to an engine. bytes: into the busiest device."""

    bytes: float
    seconds: float


Mover = Callable[[str, Spread, Spread, bool], Moved]
"""What it takes to bring a model's weights from where it is trained to where it generates; True: on the same slot."""


@dataclass(frozen=True)
class Request:
    """A `place` line: what it asks of its phases. ranks: None for wherever. beside: the phase whose slot they share.

    degrees: of the layout, by name. recompute, sleeps: None where it says nothing.
    """

    label: str
    phases: tuple[str, ...]
    ranks: range | None = None
    degrees: Mapping[str, int] = field(default_factory=dict)
    micro: int | None = None
    recompute: bool | None = None
    sleeps: bool | None = None
    beside: str | None = None

    def allows(self, layout: Layout) -> bool:
        """Whether a layout is what the line asks for."""
        fits = all(getattr(layout, name) == value for name, value in self.degrees.items())
        fits &= self.micro in (None, layout.micro) or layout.micro == 0
        fits &= self.recompute in (None, layout.recompute)
        return fits and self.sleeps in (None, layout.sleeps)


Choices = Mapping[str, Mapping[int, tuple[Candidate, ...]]]
"""Candidates by phase and by the devices of its slot."""


@dataclass(frozen=True)
class Instance:
    """A search. devices: of the cluster; unit: of a node, to which slots are aligned. memory: bytes of a device."""

    problem: Problem
    devices: int
    unit: int
    memory: float
    choices: Choices
    move: Mover
    requests: tuple[Request, ...] = ()
    slots: int = MOST_SLOTS

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted({s for by_size in self.choices.values() for s in by_size}))

    @property
    def most_slots(self) -> int:
        """No more slots than phases that may be apart."""
        return max(1, min(self.slots, len(self.problem.phases)))


def pareto(candidates: Iterable[Candidate], by_key: bool) -> tuple[Candidate, ...]:
    """Without those that another is as good as in seconds, resident and transient bytes.

    by_key: compare only candidates whose weights lie alike, because something else depends on that.
    """
    found: dict[Any, list[Candidate]] = {}
    for c in sorted(candidates, key=Candidate.rank):
        rivals = found.setdefault(c.key if by_key else None, [])
        if not any(o.kept <= c.kept and o.extra <= c.extra for o in rivals):
            rivals.append(c)
    return tuple(sorted((c for cs in found.values() for c in cs), key=Candidate.rank))
