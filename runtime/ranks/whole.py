"""Rows of all ranks on every rank, for what must see them together, and each rank's own rows of that again.

What all ranks have is replicated, and so is its gradient: every rank has the whole of it. A rank's own rows have only
its own part of the gradient. Between the two stand pairs of functions: going one way communicates forward, going the
other backward (f and g in Shoeybi et al., "Megatron-LM", 2019, figure 3).
"""

from collections.abc import Mapping
from typing import Any, overload

import msgspec
import torch
from torch import Tensor

from ..deals import Deal
from ..errors import RunError
from ..values import Any_, AxisError, Frame, Record, Value, take
from .channel import Channel, as_bytes
from .packing import Cargo, Known, Layout, assembled, root_of, unpack

# ---------------------------------------------------------------- whole


class _Parcel(msgspec.Struct, frozen=True):
    """All rows of a rank. error: why it has none to give."""

    layout: Layout | None = None
    message: bytes = b""
    error: str = ""


def gather(
    values: Mapping[str, Any_], channel: Channel, what: str, known: Known = lambda frame: frame
) -> dict[str, Any_]:
    """All rows of all ranks on every rank, in global order, on frames without a deal; differentiable.

    values: this rank's rows, all under one root. What all ranks have already stays as it is. known: see `Known`.
    """
    root = root_of(values)
    deal = root.deal
    if deal is None:
        return dict(values)
    told = channel.collect(msgspec.msgpack.encode(_parcel(values, root)), what)
    parcels = [msgspec.msgpack.decode(x, type=_Parcel) for x in told]
    error = next((x.error for x in parcels if x.error), None)
    if error is not None:  # everywhere, so that nobody waits for the rank that has it
        raise RunError(error)
    rows = [torch.nonzero(deal.owner == index)[:, 0] for index in range(channel.size)]
    full = [n for n, own in enumerate(rows) if len(own)] or [channel.index]
    layouts = {n: layout for n in full if (layout := parcels[n].layout) is not None}
    pieces = [unpack(layout, deal.ids[rows[n]], as_bytes(parcels[n].message)) for n, layout in layouts.items()]
    whole = assembled(pieces, torch.argsort(torch.cat([rows[n] for n in layouts])), None, known)
    with_gradient = {name for parcel in parcels if parcel.layout for name in _with_gradient(parcel.layout)}
    return {name: _linked(name, values[name], value, deal, with_gradient) for name, value in whole.items()}


def _parcel(values: Mapping[str, Any_], root: Frame) -> _Parcel:
    try:
        cargo = Cargo(values, root)
    except RunError as error:
        return _Parcel(error=str(error))
    return _Parcel(cargo.layout, cargo.pack(torch.arange(root.size)).numpy().tobytes())


def _with_gradient(layout: Layout) -> set[tuple[str, str]]:
    """The values, by name and field, that have a gradient on a rank."""
    return {
        (name, key)
        for name, v in layout.values.items()
        for key, n in v.fields.items()
        if layout.columns[n].has_gradient
    }


def _linked(name: str, own: Any_, whole: Any_, deal: Deal, with_gradient: set[tuple[str, str]]) -> Any_:
    """The whole value, whose gradient goes to this rank's rows of it."""
    if isinstance(own, Record) and isinstance(whole, Record):
        fields = {
            key: _joined(own.fields[key], value, deal) if (name, key) in with_gradient else value
            for key, value in whole.fields.items()
        }
        return Record(whole.kind, whole.frame, fields, whole.hidden, whole.writer)
    assert isinstance(own, Value) and isinstance(whole, Value)
    return _joined(own, whole, deal) if (name, "") in with_gradient else whole


def _joined(own: Value, whole: Value, deal: Deal) -> Value:
    assert whole.frame is not None
    rows = own_rows(whole.frame, deal)
    has_gradient = isinstance(own.data, Tensor) and own.data.requires_grad
    # A rank without rows may have no gradient. What is made of the whole has one on all ranks, or on none.
    source = own.tensor if has_gradient else whole.tensor[rows].requires_grad_()
    return Value(_applied(_Gather, source, whole.tensor, rows), whole.frame)


