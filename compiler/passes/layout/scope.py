"""What a block has so far: which values, and where copies of them lie."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ... import plan as p
from .sites import Site

LAZY = frozenset({"read", "field"})
"""What is made where it is wanted, instead of being moved there: rows of a file, and fields of a record."""

RECORDS = ("rows[", "rollout[", "sequences[", "record[")


@dataclass(eq=False)
class Move:
    """A move under construction: values on `axis` (a root) from one site to another, by the names of their copies."""

    axis: str
    source: Site
    target: Site
    is_new: bool
    values: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Region:
    """A region whose block is under construction."""

    instruction: p.Instruction
    block: list["Statement"]


Statement = p.Instruction | Move | Region
Route = tuple[str, Site, Site]
"""A root axis, and the sites that its rows leave and reach."""


@dataclass(eq=False)
class Scope:
    """A block and what is known in it. Copies that a nested block makes are only there in that block.

    made: instructions by the name of their result. copies: the name of a value's copy at a site. pending: values that
    will be moved as soon as one of them is wanted. dealt: the sites at which rows of a root axis lie. current: the
    holdings that have the newest weights. fixed: the site of everything in the block, in an update.
    """

    outer: "Scope | None" = None
    block: list[Statement] = field(default_factory=list)
    made: dict[str, p.Instruction] = field(default_factory=dict)
    copies: dict[tuple[str, Site], str] = field(default_factory=dict)
    pending: dict[Route, list[str]] = field(default_factory=dict)
    dealt: set[tuple[str, Site]] = field(default_factory=set)
    current: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    fixed: Site | None = None

    def chain(self) -> Iterator["Scope"]:
        here: Scope | None = self
        while here is not None:
            yield here
            here = here.outer

    def nested(self, fixed: Site | None = None) -> "Scope":
        return Scope(self, fixed=fixed or self.fixed)

    def find(self, name: str) -> p.Instruction:
        return next(s.made[name] for s in self.chain() if name in s.made)

    def copy(self, name: str, site: Site) -> str | None:
        return next((s.copies[name, site] for s in self.chain() if (name, site) in s.copies), None)

    def sites(self, name: str) -> list[Site]:
        """Where a value is, first where it was made."""
        found = [site for s in reversed(list(self.chain())) for (n, site) in s.copies if n == name]
        return list(dict.fromkeys(found))

    def awaited(self, name: str) -> list[Site]:
        """Where a value will be as soon as it is wanted there."""
        return [target for s in self.chain() for (_, _, target), names in s.pending.items() if name in names]

    def is_dealt(self, axis: str, site: Site) -> bool:
        return any((axis, site) in s.dealt for s in self.chain())

    def is_used(self, name: str) -> bool:
        return any(name in s.used for s in self.chain())

    def is_current(self, holding: str) -> bool:
        return any(holding in s.current for s in self.chain())

    def outdate(self, holdings: set[str]) -> None:
        for scope in self.chain():
            scope.current -= holdings


def is_record(i: p.Instruction) -> bool:
    return i.type.startswith(RECORDS)


def is_sequences(i: p.Instruction) -> bool:
    """Whether a model can read the value: a rollout, or tokenised columns."""
    return i.type.startswith(("rollout[", "sequences["))
