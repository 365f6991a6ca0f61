"""Values at run time: packed data on frames. A frame is an axis with its rows: how many, and under which parent each.

There is no padding here. A value on `rollout.token` is one flat tensor over all tokens; its frame says which sample
each token belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .deals import Deal, joined
from .errors import RunError


class AxisError(RunError):
    """Values of strange axes were combined. The compiler refuses that, so only eager calls can meet it."""


@dataclass(eq=False)
class Frame:
    """The rows of one axis.

    name: `owner.kind`. parent: the frame above. index: [rows], the parent row of each row, in ascending order.
    ids: [rows], which draw each row is, for keyed noise: of a root the row's draw number, below it the sample's number.
    deal: of a root, where its rows lie on the ranks of a mesh; these here are this rank's. None: all rows are here.
    """

    name: str
    size: int
    parent: Frame | None = None
    index: Tensor | None = None
    ids: Tensor | None = None
    deal: Deal | None = None
    _paths: dict[int, Tensor] = field(default_factory=dict, repr=False)

    @property
    def kind(self) -> str:
        return self.name.rsplit(".", 1)[-1]

    def chain(self) -> list[Frame]:
        """This frame and all above it, innermost first."""
        return [self, *(self.parent.chain() if self.parent else [])]

    def row_name(self, row: int) -> str:
        """A row as the user can find it: of a read by its number since step 0, which no minibatch changes."""
        if self.parent is None and self.ids is not None:
            return f"row {int(self.ids[row])} of `{self.name}`"
        if self.numbers is not None:
            return f"row {int(self.numbers[row])} of `{self.name}`"
        top = self.chain()[-1]
        return f"a row of `{self.name}` under {top.row_name(int(self.path(top)[row]))}"

    @cached_property
    def numbers(self) -> Tensor | None:
        """[rows]: each row's number among those of all ranks; None where a rank doesn't know how many come before."""
        top = self.chain()[-1]
        if top.deal is None:
            return torch.arange(self.size)
        if self is top:
            return top.deal.mine()
        if self.parent is not top or self.kind != "sample" or self.index is None or not self.size:
            return None
        each = self.size // top.size  # a draw gives every prompt as many
        return top.deal.mine()[self.index] * each + torch.arange(self.size) % each

    def is_under(self, other: Frame | None) -> bool:
        return other is None or other in self.chain()

    def path(self, ancestor: Frame | None) -> Tensor:
        """[rows]: the row of `ancestor` that each row is under (0 everywhere for None, the whole)."""
        key = id(ancestor)
        if key not in self._paths:
            self._paths[key] = self._path(ancestor)
        return self._paths[key]

    def _path(self, ancestor: Frame | None) -> Tensor:
        if ancestor is self:
            return torch.arange(self.size)
        if ancestor is None:
            return torch.zeros(self.size, dtype=torch.long)
        if self.parent is None or self.index is None:
            raise AxisError(f"axis `{ancestor.name}` is not above `{self.name}`")
        return self.parent.path(ancestor)[self.index]

    @cached_property
    def lengths(self) -> Tensor:
        """[parent rows]: how many rows each parent has."""
        assert self.parent is not None and self.index is not None
        return torch.bincount(self.index, minlength=self.parent.size)

    def child(self, name: str, lengths: Sequence[int] | Tensor) -> Frame:
        """A frame with `lengths[i]` rows under row i."""
        counts = torch.as_tensor(lengths, dtype=torch.long)
        return Frame(name, int(counts.sum()), self, torch.repeat_interleave(torch.arange(self.size), counts))

    def is_like(self, other: Frame) -> bool:
        """Whether both are the same rows of the same parent."""
        pairs = ((self.index, other.index), (self.ids, other.ids))
        same = all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)
        same = same and (self.name, self.size) == (other.name, other.size) and self.parent is other.parent
        return same and _is_same_deal(self.deal, other.deal)

    def find(self, kind_or_name: str) -> Frame:
        """The innermost frame of that kind or name, this one or above it. Raises AxisError."""
        for frame in self.chain():
            if kind_or_name in (frame.name, frame.kind):
                return frame
        raise AxisError(f"no `{kind_or_name}` axis here; there are {', '.join(f.name for f in self.chain())}")


def root(name: str, size: int, ids: Tensor | None = None) -> Frame:
    """The frame of rows that a `read` gave."""
    return Frame(name, size, ids=torch.arange(size) if ids is None else ids)


def dealt(name: str, deal: Deal) -> Frame:
    """The frame of this rank's rows of a root."""
    mine = deal.mine()
    return Frame(name, len(mine), ids=deal.ids[mine], deal=deal)


