"""Moves rows from the ranks that made them to those that read them, each byte once and straight.

First every rank tells what it has; then it knows who sends how many bytes to whom, and nobody has to ask.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..deals import Deal
from ..errors import RunError
from ..values import Any_, Frame
from .channel import Channel
from .manifest import Manifest, Statement, agree, completed, narrowed, state
from .packing import Cargo, Known, assembled, root_of, unpack

Dealing = Callable[[Tensor, Tensor], Tensor]
"""(ids, lengths) of all root rows -> owner, int64 [rows] each. lengths: the tokens under each row."""


def move(
    values: Mapping[str, Any_],
    fields: Mapping[str, Sequence[str]],
    *,
    axis: str,
    source: Channel | None,
    target: Channel | None,
    union: Channel,
    deal: Dealing | None,
    known: Known,
    root: Callable[[], Frame],
    what: str,
    site: str = "",
) -> dict[str, Any_]:
    """The values on the ranks of another mesh, or dealt otherwise on the same. All ranks of both call it.

    Args:
        values: on ranks of the source their own rows, by name, all under one root.
        fields: of a record, which of its fields travel; by default all. What is hidden always does.
        axis: the root's name.
        source, target: the mesh that has the rows, and the one that they go to; None on ranks outside.
        union: the ranks of both.
        deal: which rank of the target gets which rows, the same everywhere. None: they are dealt there already.
        known: see `Known`.
        root: where they are dealt already, the frame of those rows, on ranks of the target; it may have more of them.
        what: what messages about a wait call this.
        site: where the new root's rows lie, as its deal says it.

    Returns:
        On ranks of the target their own rows, by name; elsewhere nothing.
    """
    place = target.index if target is not None else -1
    held = root() if deal is None and target is not None else None
    cargo, statement = _loaded(values if source is not None else {}, fields, axis, place, held)
    manifest = agree(statement, union, what)
    owner = manifest.owner_held(axis) if deal is None else deal(manifest.ids, manifest.lengths)
    consumer = manifest.places[owner]
    outgoing = _outgoing(cargo, manifest, consumer, union.index)
    rows = _rows_from(manifest, consumer, union.index)
    incoming = {index: int(manifest.sizes[own].sum()) for index, own in rows.items() if index != union.index}
    messages = union.exchange(outgoing, incoming, what)
    if target is None:
        return {}
    pieces = [_piece(cargo, manifest, index, own, messages.get(index)) for index, own in rows.items()]
    order = torch.argsort(torch.cat([*rows.values()]))
    arrived = assembled(pieces, order, Deal(manifest.ids, owner, place, site), _or_held(known, held))
    return {name: completed(value) for name, value in arrived.items()}


def _loaded(
    values: Mapping[str, Any_], fields: Mapping[str, Sequence[str]], axis: str, place: int, held: Frame | None
) -> tuple[Cargo | None, Statement]:
    """What this rank may send, and what it tells of it."""
    if not values:
        return None, state(None, place, held)
    try:
        chosen = {name: narrowed(value, name, fields.get(name)) for name, value in values.items()}
        cargo = Cargo(chosen, root_of(chosen, axis))
    except RunError as error:
        return None, Statement(error=str(error))
    return cargo, state(cargo, place, held)


def _outgoing(cargo: Cargo | None, manifest: Manifest, consumer: Tensor, index: int) -> dict[int, Tensor]:
    """The message for each rank that gets rows from this one."""
    own = torch.nonzero(manifest.producer == index)[:, 0]
    messages: dict[int, Tensor] = {}
    for to in sorted({*consumer[own].tolist()} - {index}):
        rows = own[consumer[own] == to]
        assert cargo is not None
        messages[to] = cargo.pack(_local(manifest, rows, index))
        told = int(manifest.sizes[rows].sum())
        if messages[to].numel() != told:  # gloo would end the receiver, or take a short message for whole
            raise RuntimeError(f"{messages[to].numel()} bytes are packed for a message that was told to have {told}")
    return messages


def _rows_from(manifest: Manifest, consumer: Tensor, index: int) -> dict[int, Tensor]:
    """The global numbers of the rows that this rank gets from each, itself included; none from anybody is still none
    from one, whose layout they have."""
    own = torch.nonzero(consumer == index)[:, 0]
    producers = sorted({*manifest.producer[own].tolist()}) or [*manifest.layouts][:1]
    return {other: own[manifest.producer[own] == other] for other in producers}


def _piece(
    cargo: Cargo | None, manifest: Manifest, index: int, rows: Tensor, message: Tensor | None
) -> dict[str, Any_]:
    """The rows that came from one rank; those that were here all along have no message."""
    if message is not None:
        return unpack(manifest.layouts[index], manifest.ids[rows], message)
    assert cargo is not None
    return cargo.take(_local(manifest, rows, index))


def _local(manifest: Manifest, rows: Tensor, index: int) -> Tensor:
    """The numbers that rows have on the rank that has them."""
    return (torch.cumsum(manifest.producer == index, 0) - 1)[rows]


def _or_held(known: Known, held: Frame | None) -> Known:
    return lambda frame: held if held is not None and held.is_like(frame) else known(frame)
