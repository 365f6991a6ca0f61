"""Finishes moves: of a record only those fields travel that somebody reads where it arrives."""

from collections.abc import Iterable, Mapping

import msgspec

from ... import plan as p
from .scope import Move, Region, Statement

EVERY = "*"
"""In place of a field: all that a record has."""


class Fields:
    """Which fields of which copies of records are read, and from which copies they come."""

    def __init__(self) -> None:
        self._read: dict[str, set[str]] = {}
        self._made_of: list[tuple[str, str]] = []

    def read(self, copy: str, fields: Iterable[str]) -> None:
        self._read.setdefault(copy, set()).update(fields)

    def made_of(self, copy: str, source: str) -> None:
        """What is read of `copy` is read of `source`."""
        self._made_of.append((copy, source))

    def settled(self) -> Mapping[str, set[str]]:
        """The fields read of each copy, directly or through copies of it; made in order, so one pass back is enough."""
        for copy, source in reversed(self._made_of):
            self.read(source, self._read.get(copy, ()))
        return self._read


def finished(block: Iterable[Statement], fields: Mapping[str, set[str]]) -> tuple[p.Instruction, ...]:
    """The block as instructions, and those of its regions."""
    return tuple(_finished(s, fields) for s in block)


def _finished(statement: Statement, fields: Mapping[str, set[str]]) -> p.Instruction:
    match statement:
        case Move():
            return _move(statement, fields)
        case Region(instruction, block):
            return msgspec.structs.replace(instruction, body=finished(block, fields))
    return statement


def _move(move: Move, fields: Mapping[str, set[str]]) -> p.Instruction:
    wanted = {c: sorted(fields[c]) for c in move.values if c in fields and EVERY not in fields[c]}
    return p.Instruction(
        op="move",
        out=f"{move.axis}@{move.target.mesh}",
        args={copy: p.Value(source) for copy, source in move.values.items()},
        attrs={
            "axis": move.axis,
            "source": move.source.mesh,
            "deal": move.target.deal if move.is_new else "known",
            **({"fields": wanted} if wanted else {}),
        },
        mesh=move.target.mesh,
        layout=move.target.layout,
        groups=between(move.source.mesh, move.target.mesh),
    )


def between(*meshes: str) -> tuple[str, ...]:
    """The groups for talking between meshes: each of them, and all together."""
    return tuple(dict.fromkeys((*meshes, union(*meshes))))


def union(*meshes: str) -> str:
    """The name of the group of several meshes."""
    return "+".join(sorted(dict.fromkeys(meshes)))
