"""The variables of the constraint program, and what they are known by."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..instance import Candidate, Instance, Lie, Room

SpreadKey = tuple[Room, Lie]
"""What a slot takes, and how weights lie on it."""

Key = tuple[str, int, Room, int]
"""Phase, slot, what the slot takes, number of the candidate."""


@dataclass
class Program:
    """A model under construction, and its variables. unit: seconds of a unit of time.

    choice: by Key; by_phase: the same. on: (phase, slot). room: (slot, what it takes; None: nothing). moving: of a
    generation, how long its weights take. guards: the literals that switch on what a request asks for, by the
    request's number. firsts: the first rank of each slot, where requests name ranks. slot: of each phase, where that
    is settled.
    """

    instance: Instance
    model: Any
    unit: float
    horizon: int
    choice: dict[Key, Any] = field(default_factory=dict)
    by_phase: dict[str, dict[Key, Any]] = field(default_factory=dict)
    on: dict[tuple[str, int], Any] = field(default_factory=dict)
    room: dict[tuple[int, Room | None], Any] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)
    total: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    moving: dict[str, Any] = field(default_factory=dict)
    together: dict[tuple[str, str], Any] = field(default_factory=dict)
    guards: list[Any] = field(default_factory=list)
    firsts: list[Any] = field(default_factory=list)
    period: Any = None
    slot: Mapping[str, int] | None = None

    @property
    def phases(self) -> tuple[str, ...]:
        return tuple(x.name for x in self.instance.problem.phases)

    @property
    def slots(self) -> range:
        return range(self.instance.most_slots)

    def candidate(self, key: Key) -> Candidate:
        phase, _, room, number = key
        return self.instance.choices[phase][room][number]

    def ticks(self, seconds: float) -> int:
        """Seconds in units of time, rounded up."""
        return max(0, math.ceil(seconds / self.unit - 1e-9))

    def of(self, phase: str, slot: int | None = None) -> Iterator[tuple[Key, Any]]:
        """The choices of a phase (on a slot)."""
        return ((k, b) for k, b in self.by_phase.get(phase, {}).items() if slot in (None, k[1]))

    def spread(self, key: Key) -> SpreadKey:
        """Where a choice puts weights, and how they lie."""
        return key[2], self.candidate(key).key