def _is_same_deal(a: Deal | None, b: Deal | None) -> bool:
    return a is b or (a is not None and b is not None and a.is_like(b))


Data: TypeAlias = Tensor | list[Any]


@dataclass(frozen=True, eq=False)
class Value:
    """Data on a frame, one element per row: a tensor, or a list of texts and other objects. No frame: a scalar."""

    data: Data
    frame: Frame | None = None

    @property
    def tensor(self) -> Tensor:
        assert isinstance(self.data, Tensor), "this value holds no numbers"
        return self.data

    @property
    def rows(self) -> list[Any]:
        """The elements as Python objects."""
        return self.data.tolist() if isinstance(self.data, Tensor) else self.data

    def detach(self) -> Value:
        return replace(self, data=self.data.detach()) if isinstance(self.data, Tensor) else self

    def on(self, frame: Frame | None) -> Value:
        """This value broadcast down to `frame`."""
        if frame is self.frame:
            return self
        if frame is None or not frame.is_under(self.frame):
            mine, other = (f.name if f else "a scalar" for f in (self.frame, frame))
            raise AxisError(f"`{mine}` does not broadcast to `{other}`")
        if self.frame is None:
            whole = self.data.expand(frame.size) if isinstance(self.data, Tensor) else self.data * frame.size
            return Value(whole, frame)
        return Value(take(self.data, frame.path(self.frame)), frame)


@dataclass(frozen=True, eq=False)
class Record:
    """Named values on one frame and those under it: the rows of a read, a rollout, tokenised columns.

    hidden: what phases need and flows can't see (`context`: prompt token ids per row).
    writer: the role whose tokenizer made the token ids.
    """

    kind: str
    frame: Frame
    fields: dict[str, Value]
    hidden: dict[str, Value] = field(default_factory=dict)
    writer: str | None = None

    def map(self, fn: Callable[[Value], Value], frame: Frame) -> Record:
        fields, hidden = ({k: fn(v) for k, v in part.items()} for part in (self.fields, self.hidden))
        return replace(self, frame=frame, fields=fields, hidden=hidden)


Any_: TypeAlias = Value | Record


def take(data: Data, rows: Tensor) -> Data:
    """The elements of `rows`, in that order."""
    if isinstance(data, Tensor):
        return data[rows]
    return [data[i] for i in rows.tolist()]


def innermost(frames: Iterable[Frame | None]) -> Frame | None:
    """The frame that all others are above. Raises AxisError for strangers."""
    found: Frame | None = None
    for frame in frames:
        if frame is None or (found is not None and found.is_under(frame)):
            continue
        if not frame.is_under(found):
            raise AxisError(f"`{frame.name}` and `{found.name if found else ''}` are strangers")
        found = frame
    return found


# ---------------------------------------------------------------- taking some rows


class Selection:
    """Some rows of a frame, in a given order, and with them everything under them.

    Values above the frame, and values of other hierarchies, stay as they are.
    """

    def __init__(
        self,
        base: Frame,
        rows: Tensor,
        parent: Frame | None = None,
        name: str | None = None,
        known: Callable[[Frame], Frame] = lambda frame: frame,
        deal: Deal | None = None,
    ) -> None:
        """parent, name: of the new frame; by default those of `base`, so that rows keep what they are under.

        known: the frame to take for a new one, where its rows have been taken before.
        deal: of the new frame, if that is a root and other ranks take their part of the same rows (see `cut`).
        """
        above = parent or base.parent
        index = None
        if above is not None:
            index = rows if parent is not None else base.index[rows] if base.index is not None else None
        ids = base.ids[rows] if base.ids is not None else None
        self.base = base
        self.frame = known(Frame(name or base.name, len(rows), above, index, ids, deal))
        self._known = known
        self._made: dict[int, tuple[Frame, Tensor]] = {id(base): (self.frame, rows)}
        self._keep: list[Frame] = [base]

    def of(self, frame: Frame, rename: Callable[[str], str] | None = None) -> tuple[Frame, Tensor]:
        """The rows of a frame under the base that remain: (new frame, old rows)."""
        if id(frame) not in self._made:
            self._made[id(frame)] = self._below(frame, rename)
            self._keep.append(frame)
        return self._made[id(frame)]

    def _below(self, frame: Frame, rename: Callable[[str], str] | None) -> tuple[Frame, Tensor]:
        assert frame.parent is not None and frame.index is not None
        parent, kept = self.of(frame.parent, rename)
        position = torch.full((frame.parent.size,), -1)
        position[kept] = torch.arange(len(kept))
        place = position[frame.index]
        rows = torch.nonzero(place >= 0)[:, 0]
        rows = rows[torch.argsort(place[rows], stable=True)]
        ids = frame.ids[rows] if frame.ids is not None else None
        name = rename(frame.name) if rename else frame.name
        return self._known(Frame(name, len(rows), parent, place[rows], ids)), rows

    def __call__(self, value: Any_) -> Any_:
        """The remaining rows of a value."""
        if isinstance(value, Record):
            if not value.frame.is_under(self.base):
                return value
            return value.map(self._value, self.of(value.frame)[0])
        return self._value(value)

    def _value(self, value: Value) -> Value:
        if value.frame is None or not value.frame.is_under(self.base):
            return value
        frame, rows = self.of(value.frame)
        return Value(take(value.data, rows), frame)


