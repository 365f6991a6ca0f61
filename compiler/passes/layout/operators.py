"""How operators of values, phases of models and statements are laid out."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ... import plan as p
from .choice import Chooser
from .holdings import SCORING, Holdings
from .moves import between
from .scope import LAZY, Scope, is_record
from .sites import EVEN, LENGTH, PARTIAL, SCALAR, WHOLE, Site, renamed

Handler = Callable[[p.Instruction, Scope], None]

SEES_ALL = frozenset({"batch", "ragged"})
"""Arguments of Python operators that hold all rows in scope."""


class Operators(Chooser):
    """Lays out blocks, instruction by instruction."""

    def __init__(self, plan: p.Plan, holdings: Holdings, world: str, placed: Mapping[str, str]) -> None:
        super().__init__(plan, holdings, world, placed)
        self._sees = {o.key: {x.name: x.sees for x in o.params} for o in plan.operators}
        self._common: set[str] = set()
        self._handlers: dict[str, Handler] = {
            **dict.fromkeys(LAZY, self._lazy),
            **dict.fromkeys(("state", "step"), self._everywhere),
            **dict.fromkeys(SCORING, self._score),
            "generate": self._generate,
            "tokenise": self._tokenise,
            "reduce": self._reduce,
            "rank": self._rank,
            "call": self._call,
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

    # ------------------------------------------------------------ values

    def _lazy(self, i: p.Instruction, scope: Scope) -> None:
        """Made where it is wanted."""

    def _everywhere(self, i: p.Instruction, scope: Scope) -> None:
        """Known to every rank without a word between them, and so is what is made of such numbers alone."""
        self._common.add(i.out)
        site = Site(self.world, SCALAR)
        self._bind(scope, i, site, self._emit(scope, i, site))

    def _pointwise(self, i: p.Instruction, scope: Scope) -> None:
        names = i.reads
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
        names = {n: self.demand(scope, n, site) for n in i.reads}
        home = Site(site.mesh, SCALAR) if i.axis is None else site
        copy = self._emit(scope, i, home, args=renamed(i, names), **changes)
        self._bind(scope, i, home, copy)
        for source in names.values():
            if is_record(i):
                self.fields.made_of(copy, source)
        return copy

    def _reduce(self, i: p.Instruction, scope: Scope) -> None:
        site = self._site_of(scope, i, i.reads)
        if i.attrs.get("to") is not None:
            self._place(scope, i, site)
        elif i.attrs["fn"] == "quantile":
            self._on_whole(i, scope, site)
        else:
            self._combined(i, scope, site)

    def _combined(self, i: p.Instruction, scope: Scope, site: Site) -> None:
        """Statistics of each rank's rows, then those of all ranks."""
        part, home = f"{i.out}.part", Site(site.mesh, SCALAR)
        names = {n: self.demand(scope, n, site) for n in i.reads}
        self._emit(scope, i, home, part, args=renamed(i, names), layout=PARTIAL)
        out = self._named(scope, i.out, home)
        whole = p.Instruction("all_reduce", out, i.type, {"x": p.Value(part)}, {"fn": i.attrs["fn"]})
        self._bind(scope, i, home, self._emit(scope, whole, home, out, groups=(site.mesh,)))

    def _rank(self, i: p.Instruction, scope: Scope) -> None:
        site = self._site_of(scope, i, i.reads)
        if i.attrs.get("to") is None:
            self._on_whole(i, scope, site)
        else:
            self._place(scope, i, site)

    def _call(self, i: p.Instruction, scope: Scope) -> None:
        names, sees = i.reads, self._sees[i.attrs["operator"]]
        if self._are_scalars(scope, names):
            self._place(scope, i, self._scalar_site(scope, i, names))
        elif any(sees.get(parameter) in SEES_ALL for parameter in i.args):
            self._on_whole(i, scope, self._site_of(scope, i, names))
        else:
            self._place(scope, i, self._site_of(scope, i, names))

    def _on_whole(self, i: p.Instruction, scope: Scope, site: Site) -> None:
        rows = [n for n in i.reads if scope.find(n).axis is not None]
        self._gathered(scope, rows, site.mesh)
        self._place(scope, i, Site(site.mesh, WHOLE))
        if i.axis is not None:  # rows are wanted where the operands' rows are
            self.demand(scope, i.out, self._local_site(scope, rows[0], site.mesh))

    # ------------------------------------------------------------ models

    def _generate(self, i: p.Instruction, scope: Scope) -> None:
        site = Site(self.holdings.spot(i).mesh, EVEN)
        self._with_weights(i, scope)
        prompts = i.args["prompts"]
        names = {n: self.demand(scope, n, site, ("prompt",) if prompts == p.Value(n) else ()) for n in i.reads}
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
        names = {n: self.demand(scope, n, site, read_by(i.op, scope.find(n))) for n in i.reads}
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
        names = i.reads
        if not names:
            self._emit(scope, i, Site(self.world, SCALAR))
        elif self._are_scalars(scope, names):
            self._place(scope, i, Site(self._scalar_mesh(scope, names), SCALAR), layout="")
        else:
            site = self._site(scope, names)
            self._place(scope, i, site, layout="", groups=(site.mesh,))

    def _next_state(self, i: p.Instruction, scope: Scope) -> None:
        names = {n: self._agreed(scope, n) for n in i.reads}
        self._emit(scope, i, Site(self.world, SCALAR), args=renamed(i, names))

    def _agreed(self, scope: Scope, name: str) -> str:
        """A scalar that steers control or becomes a state: computed on one rank, and told to all."""
        if name in self._common:
            return self.demand(scope, name, Site(self.world, SCALAR))
        copy = f"{name}@all"
        return copy if scope.is_used(copy) else self._shared(scope, name, self.world, copy)


def read_by(op: str, sequences: p.Instruction) -> tuple[str, ...]:
    """The fields of sequences that a phase may read: `score` re-tokenises a text where the tokenizers differ."""
    return ("tokens", "text") if op == "score" and sequences.type.startswith("rollout[") else ("tokens",)
