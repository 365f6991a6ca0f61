"""Rows as one message: the values of some root rows and of everything under them, packed without gaps.

A message holds, one after another: of each frame below the root, how many rows each parent row has and, where it has
them, its ids; then the columns. The bytes of a root row depend on no other row: their sum is the message's size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import msgspec
import torch
from torch import Tensor

from ..deals import Deal
from ..values import Any_, AxisError, Concatenation, Frame, Record, Selection, Value
from .columns import Column, decode, encode

Known = Callable[[Frame], Frame]
"""The frame to take for a new one, where its rows have been taken before."""

_INT = 8  # bytes of an int64


class FrameLayout(msgspec.Struct, frozen=True):
    """An axis. parent: the number of the frame above, -1 of the root."""

    name: str
    parent: int
    has_ids: bool


class ColumnLayout(msgspec.Struct, frozen=True):
    """Elements on a frame. dtype: of its tensor. shape: of one element of it."""

    frame: int
    kind: str
    dtype: str
    shape: tuple[int, ...]
    has_gradient: bool


class ValueLayout(msgspec.Struct, frozen=True):
    """A value, which has one field without a name, or a record. fields, hidden: column numbers. kind: of a record."""

    frame: int
    fields: dict[str, int]
    hidden: dict[str, int] = {}
    kind: str | None = None
    writer: str | None = None


class Layout(msgspec.Struct, frozen=True):
    """What a message holds. The first frame is the root; parents come before their children."""

    frames: tuple[FrameLayout, ...]
    columns: tuple[ColumnLayout, ...]
    values: dict[str, ValueLayout]


# ---------------------------------------------------------------- packing


@dataclass(frozen=True, eq=False)
class _Packable:
    value: Value
    column: Column
    layout: ColumnLayout


class Cargo:
    """Values ready to travel, all under one root. Raises RunError for what can't.

    What several names share travels once.

    Attributes:
        values, root: what it was given.
        layout: what its messages hold.
        sizes: int64 [root rows], the bytes of each.
    """

    def __init__(self, values: Mapping[str, Any_], root: Frame) -> None:
        self.values, self.root = values, root
        self._frames: list[Frame] = [root]
        self._columns: list[_Packable] = []
        self._numbers: dict[tuple[int, int], int] = {}
        layouts = {name: self._value(value, name) for name, value in values.items()}
        frames = tuple(self._frame_layout(f) for f in self._frames)
        self.layout = Layout(frames, tuple(c.layout for c in self._columns), layouts)
        self.sizes = self._sizes()

    def _value(self, value: Any_, name: str) -> ValueLayout:
        if isinstance(value, Value):
            column = self._column(value, name)
            return ValueLayout(self._columns[column].layout.frame, {"": column})
        fields, hidden = (
            {key: self._column(x, f"{name}.{key}") for key, x in part.items()} for part in (value.fields, value.hidden)
        )
        return ValueLayout(self._frame(value.frame), fields, hidden, value.kind, value.writer)

    def _column(self, value: Value, name: str) -> int:
        assert value.frame is not None
        key = id(value.data), id(value.frame)
        if key not in self._numbers:
            frame = self._frame(value.frame)
            column = encode(value.data, value.frame.path(self.root), name)
            dtype, shape = str(column.flat.dtype).removeprefix("torch."), tuple(column.flat.shape[1:])
            has_gradient = isinstance(value.data, Tensor) and value.data.requires_grad
            layout = ColumnLayout(frame, column.kind, dtype, shape, has_gradient)
            self._numbers[key] = len(self._columns)
            self._columns.append(_Packable(value, column, layout))
        return self._numbers[key]

    def _frame(self, frame: Frame) -> int:
        if frame not in self._frames:
            assert frame.parent is not None
            self._frame(frame.parent)
            self._frames.append(frame)
        return self._frames.index(frame)

    def _frame_layout(self, frame: Frame) -> FrameLayout:
        parent = self._frames.index(frame.parent) if frame.parent is not None else -1
        return FrameLayout(frame.name, parent, frame.ids is not None and frame.parent is not None)

    def _sizes(self) -> Tensor:
        sizes = torch.zeros(self.root.size, dtype=torch.long)

        def add(frame: Frame | None, each: Tensor | int) -> None:
            """The bytes of each row of a frame, to the root rows that they are under."""
            assert frame is not None
            each = torch.as_tensor(each).expand(frame.size)
            sizes.index_add_(0, frame.path(self.root), each)

        for frame, layout in zip(self._frames[1:], self.layout.frames[1:], strict=True):
            add(frame.parent, _INT)
            add(frame, _INT if layout.has_ids else 0)
        for packable in self._columns:
            add(packable.value.frame, packable.column.sizes())
        return sizes

    def take(self, rows: Tensor) -> dict[str, Any_]:
        """Some of the root's rows as `unpack` gives them."""
        selection = Selection(self.root, rows)
        return {name: selection(value) for name, value in self.values.items()}

    def pack(self, rows: Tensor) -> Tensor:
        """The message with some of the root's rows: uint8 [bytes]."""
        selection = Selection(self.root, rows)
        sections: list[Tensor] = []
        for old, layout in zip(self._frames[1:], self.layout.frames[1:], strict=True):
            frame, _ = selection.of(old)
            sections.append(frame.lengths)
            if layout.has_ids:
                assert frame.ids is not None
                sections.append(frame.ids)
        for packable in self._columns:
            assert packable.value.frame is not None
            sections += _sections(packable.column, selection.of(packable.value.frame)[1])
        return torch.cat([torch.zeros(0, dtype=torch.uint8), *map(_raw, sections)])


