"""Where each phase runs: on which ranks, how its weights lie there, and the options of its `place` line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import plan as p
from .graph import PHASES, Node

LOCAL = "local"
DEFAULT_MICRO = 16384
"""Token budget of a micro-batch where no `place` line gives one."""
DEFAULT_RANKS = 8
"""Ranks of a plan for many where nothing says how many: one node."""


@dataclass(frozen=True)
class Spot:
    """The ranks of a phase: `ranks` of them from `first` on, with `dp` copies of weights sharded over `fsdp` each."""

    first: int
    ranks: int
    dp: int
    fsdp: int = 1

    @property
    def mesh(self) -> str:
        """The name of its mesh: rows are dealt to ranks, whatever the degrees."""
        last = self.first + self.ranks - 1
        return f"rank{self.first}" if self.ranks == 1 else f"ranks{self.first}-{last}"


@dataclass(frozen=True)
class Placement:
    """Options of each phase (`policy.update`, `policy.generate`) by name; for many ranks also their spots.

    spots: of phases, and of values by their plain names. ranks: how many there are in all.
    """

    phases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    spots: Mapping[str, Spot] = field(default_factory=dict)
    ranks: int = 1

    @property
    def meshes(self) -> tuple[p.Mesh, ...]:
        return (p.Mesh(LOCAL, 1),)

    def mesh(self, node: Node) -> str:
        return LOCAL

    def options(self, node: Node) -> dict[str, Any]:
        """What `place` says of the phase a node is: its token budget, and what changes no number."""
        phase = _phase(node)
        if phase is None:
            return {}
        given = self.phases.get(phase, {})
        known = {k: given[k] for k in ("micro", "checkpointing", "compile", "engine") if k in given}
        return {"micro": DEFAULT_MICRO, **known}

    def spot(self, phase: str) -> Spot:
        """Where a phase runs: as its line says; else beside the update of its model; else on all ranks."""
        model, _, op = phase.partition(".")
        beside = None if op == "generate" else self.spots.get(f"{model}.update")
        return self.spots.get(phase) or beside or Spot(0, self.ranks, self.ranks)


def _phase(node: Node) -> str | None:
    if node.op == "update":
        return f"{node.attrs['model']}.update"
    return f"{node.attrs['model']}.{node.op}" if node.op in PHASES else None
