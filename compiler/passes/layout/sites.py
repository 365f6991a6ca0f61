"""Where a value lies: on which mesh, and by which deal its rows are on which rank."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ... import plan as p

EVEN, LENGTH, WHOLE, SCALAR = "even", "length", "whole", "scalar"


@dataclass(frozen=True)
class Site:
    """deal: `even` or by `length`, each rank has its own rows; `whole`, every rank has all; `scalar`, no rows."""

    mesh: str
    deal: str

    @property
    def is_dealt(self) -> bool:
        return self.deal in (EVEN, LENGTH)

    @property
    def layout(self) -> str:
        """As a plan says it."""
        return {EVEN: "sharded evenly", LENGTH: "sharded by length", WHOLE: "replicated", SCALAR: "replicated"}[
            self.deal
        ]


PARTIAL = "partial"
"""The layout of statistics that are still to be combined."""


def read_in(block: Iterable[p.Instruction]) -> list[str]:
    """The names that a block reads from outside itself, in order."""
    inner = [x for i in block for x in i.walk()]
    made = {x.out for x in inner}
    return list(dict.fromkeys(r for x in inner for r in x.reads if r not in made))


def renamed(i: p.Instruction, names: Mapping[str, str]) -> dict[str, p.Operand]:
    """The operands with some values called by other names."""
    return {k: p.Value(names.get(a.ref, a.ref)) if isinstance(a, p.Value) else a for k, a in i.args.items()}
