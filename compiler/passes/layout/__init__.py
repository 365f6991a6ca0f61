"""Lay out: a plan for one process → one SPMD program for many ranks, with its data moves and weight moves inserted.

The rows of a root axis (the prompts of a `read`, with all samples and tokens under them) are dealt to the ranks of a
mesh: evenly before their lengths are known, by length where a model reads them. An operator runs where its rows are. A
reduction over rows that lie apart gives partial statistics, and an `all_reduce` follows; what must see all rows gets a
`gather` before it and an `own` behind it. A group never lies apart: its root row is on one rank.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ... import plan as p
from ...placement import Placement, Spot
from .holdings import Holdings
from .moves import finished
from .regions import Layer
from .scope import Scope
from .sites import Site


def lay_out(plan: p.Plan, placement: Placement) -> p.Plan:
    """The plan for `placement.ranks` ranks. Its size does not depend on how many there are."""
    world = Spot(0, placement.ranks, placement.ranks)
    layer = Layer(plan, Holdings(plan, placement), world.mesh, {n: s.mesh for n, s in placement.spots.items()})
    queued: list[_Queued] = []
    for each in plan.ahead:
        queued.append(_run_ahead(layer, each, _after(queued if each.source else (), plan), plan))
    step = _after(queued, plan)
    layer.block(plan.program, step)
    fields = layer.fields.settled()
    program = finished(step.block, fields)
    ahead = tuple(
        p.Ahead(
            a.staleness,
            finished(q.scope.block[: q.drawn], fields),
            q.wanted([*program, *_behind(plan.ahead[n + 1 :], queued[n + 1 :], fields)], plan),
            finished(q.scope.block[q.drawn :], fields),
            a.source,
        )
        for n, (a, q) in enumerate(zip(plan.ahead, queued, strict=True))
    )
    every = [*program, *(i for a in ahead for i in (*a.program, *a.exchange))]
    meshes = _meshes(every, [world, *layer.holdings.spots(), *placement.spots.values()], world)
    return p.sealed(
        msgspec.structs.replace(
            plan,
            target="multi",
            ranks=placement.ranks,
            ahead=ahead,
            program=program,
            meshes=meshes,
            holdings=layer.holdings.all,
            groups=_groups(every, meshes),
        )
    )


@dataclass
class _Queued:
    """What runs ahead, laid out. drawn: where in the block the moves to those who will read it begin.

    is_made_of: of draws of another queue.
    """

    scope: Scope
    names: Sequence[str]
    drawn: int
    is_made_of: bool

    def _copies(self) -> list[tuple[tuple[str, Site], str]]:
        """The copies of what waits in the queue.

        Of what is made of draws those come first that were moved: who reads it would else wait for who made it.
        """
        found = [(key, copy) for key, copy in self.scope.copies.items() if key[0] in self.names]
        return found[::-1] if self.is_made_of else found

    def kept(self, plan: p.Plan) -> list[tuple[str, str, Site]]:
        """The copies of the values that wait in a queue, each with its root axis and where it lies.

        What nobody reads is still kept where other rows are moved to as these were dealt.
        """
        return [(copy, plan.root(self.scope.made[name].axis) or "", s) for (name, s), copy in self._copies()]

    def wanted(self, later: Iterable[p.Instruction], plan: p.Plan) -> tuple[str, ...]:
        """The copies that instructions after the queue read, or to whose rows they move others."""
        inner = [x for i in later for x in i.walk()]
        read = {r for x in inner for r in x.reads}
        joined = {(x.attrs["axis"], x.mesh, x.layout) for x in inner if x.op == "move" and x.attrs["deal"] == "known"}
        return tuple(c for c, axis, s in self.kept(plan) if c in read or (axis, s.mesh, s.layout) in joined)

    def hand_over(self, step: Scope, plan: p.Plan) -> None:
        """Make what comes out of the queue known to the step."""
        for (name, site), copy in self._copies():
            step.made[name] = self.scope.made[name]
            step.copies[name, site] = copy
            step.used.add(copy)
        step.dealt |= {(axis, site) for _, axis, site in self.kept(plan) if site.is_dealt}


def _behind(
    ahead: Iterable[p.Ahead], queued: Iterable[_Queued], fields: Mapping[str, set[str]]
) -> Iterator[p.Instruction]:
    """The instructions of those blocks that make more of draws in a queue."""
    for each, q in zip(ahead, queued, strict=True):
        if each.source:
            yield from finished(q.scope.block, fields)


def _after(queued: Iterable[_Queued], plan: p.Plan) -> Scope:
    """A block that begins with what comes out of queues."""
    scope = Scope()
    for each in queued:
        each.hand_over(scope, plan)
    return scope


def _run_ahead(layer: Layer, ahead: p.Ahead, scope: Scope, plan: p.Plan) -> _Queued:
    """News and moves wait until the step is done, which other meshes are busy with meanwhile."""
    layer.block(ahead.program, scope)
    news = [s for s in scope.block if isinstance(s, p.Instruction) and s.op == "announce"]
    scope.block = [s for s in scope.block if s not in news]
    drawn = len(scope.block)
    scope.block += news
    for name in ahead.keeps:
        layer.keep_all_fields(scope, name)
        if ahead.source:
            layer.announce(scope, name, _updates_of(name, plan))
    layer.flush_all(scope)
    return _Queued(scope, ahead.keeps, drawn, ahead.source is not None)


def _updates_of(name: str, plan: p.Plan) -> list[str]:
    """The models whose updates in the step read a value, or what is made of it."""
    made, models = {name}, []
    for i in (i for i in plan.program if made & {r for x in i.walk() for r in x.reads}):
        made |= {x.out for x in i.walk()}
        models += [x.attrs["model"] for x in i.walk() if x.op == "update"]
    return models


def _meshes(program: Iterable[p.Instruction], spots: Iterable[Spot], world: Spot) -> tuple[p.Mesh, ...]:
    """The meshes in use, that of all ranks first."""
    used = {x.mesh for i in program for x in i.walk()} | {world.mesh}
    found = {s.mesh: p.Mesh(s.mesh, s.ranks, s.first) for s in spots}
    return tuple(m for m in found.values() if m.name in used)


def _groups(program: Iterable[p.Instruction], meshes: Sequence[p.Mesh]) -> tuple[p.Group, ...]:
    """Every mesh, and every group that an instruction names, in the order of the plan; the first is of all ranks."""
    names = [*(m.name for m in meshes), *(g for i in program for x in i.walk() for g in x.groups)]
    return tuple(p.Group(name, tuple(name.split("+"))) for name in dict.fromkeys(names))
