"""Queues of many ranks as one, for a commit, and dealt to the ranks again: a commit says nothing of where rows lie."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from ...compiler.plan import Instruction, Plan
from ..deals import Deal
from ..ranks.channel import Alone, Channel
from ..ranks.rows import move
from ..values import Any_, Frame, Record, Selection
from .ahead import Drawn, Queues
from .collectives import dealt_for
from .interpreter import Env, Step, frames_of, site_of
from .session import Session


@dataclass(frozen=True)
class _Kept:
    """A value that waits in a queue: the name of its copy, what made the copy there, and its root axis."""

    copy: str
    made: Instruction
    root: str

    @property
    def name(self) -> str:
        return self.copy.partition("@")[0]


def _kept(plan: Plan) -> dict[int, list[_Kept]]:
    """What waits in each queue, by staleness."""
    parents = {a.name: a.parent for a in plan.axes}
    types = {x.out: x.type for x in plan.walk() if x.type}
    made = {out: x for a in plan.ahead for x in (*a.program, *a.exchange) for out in x.outs}
    roots = {name: _root(type, parents) for name, type in types.items()}
    return {a.staleness: [_Kept(c, made[c], roots[c.partition("@")[0]]) for c in a.keeps] for a in plan.ahead}


def _root(type: str, parents: Mapping[str, str | None]) -> str:
    axis = type.rstrip("]").partition("[")[2]
    while (above := parents.get(axis)) is not None:
        axis = above
    return axis


# ---------------------------------------------------------------- whole


def collected_queues(session: Session, queues: Queues) -> Queues:
    """The queues with all ranks' rows, on the first rank; all ranks call it."""
    if not session.whole.groups:
        return queues
    kept = _kept(session.whole)
    return {k: {n: _collected(session, kept[k], n, drawn) for n, drawn in q.items()} for k, q in queues.items()}


def _collected(session: Session, kept: list[_Kept], number: int, drawn: Drawn) -> Drawn:
    arrived: dict[str, Any_] = {}
    for each in {k.name: k for k in kept}.values():
        arrived |= _to_first(session, each, drawn, arrived)
    said = session.world.channel("world").collect(
        msgspec.msgpack.encode((drawn.logged, drawn.skip_updates)), f"the queue of step {number}"
    )
    logged: dict[str, list[float]] = {}
    is_skipped = False
    for names, skips in map(msgspec.msgpack.decode, said):
        is_skipped |= skips
        for name, values in names.items():
            logged.setdefault(name, []).extend(values)
    return Drawn(arrived, logged, is_skipped)


def _to_first(session: Session, kept: _Kept, drawn: Drawn, arrived: Mapping[str, Any_]) -> dict[str, Any_]:
    source, first = session.member(kept.made.mesh), session.world.rank == 0
    target: Channel | None = Alone("rank0", 0) if first else None
    return move(
        {kept.name: drawn.values[kept.copy]} if source is not None else {},
        {},
        axis=kept.root,
        source=source,
        target=target,
        union=session.world.channel("world"),
        deal=lambda ids, lengths: torch.zeros_like(ids),
        known=lambda frame: next((f for f in _frames(arrived) if f.is_like(frame)), frame),
        root=_no_root,
        what=f"`{kept.name}` to the commit",
    )


def _no_root() -> Frame:
    raise KeyError("these rows are dealt anew")


def _frames(values: Mapping[str, Any_]) -> Iterator[Frame]:
    for value in values.values():
        yield from frames_of(value)


# ---------------------------------------------------------------- dealt


def distributed_queues(session: Session, queues: Queues) -> Queues:
    """This rank's rows of queues that hold all rows."""
    if not session.whole.groups:
        return queues
    kept = _kept(session.whole)
    return {k: {n: _distributed(session, kept[k], n, drawn) for n, drawn in q.items()} for k, q in queues.items()}


def _distributed(session: Session, kept: list[_Kept], number: int, drawn: Drawn) -> Drawn:
    values: dict[str, Any_] = {}
    selections: dict[tuple[int, str], Selection] = {}
    for each in kept:
        if session.member(each.made.mesh) is not None:
            whole = drawn.values[each.name]
            root = next(f for f in frames_of(whole) if f.parent is None)
            key = (id(root), each.made.mesh)
            if key not in selections:
                selections[key] = _selection(session, each, number, whole, root)
            values[each.copy] = selections[key](whole)
    return Drawn(values, drawn.logged if session.world.rank == 0 else {}, drawn.skip_updates)


def _selection(session: Session, kept: _Kept, number: int, whole: Any_, root: Frame) -> Selection:
    channel = session.member(kept.made.mesh)
    assert channel is not None and root.ids is not None
    owner = dealt_for(kept.made, kept.root, Env(session, Step(number)), _lengths(whole, root))
    deal = Deal(root.ids, owner, channel.index, site_of(kept.made))
    return Selection(root, deal.mine(), deal=deal)


def _lengths(whole: Any_, root: Frame) -> Tensor:
    """[root rows]: the tokens that a model reads under each."""
    counts = torch.zeros(root.size, dtype=torch.long)
    if isinstance(whole, Record) and {"context", "response"} <= whole.hidden.keys():
        pairs = zip(whole.hidden["context"].rows, whole.hidden["response"].rows, strict=True)
        counts.index_add_(
            0, whole.frame.path(root), torch.tensor([len(c) + len(r) for c, r in pairs], dtype=torch.long)
        )
    return counts
