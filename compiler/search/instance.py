"""What the solver is given: candidates with their costs, sizes of slots, and what moves weights."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from msgspec.structs import astuple

from .decision import Bytes, Layout
from .problem import Problem

MOST_SLOTS = 4
"""Groups of devices that the search makes at most."""


class Room(NamedTuple):
    """What a slot takes: so many devices of an area, by its number."""

    area: int
    devices: int


@dataclass(frozen=True)
class Area:
    """Devices among which slots are, alike: `devices` ranks from `first` on.

    unit: of a node, to which slots are aligned. memory: bytes of a device that may be used.
    """

    first: int
    devices: int
    unit: int
    memory: float

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.devices)


Lie = tuple[int, int, int, int, int]
"""How weights lie: tp, pp, dp, fsdp, ep."""


def lie_of(layout: Layout) -> Lie:
    """How a layout's weights lie."""
    return (layout.tp, layout.pp, layout.dp, layout.fsdp, layout.ep)


@dataclass(frozen=True)
class Candidate:
    """One way to run a phase on a slot of a size: seconds and their parts, bytes per device by kind."""

    layout: Layout
    seconds: float
    resident: Bytes
    transient: Bytes
    parts: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def key(self) -> Lie:
        """How the weights lie, whatever the micro-batches: phases that share weights have the same."""
        return lie_of(self.layout)

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
    """How a model's weights lie: on a slot, in a layout."""

    room: Room
    layout: Layout

    @property
    def devices(self) -> int:
        return self.room.devices


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


Choices = Mapping[str, Mapping[Room, tuple[Candidate, ...]]]
"""Candidates by phase and by what its slot takes."""


@dataclass(frozen=True)
class Instance:
    """A search. areas: of the cluster, each of devices that are alike. spans: areas across them, each for one slot."""

    problem: Problem
    areas: tuple[Area, ...]
    choices: Choices
    move: Mover
    requests: tuple[Request, ...] = ()
    slots: int = MOST_SLOTS
    spans: tuple[Area, ...] = ()

    @property
    def devices(self) -> int:
        return sum(area.devices for area in self.areas)

    @property
    def rooms(self) -> tuple[Room, ...]:
        """What slots may take, the smallest first."""
        return tuple(sorted({r for by in self.choices.values() for r in by}, key=lambda r: (r.devices, r.area)))

    def area(self, room: Room) -> Area:
        """Where a slot is that takes this."""
        return (*self.areas, *self.spans)[room.area]

    def is_on(self, room: Room, ranks: range) -> bool:
        """Whether a slot that takes this may be on just these ranks."""
        return room.devices == len(ranks) and is_within(ranks, self.area(room).ranks)

    def taken(self, room: Room, area: int) -> int:
        """Devices of an area that a slot takes: one in a span takes all of it."""
        if room.area < len(self.areas):
            return room.devices if room.area == area else 0
        return common(self.area(room).ranks, self.areas[area].ranks)

    @property
    def most_slots(self) -> int:
        """No more slots than phases that may be apart."""
        return max(1, min(self.slots, len(self.problem.phases)))


def is_within(ranks: range, others: range) -> bool:
    """Whether ranks are all among others."""
    return others.start <= ranks.start and ranks.stop <= others.stop


def common(ranks: range, others: range) -> int:
    """How many ranks are in both."""
    return max(0, min(ranks.stop, others.stop) - max(ranks.start, others.start))


def pareto(candidates: Iterable[Candidate], by_key: bool, requests: Iterable[Request] = ()) -> tuple[Candidate, ...]:
    """Without those that another is as good as in seconds, resident and transient bytes.

    by_key: compare only candidates whose weights lie alike, because something else depends on that. requests: compare
    only those that meet the same of them.
    """
    found: dict[Any, list[Candidate]] = {}
    asked = tuple(requests)
    for c in sorted(candidates, key=Candidate.rank):
        met = tuple(r.allows(c.layout) for r in asked)
        rivals = found.setdefault((met, c.key if by_key else None), [])
        if not any(o.kept <= c.kept and o.extra <= c.extra for o in rivals):
            rivals.append(c)
    return tuple(sorted((c for cs in found.values() for c in cs), key=Candidate.rank))
