"""Where each phase runs. Until clusters are searched there is one mesh, `local`, of one device."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import plan as p
from .graph import PHASES, Node

LOCAL = "local"
DEFAULT_MICRO = 16384
"""Token budget of a micro-batch where no `place` line gives one."""


@dataclass(frozen=True)
class Placement:
    """Options of each phase (`policy.update`, `policy.generate`), by name."""

    phases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

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


def _phase(node: Node) -> str | None:
    if node.op == "update":
        return f"{node.attrs['model']}.update"
    return f"{node.attrs['model']}.{node.op}" if node.op in PHASES else None
