"""The elements of a value as they travel: a flat tensor and, where they are of any length, the length of each.

Never pickle: what arrives may only be numbers, text, lists and dicts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from ..errors import RunError
from ..values import Data
from .channel import as_bytes

_PLAIN = (type(None), bool, int, float, str, bytes)


@dataclass(frozen=True, eq=False)
class Column:
    """The elements of a value, one per row.

    kind: "tensor"; or of a list: "ints" (lists of integers), "texts", "objects" (anything else, as msgpack).
    flat: of a tensor the elements, [rows, ...], else what all rows hold, one after another: integers or bytes.
    lengths: of a list, int64 [rows]: how much of `flat` each row is; -1: the same object as in the row before.
    """

    kind: str
    flat: Tensor
    lengths: Tensor | None = None

    def sizes(self) -> Tensor | int:
        """The bytes of each row: int64 [rows], or the same for all."""
        if self.lengths is None:
            return self.flat.element_size() * prod(self.flat.shape[1:])
        return self.lengths.clamp(min=0) * self.flat.element_size() + self.lengths.element_size()

    @cached_property
    def pieces(self) -> Sequence[Tensor]:
        """Of a list, each row's part of `flat`."""
        assert self.lengths is not None
        return torch.split(self.flat, self.lengths.clamp(min=0).tolist())


def encode(data: Data, groups: Tensor, name: str) -> Column:
    """A value's elements, ready to travel.

    groups: int64 [rows]; the rows of a group travel together, so that one may stand for the same in those after it: all
    samples of a prompt have the same context. name: of the value, for errors.
    """
    if isinstance(data, Tensor):
        return Column("tensor", data.detach().cpu())
    again = [n > 0 and data[n] is data[n - 1] for n in range(len(data))]
    if len(data):
        again = (torch.tensor(again) & (groups == groups.roll(1))).tolist()
    fresh = [x for x, seen in zip(data, again, strict=True) if not seen]
    kind, flat, counts = _flat(fresh, name)
    lengths = torch.full((len(data),), -1)
    lengths[~torch.tensor(again, dtype=torch.bool)] = torch.tensor(counts, dtype=torch.long)
    return Column(kind, flat, lengths)


def _flat(rows: list[Any], name: str) -> tuple[str, Tensor, list[int]]:
    """(kind, all rows one after another, the length of each)."""
    if all(type(x) is str for x in rows):
        return "texts", *_joined([x.encode(errors="surrogatepass") for x in rows])
    if all(type(x) is list for x in rows) and set(map(type, chain.from_iterable(rows))) <= {int}:
        numbers = _integers(list(chain.from_iterable(rows)))
        if numbers is not None:
            return "ints", numbers, [len(x) for x in rows]
    return "objects", *_joined([_packed(x, name) for x in rows])


def _integers(numbers: list[int]) -> Tensor | None:
    """As int32 if they fit, as token ids do; None if not even int64 holds them."""
    try:
        whole = np.array(numbers, dtype=np.int64)
    except OverflowError:
        return None
    small = whole.astype(np.int32)
    return torch.from_numpy(small if (small == whole).all() else whole)


def _joined(rows: list[bytes]) -> tuple[Tensor, list[int]]:
    return as_bytes(b"".join(rows)), [len(x) for x in rows]


def _packed(x: Any, name: str) -> bytes:
    strange = next(_strange(x), None)
    if strange is not None:
        raise RunError(
            f"`{name}` holds a `{strange}`, which can't travel between ranks: let the function that makes it return "
            "numbers, text, or lists and dicts of them"
        )
    try:
        return msgspec.msgpack.encode(x)
    except OverflowError:
        raise RunError(f"`{name}` holds an integer beyond 64 bits, which can't travel between ranks") from None


def _strange(x: Any) -> Any:
    """The names of the types in an object that would arrive as something else, or not at all."""
    if type(x) is list:
        for item in x:
            yield from _strange(item)
    elif type(x) is dict:
        for pair in x.items():
            yield from chain.from_iterable(map(_strange, pair))
    elif type(x) not in _PLAIN:
        yield type(x).__name__


def decode(column: Column) -> Data:
    """The elements that `encode` was given."""
    if column.lengths is None:
        return column.flat
    made = iter(_DECODERS[column.kind](column.flat, column.lengths[column.lengths >= 0].tolist()))
    rows: list[Any] = []
    for length in column.lengths.tolist():
        rows.append(next(made) if length >= 0 else rows[-1])
    return rows


def _slices(whole: Any, lengths: list[int]) -> list[Any]:
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    return [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]


_DECODERS: Mapping[str, Callable[[Tensor, list[int]], list[Any]]] = {
    "ints": lambda flat, lengths: _slices(flat.tolist(), lengths),
    "texts": lambda flat, lengths: [x.decode(errors="surrogatepass") for x in _slices(_bytes(flat), lengths)],
    "objects": lambda flat, lengths: [msgspec.msgpack.decode(x) for x in _slices(_bytes(flat), lengths)],
}


def _bytes(flat: Tensor) -> bytes:
    return flat.numpy().tobytes()