def _sections(column: Column, rows: Tensor) -> list[Tensor]:
    if column.lengths is None:
        return [column.flat[rows]]
    return [column.lengths[rows], torch.cat([column.flat[:0], *(column.pieces[row] for row in rows.tolist())])]


def _raw(tensor: Tensor) -> Tensor:
    """The bytes of a tensor: uint8 [bytes]."""
    flat = tensor.reshape(-1)
    if flat.stride(0) != 1:  # a single element may have any
        flat = torch.empty_like(flat, memory_format=torch.contiguous_format).copy_(flat)
    return flat.view(torch.uint8)


# ---------------------------------------------------------------- unpacking


class _Reader:
    """Takes tensors from the front of a message."""

    def __init__(self, message: Tensor) -> None:
        self._message, self._at = message, 0

    def take(self, rows: int, dtype: torch.dtype = torch.long, shape: tuple[int, ...] = ()) -> Tensor:
        size = rows * prod(shape) * dtype.itemsize
        raw = self._message[self._at : self._at + size].clone()  # no copy would be aligned to the dtype
        self._at += size
        return raw.view(dtype).reshape(rows, *shape)

    def column(self, layout: ColumnLayout, rows: int) -> Column:
        dtype: torch.dtype = getattr(torch, layout.dtype)
        if layout.kind == "tensor":
            return Column(layout.kind, self.take(rows, dtype, layout.shape))
        lengths = self.take(rows)
        return Column(layout.kind, self.take(int(lengths.clamp(min=0).sum()), dtype), lengths)


def unpack(layout: Layout, ids: Tensor, message: Tensor) -> dict[str, Any_]:
    """The values in a message, on frames of their own. ids: int64 [rows], of the root's rows in it."""
    reader = _Reader(message)
    frames = [Frame(layout.frames[0].name, len(ids), ids=ids)]
    for f in layout.frames[1:]:
        frame = frames[f.parent].child(f.name, reader.take(frames[f.parent].size))
        frame.ids = reader.take(frame.size) if f.has_ids else None
        frames.append(frame)
    columns = [Value(decode(reader.column(c, frames[c.frame].size)), frames[c.frame]) for c in layout.columns]
    return {name: _unpacked(value, frames, columns) for name, value in layout.values.items()}


def _unpacked(layout: ValueLayout, frames: list[Frame], columns: list[Value]) -> Any_:
    if layout.kind is None:
        return columns[layout.fields[""]]
    fields, hidden = ({key: columns[n] for key, n in part.items()} for part in (layout.fields, layout.hidden))
    return Record(layout.kind, frames[layout.frame], fields, hidden, layout.writer)


# ---------------------------------------------------------------- several messages as one


def assembled(pieces: Sequence[Mapping[str, Any_]], order: Tensor, deal: Deal | None, known: Known) -> dict[str, Any_]:
    """The rows of several messages as one value each. order: the numbers of all their root rows, as they come next."""
    join = Concatenation()
    joined = {name: join([piece[name] for piece in pieces]) for name in pieces[0]}
    selection = Selection(root_of(joined), order, known=known, deal=deal)
    return {name: selection(value) for name, value in joined.items()}


def root_of(values: Mapping[str, Any_], axis: str | None = None) -> Frame:
    """The root that all values are under."""
    roots = {name: value.frame.chain()[-1] for name, value in values.items() if value.frame is not None}
    stray = next((name for name in values if name not in roots or axis not in (None, roots[name].name)), None)
    if stray is not None:
        raise AxisError(f"`{stray}` has no rows under `{axis or 'a root'}`")
    if len(set(roots.values())) != 1:
        raise AxisError(f"{', '.join(f'`{name}`' for name in roots)} aren't under one root")
    return next(iter(roots.values()))