def cut(frame: Frame, positions: Tensor) -> Selection:
    """The rows of a root at global positions, in that order: of those, this rank's. All ranks cut alike."""
    if frame.deal is None:
        return Selection(frame, positions)
    return Selection(frame, frame.deal.local(positions), deal=frame.deal.take(positions))


def keep_rows(
    record: Record,
    name: str,
    kept: Tensor,
    tokens: str | None,
    known: Callable[[Frame], Frame] = lambda frame: frame,
) -> Record:
    """`keep(record, where=…)`: a child axis of 0 or 1 rows per row. kept: [rows] bool. known: see `Selection`."""
    selection = Selection(record.frame, torch.nonzero(kept)[:, 0], parent=record.frame, name=name, known=known)

    def move(value: Value) -> Value:
        assert value.frame is not None
        frame, rows = selection.of(value.frame, rename=lambda old: tokens or old)
        return Value(take(value.data, rows), frame)

    return record.map(move, selection.frame)


# ---------------------------------------------------------------- putting rounds together


class Concatenation:
    """Values of several rounds as one: rows one round after another, children with their parents."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], Frame] = {}
        self._keep: list[Frame] = []

    def __call__(self, parts: Sequence[Any_]) -> Any_:
        first = parts[0]
        if isinstance(first, Record):
            records = [p for p in parts if isinstance(p, Record)]
            fields = {k: self._value([r.fields[k] for r in records]) for k in first.fields}
            hidden = {k: self._value([r.hidden[k] for r in records]) for k in first.hidden}
            return replace(first, frame=self._frame([r.frame for r in records]), fields=fields, hidden=hidden)
        return self._value([p for p in parts if isinstance(p, Value)])

    def _value(self, parts: Sequence[Value]) -> Value:
        if parts[0].frame is None:
            return parts[-1]
        frame = self._frame([p.frame for p in parts if p.frame is not None])
        filled = [p for p in parts if len(p.data)] or parts[:1]  # a column without rows says nothing about its kind
        if all(isinstance(p.data, Tensor) for p in filled):
            return Value(torch.cat([p.tensor for p in filled]), frame)
        return Value([x for p in filled for x in p.rows], frame)

    def _frame(self, parts: Sequence[Frame]) -> Frame:
        key = tuple(id(p) for p in parts)
        if key not in self._made:
            self._keep += parts
            self._made[key] = self._joined(parts)
        return self._made[key]

    def _joined(self, parts: Sequence[Frame]) -> Frame:
        ids = torch.cat([p.ids for p in parts if p.ids is not None]) if parts[0].ids is not None else None
        size = sum(p.size for p in parts)
        above = [p.parent for p in parts if p.parent is not None]
        if not above:
            deals = [p.deal for p in parts if p.deal is not None]
            return Frame(parts[0].name, size, ids=ids, deal=joined(deals) if deals else None)
        offsets = [sum(a.size for a in above[:i]) for i in range(len(above))]
        index = torch.cat([p.index + o for p, o in zip(parts, offsets, strict=True) if p.index is not None])
        return Frame(parts[0].name, size, self._frame(above), index, ids)
