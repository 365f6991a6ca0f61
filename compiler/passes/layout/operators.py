"""How each operator of a plan is laid out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ... import plan as p
from .holdings import SCORING, Holdings
from .moves import EVERY, Fields, between, union
from .scope import LAZY, Move, Region, Route, Scope, is_record, is_sequences
from .sites import EVEN, LENGTH, PARTIAL, SCALAR, WHOLE, Axes, Site, read_in, references, renamed


def _read_by(op: str, sequences: p.Instruction) -> tuple[str, ...]:
    """The fields of sequences that a phase may read: `score` re-tokenises a text where the tokenizers differ."""
    return ("tokens", "text") if op == "score" and sequences.type.startswith("rollout[") else ("tokens",)


SEES_ALL = frozenset({"batch", "ragged"})
"""Arguments of Python operators that hold all rows in scope."""


class Layer:
    """Lays out blocks, instruction by instruction. world: the mesh of all ranks. placed: meshes of values by name."""

    def __init__(self, plan: p.Plan, holdings: Holdings, world: str, placed: Mapping[str, str]) -> None:
        self.plan, self.holdings, self.world, self.placed = plan, holdings, world, placed
        self.axes, self.fields = Axes(plan), Fields()
        self._sees = {o.key: {x.name: x.sees for x in o.params} for o in plan.operators}
        self._readers = _readers(plan)
        self._regions: dict[str, Scope] = {}
        self._whole_records: set[tuple[str, Site]] = set()
        self._common: set[str] = set()
        self._handlers: Mapping[str, Callable[[p.Instruction, Scope], None]] = {
            **dict.fromkeys(LAZY, self._lazy),
            **dict.fromkeys(("state", "step"), self._everywhere),
            **dict.fromkeys(SCORING, self._score),
            **dict.fromkeys(("when", "every"), self._branch),
            "generate": self._generate,
            "tokenise": self._tokenise,
            "reduce": self._reduce,
            "rank": self._rank,
            "call": self._call,
            "update": self._update,
            "collect": self._collect,
            "collected": self._collected,
            "metric": self._log,
            "record": self._log,
            "next_state": self._next_state,
            "next_model": self._next_model,
            "snapshot": self._snapshot,
        }

    def block(self, block: Iterable[p.Instruction], scope: Scope) -> None:
        for i in block:
            scope.made[i.out] = i
            self._handlers.get(i.op, self._pointwise)(i, scope)

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
        if self.axes.of(i) is None:
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
        root = self.axes.root(self.axes.of(i))
        assert root is not None
        routes = [r for s in scope.chain() for r in s.pending if r[0] == root and r[2] == site]
        self._flush(scope, routes)
        return site.deal == EVEN or scope.is_dealt(root, site)

    def _made_there(self, scope: Scope, i: p.Instruction, site: Site) -> str:
        """A lazy value, made at the site itself."""
        names = {}
        if i.op == "field":
            record = references(i)[0]
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
        root = self.axes.root(self.axes.of(i))
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
        like = self._on_axis(scope, self.axes.of(i) or "", site, besides=i.out)
        source = scope.copy(i.out, here)
        assert source is not None
        args: dict[str, p.Operand] = {"x": p.Value(source), "like": p.Value(like)}
        out = self._named(scope, i.out, site)
        own = p.Instruction("own", out, i.type, args, {"axis": self.axes.of(i)})
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
            yield from (n for n, i in s.made.items() if axis in (self.axes.of(i), i.attrs.get("tokens")))

    # ------------------------------------------------------------ choosing a site

    def _site_of(self, scope: Scope, i: p.Instruction, names: Sequence[str]) -> Site:
        """Where an operator runs: where `place` says, dealt as rows are there; else where most of what it reads is."""
        rows = [n for n in names if self.axes.of(scope.find(n)) is not None]
        if scope.fixed is not None or i.out not in self.placed:
            return self._site(scope, names)
        by_length = Site(self.placed[i.out], LENGTH)
        roots = (self.axes.root(self.axes.of(scope.find(n))) for n in rows)
        is_there = any(root is not None and scope.is_dealt(root, by_length) for root in roots)
        return by_length if is_there else Site(by_length.mesh, EVEN)

    def _site(self, scope: Scope, names: Iterable[str]) -> Site:
        """Where most of some values is, or will be; by length rather than evenly."""
        if scope.fixed is not None:
            return scope.fixed
        rows = [n for n in names if self.axes.of(scope.find(n)) is not None]
        there = {n: self._whereabouts(scope, n) for n in rows}
        candidates = list(dict.fromkeys(s for sites in there.values() for s in sites if s.is_dealt))
        if not candidates:
            return Site(self._default_mesh(), EVEN)
        return min(candidates, key=lambda s: (self._weight(scope, rows, there, s), s.deal != LENGTH))

    def _whereabouts(self, scope: Scope, name: str) -> list[Site]:
        """Where rows of a value are or will be."""
        return [Site(s.mesh, EVEN) if s.deal == WHOLE else s for s in self._sites(scope, name)]

    def _sites(self, scope: Scope, name: str) -> list[Site]:
        """Where a value is or will be; of a field, where its record is."""
        i = scope.find(name)
        return self._sites(scope, references(i)[0]) if i.op == "field" else [*scope.sites(name), *scope.awaited(name)]

    def _weight(self, scope: Scope, rows: Iterable[str], there: Mapping[str, list[Site]], site: Site) -> int:
        """What would have to be moved: a token counts more than a sample, and a sample more than a prompt.

        Rows of a file needn't be moved: they are read where they are wanted.
        """
        moved = (n for n in rows if site not in there[n] and not self._is_read(scope, n))
        return sum(10 ** len(self.axes.chain(self.axes.of(scope.find(n)))) for n in moved)

    def _is_read(self, scope: Scope, name: str) -> bool:
        i = scope.find(name)
        return i.op == "read" or (i.op == "field" and self._is_read(scope, references(i)[0]))

    def _default_mesh(self) -> str:
        phases = (i for i in self.plan.walk() if i.op in (*SCORING, "generate"))
        return next((self.holdings.spot(i).mesh for i in phases), self.world)

    def _are_scalars(self, scope: Scope, names: Iterable[str]) -> bool:
        return all(self.axes.of(scope.find(n)) is None for n in names)

    def _scalar_site(self, scope: Scope, i: p.Instruction, names: Iterable[str]) -> Site:
        is_placed = scope.fixed is None and i.out in self.placed
        return Site(self.placed[i.out] if is_placed else self._scalar_mesh(scope, names), SCALAR)

    def _scalar_mesh(self, scope: Scope, names: Iterable[str]) -> str:
        """Where scalars are computed further: on every rank if they are known to every rank."""
        if scope.fixed is not None:
            return scope.fixed.mesh
        meshes = [s.mesh for n in names for s in scope.sites(n)[:1]]
        return next((m for m in meshes if m != self.world), self.world)

    # ------------------------------------------------------------ values

    def _lazy(self, i: p.Instruction, scope: Scope) -> None:
        """Made where it is wanted."""

    def _everywhere(self, i: p.Instruction, scope: Scope) -> None:
        """Known to every rank without a word between them, and so is what is made of such numbers alone."""
        self._common.add(i.out)
        site = Site(self.world, SCALAR)
        self._bind(scope, i, site, self._emit(scope, i, site))

    def _pointwise(self, i: p.Instruction, scope: Scope) -> None:
        names = references(i)
        carrier = [self._carrier(scope, i.attrs["to"])] if i.op == "expand" else []
        if self._are_scalars(scope, names) and not carrier:
            if self._common.issuperset(names) and i.out not in self.placed:
                self._common.add(i.out)
            self._place(scope, i, self._scalar_site(scope, i, names))
        else:
            site = self._site_of(scope, i, [*names, *carrier])
            if carrier:
                self._on_axis(scope, i.attrs["to"], site)
            self._place(scope, i, site)

    def _place(self, scope: Scope, i: p.Instruction, site: Site, **changes: Any) -> str:
        """Emit an instruction at a site, with its operands brought there."""
        names = {n: self.demand(scope, n, site) for n in references(i)}
        home = Site(site.mesh, SCALAR) if self.axes.of(i) is None else site
        copy = self._emit(scope, i, home, args=renamed(i, names), **changes)
        self._bind(scope, i, home, copy)
        for source in names.values():
            if is_record(i):
                self.fields.made_of(copy, source)
        return copy

    def _reduce(self, i: p.Instruction, scope: Scope) -> None:
        site = self._site_of(scope, i, references(i))
        if i.attrs.get("to") is not None:
            self._place(scope, i, site)
        elif i.attrs["fn"] == "quantile":
            self._on_whole(i, scope, site)
        else:
            self._combined(i, scope, site)

    def _combined(self, i: p.Instruction, scope: Scope, site: Site) -> None:
        """Statistics of each rank's rows, then those of all ranks."""
        part, home = f"{i.out}.part", Site(site.mesh, SCALAR)
        names = {n: self.demand(scope, n, site) for n in references(i)}
        self._emit(scope, i, home, part, args=renamed(i, names), layout=PARTIAL)
        out = self._named(scope, i.out, home)
        whole = p.Instruction("all_reduce", out, i.type, {"x": p.Value(part)}, {"fn": i.attrs["fn"]})
        self._bind(scope, i, home, self._emit(scope, whole, home, out, groups=(site.mesh,)))

    def _rank(self, i: p.Instruction, scope: Scope) -> None:
        site = self._site_of(scope, i, references(i))
        if i.attrs.get("to") is None:
            self._on_whole(i, scope, site)
        else:
            self._place(scope, i, site)

    def _call(self, i: p.Instruction, scope: Scope) -> None:
        names, sees = references(i), self._sees[i.attrs["operator"]]
        if self._are_scalars(scope, names):
            self._place(scope, i, self._scalar_site(scope, i, names))
        elif any(sees.get(parameter) in SEES_ALL for parameter in i.args):
            self._on_whole(i, scope, self._site_of(scope, i, names))
        else:
            self._place(scope, i, self._site_of(scope, i, names))

    def _on_whole(self, i: p.Instruction, scope: Scope, site: Site) -> None:
        rows = [n for n in references(i) if self.axes.of(scope.find(n)) is not None]
        self._gathered(scope, rows, site.mesh)
        self._place(scope, i, Site(site.mesh, WHOLE))
        if self.axes.of(i) is not None:  # rows are wanted where the operands' rows are
            self.demand(scope, i.out, self._local_site(scope, rows[0], site.mesh))

    # ------------------------------------------------------------ models

    def _generate(self, i: p.Instruction, scope: Scope) -> None:
        site = Site(self.holdings.spot(i).mesh, EVEN)
        self._with_weights(i, scope)
        prompts = i.args["prompts"]
        names = {n: self.demand(scope, n, site, ("prompt",) if prompts == p.Value(n) else ()) for n in references(i)}
        copy = self._emit(scope, i, site, args=renamed(i, names), attrs=self._held(i))
        self._bind(scope, i, site, copy)
        self._announce(scope, i, site)

    def _tokenise(self, i: p.Instruction, scope: Scope) -> None:
        reading = self._meshes_reading(i.out)
        site = scope.fixed or Site(next(iter(reading), self._default_mesh()), EVEN)
        self._place(scope, i, site)
        if scope.fixed is None:
            self._announce(scope, i, site)

    def _score(self, i: p.Instruction, scope: Scope) -> None:
        site = scope.fixed or Site(self.holdings.spot(i).mesh, LENGTH)
        if i.attrs["version"] != "live":
            self._with_weights(i, scope)
        names = {n: self.demand(scope, n, site, _read_by(i.op, scope.find(n))) for n in references(i)}
        held = self.holdings.of(i)
        groups = (site.mesh,) if held.fsdp > 1 else ()
        self._bind(
            scope, i, site, self._emit(scope, i, site, args=renamed(i, names), attrs=self._held(i), groups=groups)
        )

    def _held(self, i: p.Instruction) -> dict[str, Any]:
        name = self.holdings.of(i).name
        return dict(i.attrs) if name == i.attrs["model"] else {**i.attrs, "holding": name}

    def _with_weights(self, i: p.Instruction, scope: Scope) -> None:
        self._bring_weights(scope, self.holdings.of(i), bool(i.attrs.get("snapshot")))

    def _bring_weights(self, scope: Scope, holding: p.Holding, snapshot: bool) -> None:
        """Give a holding the weights of where its model is trained, if it may have others."""
        key = holding.name + ("@now" if snapshot else "")
        if holding.name == holding.model or not self.holdings.changes(holding.model) or scope.is_current(key):
            return
        home = self.holdings.home(holding.model).mesh
        scope.outdate({holding.name, holding.name + "@now"})
        scope.current.add(key)
        attrs = {"model": holding.model, "holding": holding.name, **({"snapshot": True} if snapshot else {})}
        groups = between(home, holding.mesh)
        scope.block.append(
            p.Instruction("weights", f"{holding.name}.weights", "", {}, attrs, (), holding.mesh, "", groups)
        )

    def _changed(self, scope: Scope, model: str) -> None:
        scope.outdate({x for name in self.holdings.followers(model) for x in (name, f"{name}@now")})

    def _snapshot(self, i: p.Instruction, scope: Scope) -> None:
        self._emit(scope, i, Site(self.holdings.home(i.attrs["model"]).mesh, SCALAR))

    def _next_model(self, i: p.Instruction, scope: Scope) -> None:
        """The source's weights are brought to where the model lies, in the same layout."""
        home = self.holdings.home(i.attrs["model"])
        source = self.holdings.at(i.attrs["source"], home)
        self._bring_weights(scope, source, bool(i.attrs.get("snapshot")))
        attrs = dict(i.attrs) if source.name == source.model else {**i.attrs, "holding": source.name}
        self._emit(scope, i, Site(home.mesh, SCALAR), attrs=attrs)
        self._changed(scope, i.attrs["model"])

    # ------------------------------------------------------------ statements

    def _log(self, i: p.Instruction, scope: Scope) -> None:
        """Metrics are logged where they are; the mean of rows is that of all ranks."""
        names = references(i)
        if not names:
            self._emit(scope, i, Site(self.world, SCALAR))
        elif self._are_scalars(scope, names):
            self._place(scope, i, Site(self._scalar_mesh(scope, names), SCALAR), layout="")
        else:
            site = self._site(scope, names)
            self._place(scope, i, site, layout="", groups=(site.mesh,))

    def _next_state(self, i: p.Instruction, scope: Scope) -> None:
        names = {n: self._agreed(scope, n) for n in references(i)}
        self._emit(scope, i, Site(self.world, SCALAR), args=renamed(i, names))

    def _agreed(self, scope: Scope, name: str) -> str:
        """A scalar that steers control or becomes a state: computed on one rank, and told to all."""
        if name in self._common:
            return self.demand(scope, name, Site(self.world, SCALAR))
        copy = f"{name}@all"
        return copy if scope.is_used(copy) else self._shared(scope, name, self.world, copy)

    # ------------------------------------------------------------ regions

    def _branch(self, i: p.Instruction, scope: Scope) -> None:
        names = {n: self._agreed(scope, n) for n in references(i)}
        self.flush_all(scope)
        inner = scope.nested()
        self.block(i.body, inner)
        changed = {x.attrs["model"] for x in i.walk() if x.op in ("update", "next_model")}
        for model in changed:
            self._changed(scope, model)
        region = msgspec.structs.replace(i, args=renamed(i, names), mesh=self.world, body=())
        scope.block.append(Region(region, inner.block))

    def _collect(self, i: p.Instruction, scope: Scope) -> None:
        self.flush_all(scope)
        for phase in (x for x in i.walk() if x.op in (*SCORING, "generate")):
            self._with_weights(phase, scope)  # once, and not in every round
        inner = scope.nested()
        statement = next(x for x in i.body if x.op == "keep_rows")
        self.block((x for x in i.body if x is not statement), inner)
        self._keep_rows(statement, inner)
        self._regions[i.out] = inner
        meshes = self._meshes_of(inner)
        groups = (union(*meshes),)
        kept = inner.block.pop()
        assert isinstance(kept, p.Instruction)
        inner.block.append(msgspec.structs.replace(kept, groups=groups))
        scope.block.append(Region(msgspec.structs.replace(i, mesh=self.world, body=(), groups=groups), inner.block))
        if meshes != [self.world]:
            attrs = {"region": i.out, "source": meshes[0]}
            scope.block.append(
                p.Instruction("announce", f"{i.out}.announce", "", {}, attrs, (), self.world, "", (self.world,))
            )

    def _keep_rows(self, i: p.Instruction, scope: Scope) -> None:
        site = self._site(scope, [a.ref for k, a in i.args.items() if k == "where" and isinstance(a, p.Value)])
        self._place(scope, i, site)

    def _meshes_of(self, scope: Scope) -> list[str]:
        """The meshes that take part in a block, the one of its last statement first."""
        found: list[str] = []
        for statement in reversed(scope.block):
            match statement:
                case Move():
                    found += [statement.source.mesh, statement.target.mesh]
                case p.Instruction() if statement.out not in self._common:
                    found.append(statement.mesh)
        return list(dict.fromkeys(found))

    def _collected(self, i: p.Instruction, scope: Scope) -> None:
        """The kept rows of all rounds, where the rounds made them."""
        inner, name = self._regions[i.attrs["region"]], references(i)[0]
        value = inner.find(name)
        if value.op in LAZY and not [s for s in inner.sites(name) if (name, s) in inner.copies]:
            self.demand(inner, name, self._site(inner, [name]))
        site = next(s for s in inner.sites(name))
        source = inner.copy(name, site)
        assert source is not None
        copy = self._emit(scope, i, site, args={"value": p.Value(source)})
        self._bind(scope, i, site, copy)
        root = self.axes.root(self.axes.of(i))
        if root:
            scope.dealt.add((root, site))
        if is_record(i):
            self.fields.made_of(copy, source)
        if is_sequences(i):
            self._announce(scope, i, site)

    # ------------------------------------------------------------ updates

    def _update(self, i: p.Instruction, scope: Scope) -> None:
        home = self.holdings.home(i.attrs["model"])
        site = Site(home.mesh, LENGTH)
        self._bring_operands(i, scope, site)
        for phase in (x for x in i.body if x.op in SCORING and x.attrs["version"] != "live"):
            self._with_weights(phase, scope)  # once, and not in every minibatch
        inner = scope.nested(fixed=site)
        self.block(i.body, inner)
        loss = self._loss(i, inner)
        attrs = {**i.attrs, "loss": loss, "dp": home.dp, "fsdp": home.fsdp}
        region = msgspec.structs.replace(i, attrs=attrs, mesh=home.mesh, body=(), groups=(home.mesh,))
        scope.block.append(Region(region, inner.block))
        self._changed(scope, i.attrs["model"])

    def _bring_operands(self, i: p.Instruction, scope: Scope, site: Site) -> None:
        """What the update reads comes to its mesh beforehand: sequences first, because they say how rows are dealt."""
        names = read_in(i.body)
        axes = [str(x.attrs["to"]) for x in i.body if x.op == "expand"]
        inside = {x.out for x in i.walk()}
        outside = [
            a for a in axes if not any(a in (self.axes.of(x), x.attrs.get("tokens")) for x in i.body if x.out in inside)
        ]
        for name in sorted(names, key=lambda n: not is_sequences(scope.find(n))):
            self.demand(scope, name, site, self._read_in(i, name, scope.find(name)))
        for axis in outside:
            self._on_axis(scope, axis, site)

    def _read_in(self, i: p.Instruction, name: str, value: p.Instruction) -> tuple[str, ...]:
        """The fields of a value that the phases of an update read."""
        return tuple(f for x in i.body if x.op in SCORING and name in references(x) for f in _read_by(x.op, value))

    def _loss(self, i: p.Instruction, inner: Scope) -> dict[str, Any]:
        """The loss with the instructions that were put between its own, and the sums that rows read again."""
        loss = dict(i.attrs["loss"])
        dependent = {*loss["dependent"]}
        body = [x for x in inner.block if isinstance(x, p.Instruction)]
        for x in body:
            outs = set(x.outs)
            is_dependent = bool((dependent | {*loss["live"]}) & {*references(x)})
            if is_dependent and (x.op in ADDED or any(o.removesuffix(".part") in dependent for o in outs)):
                dependent |= outs
        if loss["two_passes"]:
            inner.block[:] = _spread(body, dependent, self.axes)
        return {**loss, "dependent": sorted(dependent)}


