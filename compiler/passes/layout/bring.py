"""Brings values to where they are wanted: made there, moved, gathered, dealt again, or told."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ... import plan as p
from .holdings import SCORING, Holdings
from .moves import EVERY, Fields, union
from .scope import LAZY, Move, Route, Scope, is_record
from .sites import EVEN, LENGTH, SCALAR, WHOLE, Site, renamed


class Courier:
    """Copies of values at sites, and the instructions that make them. world: the mesh of all ranks."""

    def __init__(self, plan: p.Plan, holdings: Holdings, world: str) -> None:
        self.plan, self.holdings, self.world = plan, holdings, world
        self.fields = Fields()
        self._readers = _readers(plan)
        self._whole_records: set[tuple[str, Site]] = set()

    # ------------------------------------------------------------ emitting

    def _emit(self, scope: Scope, i: p.Instruction, site: Site, out: str | None = None, **changes: Any) -> str:
        """Put an instruction into the block; its result is the copy at `site` of the value that it makes."""
        name = out or self._named(scope, i.out, site)
        groups = changes.pop("groups", ())
        layout = changes.pop("layout", site.layout if i.type else "")
        changed = msgspec.structs.replace(i, out=name, mesh=site.mesh, layout=layout, groups=groups, **changes)
        scope.block.append(changed)
        return name

    def _bind(self, scope: Scope, i: p.Instruction, site: Site, copy: str) -> None:
        scope.copies[i.out, site] = copy
        if is_record(i):
            self.fields.read(copy, ())

    def _named(self, scope: Scope, name: str, site: Site) -> str:
        """A name for a copy: the value's own for the first one, then with the mesh, then with the deal."""
        for candidate in (name, f"{name}@{site.mesh}", f"{name}@{site.mesh}.{site.deal}"):
            if not scope.is_used(candidate):
                break
        scope.used.add(candidate)
        return candidate

    # ------------------------------------------------------------ bringing values to a site

    def demand(self, scope: Scope, name: str, site: Site, fields: Iterable[str] = ()) -> str:
        """The name of a value's copy at a site, which is made if there is none yet."""
        i = scope.find(name)
        if i.axis is None:
            return self._scalar(scope, name, site.mesh)
        copy = self._arrived(scope, name, site) or self._fetched(scope, i, site)
        if is_record(i):
            self.fields.read(copy, fields)
        return copy

    def _arrived(self, scope: Scope, name: str, site: Site) -> str | None:
        if scope.copy(name, site) is None and site in scope.awaited(name):
            self._flush(scope, [r for s in scope.chain() for r, n in s.pending.items() if r[2] == site and name in n])
        return scope.copy(name, site)

    def _fetched(self, scope: Scope, i: p.Instruction, site: Site) -> str:
        if i.op in LAZY and (i.op == "field" or self._can_read(scope, i, site)):
            return self._made_there(scope, i, site)
        if site.deal == WHOLE:
            return self._gathered(scope, [i.out], site.mesh)[i.out]
        here = next(iter(scope.sites(i.out)), None)
        if here is None:  # rows of a file that lie nowhere yet
            here = Site(site.mesh, EVEN)
            self._made_there(scope, i, here)
        if here.deal == WHOLE and here.mesh == site.mesh:
            return self._owned(scope, i, here, site)
        if here.deal == WHOLE:  # each rank there has all rows: it sends its own
            here = next((s for s in scope.sites(i.out) if s.deal != WHOLE), Site(here.mesh, EVEN))
            self.demand(scope, i.out, here)
        self._expect(scope, i, here, site)
        copy = self._arrived(scope, i.out, site)
        assert copy is not None
        return copy

    def _can_read(self, scope: Scope, i: p.Instruction, site: Site) -> bool:
        """Rows of a file can be read wherever it is known which rows these are."""
        root = self.plan.root(i.axis)
        assert root is not None
        routes = [r for s in scope.chain() for r in s.pending if r[0] == root and r[2] == site]
        self._flush(scope, routes)
        return site.deal == EVEN or scope.is_dealt(root, site)

    def _made_there(self, scope: Scope, i: p.Instruction, site: Site) -> str:
        """A lazy value, made at the site itself."""
        names = {}
        if i.op == "field":
            record = i.reads[0]
            names[record] = self.demand(scope, record, site, (str(i.attrs["field"]),))
        copy = self._emit(scope, i, site, args=renamed(i, names))
        self._bind(scope, i, site, copy)
        if i.op == "read":
            scope.dealt.add((f"{i.out}.prompt", site))
        return copy

    def _scalar(self, scope: Scope, name: str, mesh: str) -> str:
        for site in (Site(mesh, SCALAR), Site(self.world, SCALAR)):
            if (found := scope.copy(name, site)) is not None:
                return found
        return self._shared(scope, name, mesh)

    def _shared(self, scope: Scope, name: str, mesh: str, out: str = "") -> str:
        """A scalar of another mesh, from the first rank there. out: the name of a copy that all have to agree on."""
        i, here = scope.find(name), scope.sites(name)[0]
        site = Site(mesh, SCALAR)
        source = scope.copy(name, here)
        assert source is not None
        out = out or self._named(scope, name, site)
        scope.used.add(out)
        share = p.Instruction("share", out, i.type, {"x": p.Value(source)}, {"source": here.mesh})
        self._emit(scope, share, site, out, groups=(union(here.mesh, mesh),))
        self._bind(scope, i, site, out)
        return out

    # ------------------------------------------------------------ moves

    def _expect(self, scope: Scope, i: p.Instruction, source: Site, target: Site) -> None:
        root = self.plan.root(i.axis)
        assert root is not None
        waiting = scope.pending.setdefault((root, source, target), [])
        if i.out not in waiting:
            waiting.append(i.out)

    def _flush(self, scope: Scope, routes: Sequence[Route]) -> None:
        """Emit the moves along some routes; what is expected by an outer block moves in that block."""
        for route in routes:
            owner = next(s for s in scope.chain() if route in s.pending)
            names = owner.pending.pop(route)
            root, source, target = route
            move = Move(root, source, target, is_new=not owner.is_dealt(root, target))
            for name in names:
                self._join_move(owner, move, name)
            owner.dealt.add((root, target))
            owner.block.append(move)

    def _join_move(self, scope: Scope, move: Move, name: str) -> None:
        i, origin = scope.find(name), scope.copy(name, move.source)
        assert origin is not None
        copy = self._named(scope, name, move.target)
        move.values[copy] = origin
        self._bind(scope, i, move.target, copy)
        if is_record(i):
            self.fields.made_of(copy, origin)
        if (name, move.target) in self._whole_records:
            self.fields.read(copy, (EVERY,))

    def flush_all(self, scope: Scope) -> None:
        self._flush(scope, [*scope.pending])

    def keep_all_fields(self, scope: Scope, name: str) -> None:
        """A value that waits in a queue is whole there: a commit may be read by a run that is laid out otherwise."""
        for (_, _, target), names in scope.pending.items():
            if name in names:
                self._whole_records.add((name, target))

    def announce(self, scope: Scope, name: str, models: Iterable[str]) -> None:
        """Expect rows where some models are trained."""
        here = next((s for s in scope.sites(name) if s.is_dealt), None)
        for target in (Site(self.holdings.home(m).mesh, LENGTH) for m in models):
            if here is not None and scope.copy(name, target) is None:
                self._expect(scope, scope.find(name), here, target)

    def _announce(self, scope: Scope, i: p.Instruction, site: Site) -> None:
        """Expect sequences wherever a model reads them, so that all that goes there goes together."""
        for mesh in self._meshes_reading(i.out):
            target = Site(mesh, LENGTH)
            if site != target:
                self._expect(scope, i, site, target)

    def _meshes_reading(self, name: str) -> list[str]:
        return list(dict.fromkeys(self.holdings.spot(x).mesh for x in self._readers.get(name, ())))

    # ------------------------------------------------------------ all rows on every rank

    def _gathered(self, scope: Scope, names: Sequence[str], mesh: str) -> dict[str, str]:
        """Whole copies of values, gathered together so that they stay on the same frames."""
        site = Site(mesh, WHOLE)
        missing = [n for n in names if scope.copy(n, site) is None]
        local = {n: self.demand(scope, n, self._local_site(scope, n, mesh)) for n in missing}
        if local:
            outs = {n: self._named(scope, n, site) for n in local}
            args: dict[str, p.Operand] = {outs[n]: p.Value(c) for n, c in local.items()}
            out = f"{outs[missing[0]]}.gather"
            scope.block.append(p.Instruction("gather", out, "", args, {}, (), mesh, site.layout, (mesh,)))
            for name, copy in outs.items():
                self._bind(scope, scope.find(name), site, copy)
        return {n: scope.copy(n, site) or "" for n in names}

    def _local_site(self, scope: Scope, name: str, mesh: str) -> Site:
        if scope.fixed is not None:
            return scope.fixed
        sites = self._sites(scope, name)
        return next((s for s in sites if s.mesh == mesh and s.is_dealt), Site(mesh, EVEN))

    def _owned(self, scope: Scope, i: p.Instruction, here: Site, site: Site) -> str:
        """The rows of this rank of a whole value, on the frame of a value that has been here all along."""
        like = self._on_axis(scope, i.axis or "", site, besides=i.out)
        source = scope.copy(i.out, here)
        assert source is not None
        args: dict[str, p.Operand] = {"x": p.Value(source), "like": p.Value(like)}
        out = self._named(scope, i.out, site)
        own = p.Instruction("own", out, i.type, args, {"axis": i.axis})
        self._bind(scope, i, site, self._emit(scope, own, site, out, groups=(site.mesh,)))
        return out

    def _on_axis(self, scope: Scope, axis: str, site: Site, besides: str = "") -> str:
        """The copy at a site of some value on an axis: of one that is there, if there is one."""
        carriers = [n for n in self._carriers(scope, axis) if n != besides]
        carrier = next((n for n in carriers if scope.copy(n, site) is not None), carriers[0])
        return self.demand(scope, carrier, site, ("tokens",) if axis.endswith(".token") else ())

    def _carrier(self, scope: Scope, axis: str) -> str:
        return next(self._carriers(scope, axis))

    def _carriers(self, scope: Scope, axis: str) -> Iterator[str]:
        """The names of values that have an axis, the first ones first: on it, or the record that opened it.

        In an update what comes from outside doesn't depend on the trained model.
        """
        for s in reversed([*scope.chain()]):
            yield from (n for n, i in s.made.items() if axis in (i.axis, i.attrs.get("tokens")))

    def _sites(self, scope: Scope, name: str) -> list[Site]:
        """Where a value is or will be; of a field, where its record is."""
        i = scope.find(name)
        return self._sites(scope, i.reads[0]) if i.op == "field" else [*scope.sites(name), *scope.awaited(name)]


def _readers(plan: p.Plan) -> dict[str, list[p.Instruction]]:
    """The phases that read each record of sequences."""
    found: dict[str, list[p.Instruction]] = {}
    for i in plan.walk():
        if i.op in SCORING:
            sequences = i.args["sequences"]
            if isinstance(sequences, p.Value):
                found.setdefault(sequences.ref, []).append(i)
    return found
