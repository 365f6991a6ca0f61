"""Snapshots: where no order reads every version before it is replaced, the old weights of a model are kept aside.

A region or an update stands in the order as a whole, so one that reads a model at version t, and must also come after
the statement that makes t+1, has no place. It then reads a copy of the model, taken at the front of its block. Copies
cost memory: as few models as possible get one, and only where a circle forces it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from ..graph import Node, Type
from ..ordering import Edges, ordered, path

MANY = 12
"""Models in one circle beyond which all of them are copied, rather than the fewest searched for."""


@dataclass(frozen=True)
class Before:
    """`reader` reads version t of `role`, which `writer` replaces: it comes first, or reads a snapshot."""

    reader: int
    writer: int
    role: str

    @property
    def edge(self) -> tuple[int, int]:
        return self.reader, self.writer


def snapshots(nodes: Sequence[int], fixed: Edges, before: Sequence[Before]) -> list[Before] | None:
    """The reads that a snapshot must serve so that an order exists; None if not even snapshots give one."""
    edges = {*fixed, *(b.edge for b in before)}
    if ordered(nodes, edges) is not None:
        return []
    if ordered(nodes, fixed) is None:
        return None
    circular = [b for b in before if path(edges, b.writer, b.reader)]
    for roles in _choices(sorted({b.role for b in circular})):
        served = [b for b in circular if b.role in roles]
        rest = {*fixed, *(b.edge for b in before if b not in served)}
        if ordered(nodes, rest) is not None:
            return served
    return circular


def _choices(roles: Sequence[str]) -> Iterator[Iterable[str]]:
    """Sets of roles, the smallest first."""
    for size in range(1, len(roles)) if len(roles) <= MANY else ():
        yield from combinations(roles, size)


def reads_snapshot(node: Node, role: str) -> Node:
    """The same node, all its reads of version t of the role marked as reads of the snapshot."""
    body = tuple(reads_snapshot(n, role) for n in node.body)
    key = "source" if node.op == "next_model" else "model"
    marked = node.attrs.get(key) == role and node.attrs.get("version") == "now"
    return replace(node, body=body, attrs={**node.attrs, "snapshot": True} if marked else node.attrs)


def without_snapshots(node: Node) -> Node:
    """The same node where it runs before anything is replaced."""
    attrs: Mapping[str, object] = {k: v for k, v in node.attrs.items() if k != "snapshot"}
    return replace(node, attrs=attrs, body=tuple(without_snapshots(n) for n in node.body))


def taken(role: str, id: int, reader: Node) -> Node:
    """The statement that takes a snapshot."""
    return Node(id, "snapshot", f"%{id}", attrs={"model": role}, type=Type("none"), span=reader.span)