ADDED = frozenset({"all_reduce", "gather", "own", "spread"})


def _spread(body: Sequence[p.Instruction], dependent: set[str], axes: Axes) -> list[Any]:
    """Put a `spread` before each sum that rows read again: its gradient is that of all ranks' rows together."""
    made = {o: x for x in body for o in x.outs}
    done: dict[str, str] = {}
    out: list[Any] = []
    for x in body:
        reads = [
            n for n in references(x) if n in dependent and made[n].layout == "replicated" and axes.of(made[n]) is None
        ]
        if x.layout.startswith("sharded") or x.layout == PARTIAL:
            for name in reads:
                if name not in done:
                    done[name] = f"{name}.spread"
                    dependent.add(done[name])
                    args: dict[str, p.Operand] = {"x": p.Value(name)}
                    out.append(
                        p.Instruction(
                            "spread", done[name], made[name].type, args, {}, (), x.mesh, "replicated", (x.mesh,)
                        )
                    )
            x = msgspec.structs.replace(x, args=renamed(x, done)) if reads else x
        out.append(x)
    return out


def _readers(plan: p.Plan) -> dict[str, list[p.Instruction]]:
    """The phases that read each record of sequences."""
    found: dict[str, list[p.Instruction]] = {}
    for i in plan.walk():
        if i.op in SCORING:
            sequences = i.args["sequences"]
            if isinstance(sequences, p.Value):
                found.setdefault(sequences.ref, []).append(i)
    return found
