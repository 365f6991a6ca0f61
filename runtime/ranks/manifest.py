"""What ranks tell each other before rows travel, so that everybody knows who sends how many bytes to whom.

Integers only: whatever a rank decides by them, the others decide too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import torch
from torch import Tensor

from ..errors import RunError
from ..values import Any_, Frame, Record, Value
from .channel import Channel
from .packing import Cargo, Layout


class Statement(msgspec.Struct, frozen=True):
    """What one rank tells.

    layout: of the messages it will send; None outside of the source. rows: int64 [4, rows], the global number, id,
    tokens and bytes of each of its root rows. place: its index in the target, -1 outside. held: of the target's first
    rank, int64 [2, rows], id and owner of the rows that are there. error: why it can't go on.
    """

    layout: Layout | None = None
    rows: bytes = b""
    place: int = -1
    held: bytes | None = None
    error: str = ""


def state(cargo: Cargo | None, place: int, held: Frame | None) -> Statement:
    there = _numbers(*_dealing(held)) if held is not None and place == 0 else None
    if cargo is None:
        return Statement(place=place, held=there)
    root = cargo.root
    assert root.ids is not None
    positions = root.deal.mine() if root.deal is not None else torch.arange(root.size)
    rows = _numbers(positions, root.ids, tokens_under(cargo.values.values(), root), cargo.sizes)
    return Statement(cargo.layout, rows, place, there)


def _dealing(frame: Frame) -> tuple[Tensor, Tensor]:
    """(ids, owner) of a root's rows."""
    assert frame.ids is not None
    return (frame.deal.ids, frame.deal.owner) if frame.deal else (frame.ids, torch.zeros_like(frame.ids))


def _numbers(*columns: Tensor) -> bytes:
    return torch.stack(columns).numpy().tobytes()


def _columns(numbers: bytes, count: int) -> Tensor:
    """int64 [count, rows]"""
    if not numbers:
        return torch.zeros(count, 0, dtype=torch.long)
    return torch.frombuffer(bytearray(numbers), dtype=torch.long).reshape(count, -1)


@dataclass(frozen=True, eq=False)
class Manifest:
    """What all ranks have told; rows in global order, ranks by their index in the union.

    ids, lengths, sizes: int64 [rows], of each root row, the tokens and the bytes under it. producer: int64 [rows], who
    has it. layouts: of the source's messages. places: int64 [target's ranks]. held: int64 [2, rows], see Statement.
    """

    ids: Tensor
    lengths: Tensor
    sizes: Tensor
    producer: Tensor
    layouts: Mapping[int, Layout]
    places: Tensor
    held: Tensor | None

    def owner_held(self, axis: str) -> Tensor:
        """[rows]: the index in the target of the rank that has the row already."""
        if self.held is None:
            raise RuntimeError(f"no rows of `{axis}` are there yet")
        ids, owner = self.held.unbind()
        order = torch.argsort(ids)
        at = torch.searchsorted(ids[order], self.ids).clamp(max=max(len(ids) - 1, 0))
        if not set(self.ids.tolist()) <= set(ids.tolist()):
            raise RuntimeError(f"other rows of `{axis}` are there")
        return owner[order[at]]


def agree(statement: Statement, union: Channel, what: str) -> Manifest:
    """Tell all ranks and hear them. Raises RunError everywhere if one can't go on, so that nobody waits for it."""
    told = [msgspec.msgpack.decode(x, type=Statement) for x in union.collect(msgspec.msgpack.encode(statement), what)]
    error = next((s.error for s in told if s.error), None)
    if error is not None:
        raise RunError(error)
    layouts = {index: s.layout for index, s in enumerate(told) if s.layout is not None}
    parts = [_columns(told[index].rows, 4) for index in layouts]
    numbers, ids, lengths, sizes = torch.cat(parts, 1)
    order = torch.argsort(numbers)
    if not torch.equal(numbers[order], torch.arange(len(numbers))):
        raise RuntimeError(f"{what}: a row is on several ranks, or on none")
    producer = torch.cat([torch.full((part.shape[1],), index) for index, part in zip(layouts, parts, strict=True)])
    places = {s.place: index for index, s in enumerate(told) if s.place >= 0}
    held = next((_columns(s.held, 2) for s in told if s.held is not None), None)
    targets = torch.tensor([places[n] for n in range(len(places))], dtype=torch.long)
    return Manifest(ids[order], lengths[order], sizes[order], producer[order], layouts, targets, held)


# ---------------------------------------------------------------- about values


def narrowed(value: Any_, name: str, fields: Sequence[str] | None) -> Any_:
    """A record with some of its fields, and without what they hold already (see `completed`)."""
    if isinstance(value, Value):
        return value
    wanted = list(value.fields) if fields is None else fields
    missing = next((f for f in wanted if f not in value.fields), None)
    if missing is not None:
        raise RunError(f"`{name}` has no `{missing}`; it has {', '.join(f'`{n}`' for n in value.fields)}")
    hidden = {k: v for k, v in value.hidden.items() if k != "response" or "tokens" not in wanted}
    return Record(value.kind, value.frame, {f: value.fields[f] for f in wanted}, hidden, value.writer)


def completed(value: Any_) -> Any_:
    """A record that has arrived, with the responses as lists of its tokens again."""
    tokens = value.fields.get("tokens") if isinstance(value, Record) and "context" in value.hidden else None
    if isinstance(value, Value) or tokens is None or "response" in value.hidden:
        return value
    assert tokens.frame is not None
    rows = torch.split(tokens.tensor, tokens.frame.lengths.tolist())
    responses = Value([row.tolist() for row in rows], value.frame)
    return replace(value, hidden={**value.hidden, "response": responses})


def tokens_under(values: Iterable[Any_], root: Frame) -> Tensor:
    """[root rows]: the tokens that models read under each row; without sequences, the rows of the innermost frame."""
    values = list(values)
    read = [_read_under(v, root) for v in values if isinstance(v, Record) and _is_read(v)]
    if read:
        return torch.stack(read).sum(0)
    inner = root
    for value in values:
        parts = value.fields.values() if isinstance(value, Record) else [value]
        inner = max((inner, *(p.frame for p in parts if p.frame is not None)), key=lambda frame: len(frame.chain()))
    return torch.bincount(inner.path(root), minlength=root.size)


def _is_read(record: Record) -> bool:
    """Whether a model can read the record's rows."""
    return "context" in record.hidden and ("response" in record.hidden or "tokens" in record.fields)


def _read_under(record: Record, root: Frame) -> Tensor:
    """[root rows]: the tokens of a record's contexts and responses."""
    lengths = torch.tensor([len(context) for context in record.hidden["context"].rows], dtype=torch.long)
    if "response" in record.hidden:
        lengths += torch.tensor([len(response) for response in record.hidden["response"].rows], dtype=torch.long)
    else:
        frame = record.fields["tokens"].frame
        assert frame is not None
        lengths += frame.lengths
    return torch.zeros(root.size, dtype=torch.long).index_add_(0, record.frame.path(root), lengths)
