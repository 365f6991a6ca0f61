"""How regions are laid out: branches, rounds of a `collect`, and updates."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ... import plan as p
from .holdings import SCORING, Holdings
from .moves import union
from .operators import Operators, read_by
from .scope import LAZY, Move, Region, Scope, is_record, is_sequences
from .sites import LENGTH, PARTIAL, Site, read_in, renamed


class Layer(Operators):
    """Lays out whole programs."""

    def __init__(self, plan: p.Plan, holdings: Holdings, world: str, placed: Mapping[str, str]) -> None:
        super().__init__(plan, holdings, world, placed)
        self._regions: dict[str, Scope] = {}
        self._handlers |= {
            **dict.fromkeys(("when", "every"), self._branch),
            "collect": self._collect,
            "collected": self._collected,
            "update": self._update,
        }

    def _branch(self, i: p.Instruction, scope: Scope) -> None:
        names = {n: self._agreed(scope, n) for n in i.reads}
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
        inner, name = self._regions[i.attrs["region"]], i.reads[0]
        value = inner.find(name)
        if value.op in LAZY and not [s for s in inner.sites(name) if (name, s) in inner.copies]:
            self.demand(inner, name, self._site(inner, [name]))
        site = next(s for s in inner.sites(name))
        source = inner.copy(name, site)
        assert source is not None
        copy = self._emit(scope, i, site, args={"value": p.Value(source)})
        self._bind(scope, i, site, copy)
        root = self.plan.root(i.axis)
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
        outside = [a for a in axes if not any(a in (x.axis, x.attrs.get("tokens")) for x in i.body if x.out in inside)]
        for name in sorted(names, key=lambda n: not is_sequences(scope.find(n))):
            self.demand(scope, name, site, self._read_in(i, name, scope.find(name)))
        for axis in outside:
            self._on_axis(scope, axis, site)

    def _read_in(self, i: p.Instruction, name: str, value: p.Instruction) -> tuple[str, ...]:
        """The fields of a value that the phases of an update read."""
        return tuple(f for x in i.body if x.op in SCORING and name in x.reads for f in read_by(x.op, value))

    def _loss(self, i: p.Instruction, inner: Scope) -> dict[str, Any]:
        """The loss with the instructions that were put between its own, and the sums that rows read again."""
        loss = dict(i.attrs["loss"])
        dependent = {*loss["dependent"]}
        body = [x for x in inner.block if isinstance(x, p.Instruction)]
        for x in body:
            outs = set(x.outs)
            is_dependent = bool((dependent | {*loss["live"]}) & {*x.reads})
            if is_dependent and (x.op in ADDED or any(o.removesuffix(".part") in dependent for o in outs)):
                dependent |= outs
        if loss["two_passes"]:
            inner.block[:] = _spread(body, dependent)
        return {**loss, "dependent": sorted(dependent)}


ADDED = frozenset({"all_reduce", "gather", "own", "spread"})


def _spread(body: Sequence[p.Instruction], dependent: set[str]) -> list[Any]:
    """Put a `spread` before each sum that rows read again: its gradient is that of all ranks' rows together."""
    made = {o: x for x in body for o in x.outs}
    done: dict[str, str] = {}
    out: list[Any] = []
    for x in body:
        reads = [n for n in x.reads if n in dependent and made[n].layout == "replicated" and made[n].axis is None]
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
