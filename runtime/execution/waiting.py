"""Queues of many ranks as one, for a commit, and dealt to the ranks again: any other layout can go on with the commit.

Beside the rows a commit says who had them. In the same layout they go back there, so that sums over them are the same
to the last bit; any other layout deals them anew.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from ...compiler.plan import Instruction, Plan, original
from ..deals import Deal
from ..ranks.channel import Alone, Channel
from ..ranks.manifest import tokens_under
from ..ranks.rows import move
from ..values import Any_, Frame, Selection
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
        return original(self.copy)

    @property
    def site(self) -> str:
        return site_of(self.made)

    @property
    def place(self) -> str:
        """What a commit calls the copy: the same only in the same layout."""
        return f"{self.copy}, {self.site}"


def _kept(plan: Plan) -> dict[int, list[_Kept]]:
    """What waits in each queue, by staleness."""
    roots = {x.out: root for x in plan.walk() if (root := plan.root(x.axis))}
    made = {out: x for a in plan.ahead for x in (*a.program, *a.exchange) for out in x.outs}
    return {a.staleness: [_Kept(c, made[c], roots[original(c)]) for c in a.keeps] for a in plan.ahead}


def _root_of(value: Any_) -> Frame:
    return next(f for f in frames_of(value) if f.parent is None)


# ---------------------------------------------------------------- whole


def collected_queues(session: Session, queues: Queues) -> Queues:
    """The queues with all ranks' rows, on the first rank; all ranks call it.

    Draws of several queues may be of the same prompts, and have to find themselves on the same frame again.
    """
    if not session.whole.groups:
        return queues
    kept, arrived = _kept(session.whole), list[Any_]()
    return {
        k: {n: _collected(session, kept[k], n, drawn, arrived) for n, drawn in q.items()} for k, q in queues.items()
    }


def _collected(session: Session, kept: Sequence[_Kept], number: int, drawn: Drawn, arrived: list[Any_]) -> Drawn:
    values: dict[str, Any_] = {}
    for each in {k.name: k for k in kept}.values():
        moved = _to_first(session, each, drawn, arrived)
        values |= moved
        arrived += moved.values()
    own = msgspec.msgpack.encode((drawn.logged, drawn.skip_updates, _owners(session, kept, drawn)))
    whole = Drawn(values)
    for said in session.world.channel("world").collect(own, f"the queue of step {number}"):
        logged, skips, owners = msgspec.msgpack.decode(said)
        whole.skip_updates |= skips
        whole.owners |= owners
        for name, numbers in logged.items():
            whole.logged.setdefault(name, []).extend(numbers)
    return whole


def _owners(session: Session, kept: Sequence[_Kept], drawn: Drawn) -> dict[str, list[int]]:
    """Who has the rows of the copies of which this rank is the first to know."""
    deals = {k.place: _root_of(drawn.values[k.copy]).deal for k in kept if session.speaks(k.made.mesh)}
    return {place: deal.owner.tolist() for place, deal in deals.items() if deal is not None}


def _to_first(session: Session, kept: _Kept, drawn: Drawn, arrived: Sequence[Any_]) -> dict[str, Any_]:
    source, first = session.member(kept.made.mesh), session.world.rank == 0
    has_rows = source is not None and (bool(kept.site) or source.index == 0)  # or else all have all rows
    target: Channel | None = Alone("rank0", 0) if first else None
    return move(
        {kept.name: drawn.values[kept.copy]} if has_rows else {},
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


def _frames(values: Sequence[Any_]) -> Iterator[Frame]:
    for value in values:
        yield from frames_of(value)


# ---------------------------------------------------------------- dealt


_Selections = dict[tuple[int, str], Selection]
"""This rank's rows of a root at a site: one for all values there, so that they stay on one frame."""


def distributed_queues(session: Session, queues: Queues) -> Queues:
    """This rank's rows of queues that hold all rows."""
    if not session.whole.groups:
        return queues
    kept, made = _kept(session.whole), _Selections()
    return {k: {n: _distributed(session, kept[k], n, drawn, made) for n, drawn in q.items()} for k, q in queues.items()}


def _distributed(session: Session, kept: Sequence[_Kept], number: int, drawn: Drawn, made: _Selections) -> Drawn:
    values: dict[str, Any_] = {}
    for each in kept:
        whole = drawn.values[each.name]
        if session.member(each.made.mesh) is not None:
            values[each.copy] = _own(session, each, number, drawn, made)(whole) if each.site else whole
    return Drawn(values, drawn.logged if session.world.rank == 0 else {}, drawn.skip_updates)


def _own(session: Session, kept: _Kept, number: int, drawn: Drawn, made: _Selections) -> Selection:
    root = _root_of(drawn.values[kept.name])
    key = (id(root), kept.site)
    if key not in made:
        channel = session.channel(kept.made.mesh)
        assert root.ids is not None
        deal = Deal(root.ids, _owner(session, kept, number, drawn, root), channel.index, kept.site)
        made[key] = Selection(root, deal.mine(), deal=deal)
    return made[key]


def _owner(session: Session, kept: _Kept, number: int, drawn: Drawn, root: Frame) -> Tensor:
    """[root rows]: who had each row when the commit was made, or in another layout, who gets it now."""
    if kept.place in drawn.owners:
        return torch.tensor(drawn.owners[kept.place], dtype=torch.long)
    under = [v for v in drawn.values.values() if _root_of(v) is root]
    return dealt_for(kept.made, kept.root, Env(session, Step(number)), tokens_under(under, root))