def _applied(function: type[torch.autograd.Function], *operands: object) -> Tensor:
    return function.apply(*operands)  # type: ignore[no-untyped-call, no-any-return]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, whole: Tensor, rows: Tensor) -> Tensor:
        ctx.rows = rows
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.rows], None, None


def own_rows(frame: Frame, deal: Deal) -> Tensor:
    """Which rows of a frame that holds all ranks' rows are this rank's."""
    return torch.nonzero(deal.owner[frame.path(frame.chain()[-1])] == deal.index)[:, 0]


# ---------------------------------------------------------------- own


@overload
def own(value: Value, frame: Frame, channel: Channel, what: str) -> Value: ...
@overload
def own(value: Record, frame: Frame, channel: Channel, what: str) -> Record: ...
def own(value: Any_, frame: Frame, channel: Channel, what: str) -> Any_:
    """This rank's rows of a value that every rank has whole; differentiable, and then all ranks go backward together.

    frame: this rank's part of the value's frame, or of one above or below it.
    """
    part = _Part(frame, channel, what)
    if isinstance(value, Record):
        return value.map(part, part.of(value.frame))
    return part(value)


class _Part:
    """This rank's part of what is whole. Frames that `frame` isn't under are made once."""

    def __init__(self, frame: Frame, channel: Channel, what: str) -> None:
        self._frames = {f.name: f for f in frame.chain()}
        self._deal, self._channel, self._what = frame.chain()[-1].deal, channel, what

    def __call__(self, value: Value) -> Value:
        if value.frame is None:
            return spread(value, self._channel, self._what)
        if self._deal is None:
            return value
        frame, rows = self.of(value.frame), own_rows(value.frame, self._deal)
        if isinstance(value.data, Tensor) and value.data.requires_grad:
            return Value(_applied(_Own, value.data, rows, self._channel, self._what), frame)
        return Value(take(value.data, rows), frame)

    def of(self, whole: Frame) -> Frame:
        """This rank's part of a frame."""
        if self._deal is None:
            return whole
        if whole.parent is None and not (whole.ids is not None and torch.equal(whole.ids, self._deal.ids)):
            raise AxisError(f"`{whole.name}` has other rows on this rank than on all together")
        if whole.name not in self._frames:
            self._frames[whole.name] = self._made(whole)
        return self._frames[whole.name]

    def _made(self, whole: Frame) -> Frame:
        assert whole.parent is not None and self._deal is not None
        frame = self.of(whole.parent).child(whole.name, whole.lengths[own_rows(whole.parent, self._deal)])
        frame.ids = whole.ids[own_rows(whole, self._deal)] if whole.ids is not None else None
        return frame


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, rows: Tensor, channel: Channel, what: str) -> Tensor:
        ctx.rows, ctx.shape, ctx.channel, ctx.what = rows, whole.shape, channel, what
        return whole[rows]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        whole = gradient.new_zeros(ctx.shape)
        whole[ctx.rows] = gradient
        ctx.channel.add(whole, ctx.what)  # every row comes from one rank, and zeros from all others
        return whole, None, None, None


# ---------------------------------------------------------------- scalars and statistics


def spread(value: Value, channel: Channel, what: str) -> Value:
    """A scalar that every rank has, for its own rows to read: of its gradient each rank has a part, which are added."""
    if isinstance(value.data, Tensor) and value.data.requires_grad:
        return Value(_applied(_Spread, value.data, channel, what), value.frame)
    return value


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scalar: Tensor, channel: Channel, what: str) -> Tensor:
        ctx.channel, ctx.what = channel, what
        return scalar.view_as(scalar)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        whole = gradient.clone()
        ctx.channel.add(whole, ctx.what)
        return whole, None, None


def gather_numbers(numbers: Tensor, channel: Channel, what: str) -> Tensor:
    """All ranks' numbers, [k] -> [ranks, k]; the gradient goes to this rank's own. All ranks have one, or none has."""
    told = torch.cat([numbers.detach(), numbers.new_tensor([float(numbers.requires_grad)])])
    whole = channel.gather(told, what)
    if not bool(whole[:, -1].any()):
        return whole[:, :-1]
    source = numbers if numbers.requires_grad else numbers.detach().requires_grad_()
    return torch.cat([whole[: channel.index, :-1], source[None], whole[channel.index + 1 :, :-1]])
