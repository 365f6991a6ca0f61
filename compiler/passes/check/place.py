"""`cluster` and `place`: do the lines name models, phases and devices that exist? What they say becomes a Placement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ....dsl import ast
from ....dsl.diagnostics import Note, Report, suggest
from ....dsl.modules import FlowModule
from ....dsl.source import Span
from ....dsl.vocabulary import CLUSTER_OPTIONS, DEVICES, METHODS, PLACE_OPTIONS
from ...cluster import device_named
from ...facts import Places
from ...graph import PHASES, Constant, Graph, Operand, Ref, Size
from ...placement import DEFAULT_RANKS, Placement, Spot
from ..elaborate.context import Context, Env, Scope
from ..elaborate.options import read_options
from .degrees import check_degrees
from .devices import LOCAL, Cluster, NoSuchRanks, Part, check_product, ranks_of, sized, spot, written
from .refusals import refusals

CIRCLE = "one of them is made of a device: `h100(nodes=2)`"


@dataclass(frozen=True)
class Target:
    """What a plan is for: `single`, one process, or `multi`, with so many ranks (None: as many as `place` says).

    planned: a placement will be searched for, in which lines are wishes.
    """

    name: str = "single"
    ranks: int | None = None
    planned: bool = False

    @property
    def is_multi(self) -> bool:
        return self.name == "multi"


@dataclass(frozen=True)
class _Line:
    """What a line asks for. ranks: None where they aren't known, or are wrong. beside: whose place it shares.

    is_on: whether it names its devices.
    """

    ranks: range | None
    options: Mapping[str, Operand]
    span: Span
    beside: str | None = None
    is_on: bool = False


@dataclass
class _Checker:
    module: FlowModule
    graph: Graph
    report: Report
    places: Places
    target: Target
    phases: dict[str, dict[str, Operand]] = field(default_factory=dict)
    lines: dict[str, _Line] = field(default_factory=dict)

    @property
    def env(self) -> Env:
        return Env(Scope("flow"), self.module)

    @property
    def context(self) -> Context:
        return Context(self.report, self.module, params=dict(self.graph.params))


def place_flow(
    module: FlowModule, graph: Graph, report: Report, places: Places, target: Target | None = None
) -> Placement:
    """Check the `place` blocks of a flow, and what they say of each phase."""
    checker = _Checker(module, graph, report, places, target or Target())
    for declaration in module.clusters().values():
        _cluster(checker, declaration.value)
    blocks = [p for p in module.places() if p.flow == graph.flow]
    if len(blocks) > 1:
        notes = (Note("first here", blocks[0].span),)
        report.add("E0503", f"`{graph.flow}` is placed twice", blocks[1].span, notes=notes, help="merge the two blocks")
    cluster = next((_block(checker, block) for block in blocks[:1]), None)
    phases = {k: {n: _plain(v) for n, v in options.items()} for k, options in checker.phases.items()}
    if not checker.target.is_multi:
        return Placement(phases)
    ranks = (cluster.ranks if cluster else None) or checker.target.ranks or DEFAULT_RANKS
    spots = {name: _spot(checker, name, ranks) for name in checker.lines}
    return Placement(phases, {k: v for k, v in spots.items() if v}, ranks)


def placed_lines(
    module: FlowModule, graph: Graph, places: Places
) -> tuple[int | None, Span | None, Mapping[str, _Line]]:
    """For a flow that was checked: the devices its `place` block has (None: unknown), where, and its lines by phase."""
    checker = _Checker(module, graph, Report(), places, Target(planned=True))
    block = next((p for p in module.places() if p.flow == graph.flow), None)
    cluster = _block(checker, block) if block else None
    return cluster.ranks if cluster else None, block.cluster.span if block else None, checker.lines


def declared_cluster(module: FlowModule, graph: Graph, places: Places, name: str) -> Cluster | None:
    """The cluster that a file declares by a name, for a flow of it that was checked; None if it declares none."""
    if name not in module.clusters():
        return None
    return _cluster(_Checker(module, graph, Report(), places, Target(planned=True)), ast.Name(name))


def check_placed_flows(module: FlowModule, report: Report) -> None:
    """Every `place` block names a flow of this file, or an imported one."""
    flows = module.placeable()
    for block in module.places():
        if block.flow not in flows:
            help = suggest(block.flow, flows) or "write the flow, or import it"
            report.add("E0501", f"`place` names no flow of this file: `{block.flow}`", block.span, help=help)


# ---------------------------------------------------------------- clusters


def _cluster(checker: _Checker, expr: ast.Expr, seen: tuple[str, ...] = ()) -> Cluster | None:
    """The cluster an expression makes; `seen` are the declarations it was reached through."""
    match expr:
        case ast.Name(id=name) if name in seen:
            checker.report.add("E0112", f"cluster `{name}` is defined by itself", expr.span, help=CIRCLE)
            return None
        case ast.Name(id=name) if name in checker.module.clusters():
            return _cluster(checker, checker.module.clusters()[name].value, (*seen, name))
        case ast.Name(id=name) if name in DEVICES:
            return _made(name, {})
        case ast.Call(func=ast.Name(id=name), args=args) if name in DEVICES:
            return _made(name, read_options(checker.context, checker.env, args, CLUSTER_OPTIONS, name))
        case ast.Binary(op="+", left=left, right=right):
            return _joined(checker, *((side, _cluster(checker, side, seen)) for side in (left, right)))
    known = [*DEVICES, *checker.module.clusters()]
    shown = _head(expr.func if isinstance(expr, ast.Call) else expr)
    checker.report.add("E0504", f"`{shown}` is no cluster", expr.span, help=suggest(shown, known))
    return None


def _made(device: str, given: Mapping[str, Operand]) -> Cluster:
    """The cluster of a constructor with these options, those that were refused as if they weren't given."""
    options = {name: v for name, v in given.items() if isinstance(v, int | float)}
    usual = None if device in LOCAL else device_named(device).per_node
    devices = _count(options["devices"]) if "devices" in options else usual
    figures = tuple((name, v) for name, v in options.items() if name not in ("nodes", "devices"))
    return Cluster((Part(device, _count(options.get("nodes", 1)), devices, figures),))


def _joined(checker: _Checker, *sides: tuple[ast.Expr, Cluster | None]) -> Cluster | None:
    """The nodes of several clusters as one. None after reporting one that can't be a part of others."""
    for expr, cluster in sides:
        if cluster is not None and cluster.is_local:
            message = "devices of this machine aren't added to others: how many there are is known when a run starts"
            checker.report.add("E0504", message, expr.span, help="name their kind, such as `h100(nodes=2)`")
            return None
    found = [cluster for _, cluster in sides if cluster is not None]
    return Cluster(tuple(part for c in found for part in c.parts)) if len(found) == len(sides) else None


def _head(expr: ast.Expr) -> str:
    """How a message calls what begins with a name."""
    match expr:
        case ast.Name(id=name) | ast.Attr(base=ast.Name(id=name)):
            return name
    return "this"


def _count(value: Operand) -> int:
    return value if isinstance(value, int) else 1


# ---------------------------------------------------------------- lines


def _block(checker: _Checker, block: ast.Place) -> Cluster | None:
    cluster = _cluster(checker, block.cluster)
    if cluster is not None and checker.target.is_multi:
        span, report = block.cluster.span, checker.report
        cluster = sized(cluster, checker.target.ranks, span, report, lambda other: _fits(checker, block, other))
    for line in block.lines:
        _line(checker, cluster, line)
    for name in checker.lines:
        _refuse_circle(checker, name)
    if cluster is not None and checker.target == Target() and not checker.report.has_errors:
        _warn_of_one_process(checker, cluster, block)
    return cluster


def _fits(checker: _Checker, block: ast.Place, cluster: Cluster) -> bool:
    """Whether the lines of a block name devices that another cluster has, with degrees that fit them."""
    trial = replace(checker, report=Report(), phases={}, lines={})
    for line in block.lines:
        _line(trial, cluster, line)
    for name in trial.lines:
        _spot(trial, name, cluster.ranks or 1)
    return not any(d.code == "E0505" for d in trial.report.diagnostics)


def _warn_of_one_process(checker: _Checker, cluster: Cluster, block: ast.Place) -> None:
    """One process is one device: what a placement says of more has no effect on its run."""
    degrees = {name: written(line.options) for name, line in checker.lines.items()}
    what = str(cluster) if not cluster.is_one_device else next((f"{d} of `{n}`" for n, d in degrees.items() if d), None)
    if what is not None:
        message = f"one process runs this: what `place` says of {what} is checked, not carried out"
        help = "`--target multi` carries it out; or place on `local` without degrees, or drop the block"
        checker.report.add("W0501", message, block.span, help=help)


def _line(checker: _Checker, cluster: Cluster | None, line: ast.PlaceLine) -> None:
    targets = _targets(checker, line.target)
    beside = _targets(checker, line.beside) if line.beside is not None else []
    options = read_options(checker.context, checker.env, line.options, PLACE_OPTIONS, "a `place` line")
    if not checker.target.planned:  # a placement may be for another model than the flow names, and checks its shape
        check_degrees(checker.graph, targets, options, line.span, checker.places, checker.report)
    ranks = _ranks_of(checker, cluster, line, options)
    for target in targets:
        _once(checker, target, line)
        checker.lines.setdefault(
            target, _Line(ranks, options, line.span, _trained_first(beside), line.mesh is not None)
        )
    if cluster is None:
        return
    spans = {a.name: a.span for a in line.options}
    found = refusals(targets, options, cluster, is_multi=checker.target.is_multi) if not checker.target.planned else []
    for name, subject, help in found:
        if name in spans:  # a misspelt one is reported already
            checker.report.add("E0114", f"{subject} by this version", spans[name], help=help)
    if checker.target.is_multi or checker.target.planned or cluster.is_local:
        checker.phases |= {target: dict(options) for target in targets}


def _ranks_of(
    checker: _Checker, cluster: Cluster | None, line: ast.PlaceLine, options: Mapping[str, Operand]
) -> range | None:
    """The ranks of a line, if they are known and are enough for its degrees."""
    if cluster is None:
        return None
    try:
        ranks = ranks_of(line.mesh, cluster, checker.report)
    except NoSuchRanks:
        return None
    fits = check_product(options, None if ranks is None else len(ranks), line.span, checker.report)
    return ranks if fits else None


def _trained_first(phases: Sequence[str]) -> str | None:
    """Of the phases of a model, where `with` puts something: where the model is trained, if it is."""
    return next((p for p in phases if p.endswith(".update")), next(iter(phases), None))


def _once(checker: _Checker, target: str, line: ast.PlaceLine) -> None:
    if target in checker.lines:
        notes = (Note("first here", checker.lines[target].span),)
        checker.report.add("E0503", f"`{target}` is placed twice", line.span, notes=notes, help="drop one of the lines")


def _refuse_circle(checker: _Checker, name: str) -> None:
    """Report lines that are each placed with the other, at the first of them."""
    way = [name]
    while (beside := checker.lines[way[-1]].beside) in checker.lines and beside not in way:
        way.append(beside)
    if beside == name and name == min(way, key=list(checker.lines).index):
        message = f"{' with '.join(f'`{n}`' for n in [*way, name])}: none of them has a place"
        checker.report.add("E0112", message, checker.lines[name].span, help="say `on` which devices one of them is")


# ---------------------------------------------------------------- what a line places


def _targets(checker: _Checker, target: ast.Expr) -> list[str]:
    """The phases a target names: one, or all of a model. A value is a target of its own."""
    roles = checker.graph.roles
    match target:
        case ast.Name(id=name) if name in roles:
            return [f"{name}.{phase}" for phase in _phases(checker, name)]
        case ast.Name(id=name) if name in {n.name for n in checker.graph.walk()}:
            return _value(checker, name, target)
        case ast.Attr(base=ast.Name(id=name), name=phase) if name in roles:
            return _phase(checker, name, phase, target)
    shown = _head(target)
    values = [n.name for n in checker.graph.walk() if n.is_named]
    help = suggest(shown, [*roles, *values])
    checker.report.add(
        "E0502", f"`{shown}` is neither a model nor a value of `{checker.graph.flow}`", target.span, help=help
    )
    return []


def _value(checker: _Checker, name: str, target: ast.Expr) -> list[str]:
    """A value that is computed from others has a place; the rest is where its rows or its model are."""
    inner = {n.name for u in checker.graph.walk() if u.op == "update" for n in u.body}
    node = next(n for n in checker.graph.walk() if n.name == name)
    if name in inner:
        why, help = "is computed in an update, where its model is trained", "place the model's `update`"
    elif node.op in PHASES:
        phase = f"{node.attrs['model']}.{node.op}"
        why, help = f"is computed where `{phase}` runs", f"place `{phase}`"
    elif node.op in READ_ANYWHERE:
        why, help = READ_ANYWHERE[node.op], "drop the line"
    else:
        return [name]
    checker.report.add("E0502", f"`{name}` has no place of its own: it {why}", target.span, help=help)
    return []


READ_ANYWHERE = {
    "read": "is read wherever its rows are wanted",
    "field": "is taken from its record wherever it is wanted",
    "collect": "repeats statements that have places of their own",
}


def _phases(checker: _Checker, name: str) -> list[str]:
    """The phases of a model that the flow runs."""
    used = {n.op for n in checker.graph.walk() if n.attrs.get("model") == name}
    return [p for p in (*METHODS.get(checker.graph.roles[name].kind, ()), "update") if p in used]


def _phase(checker: _Checker, name: str, phase: str, target: ast.Expr) -> list[str]:
    phases = _phases(checker, name)
    if phase in phases:
        return [f"{name}.{phase}"]
    message = f"`{checker.graph.flow}` runs no phase `{name}.{phase}`"
    checker.report.add("E0502", message, target.span, help=suggest(phase, phases))
    return []


# ---------------------------------------------------------------- devices


def _spot(checker: _Checker, name: str, ranks: int, seen: tuple[str, ...] = ()) -> Spot | None:
    """The ranks and degrees of a phase or a value, those of another where it is placed `with` it; None if unknown."""
    line = checker.lines.get(name)
    if line is None:
        return _unplaced(checker, name, ranks, seen)
    if line.beside is None:
        return _on(checker, name, line)
    if name in seen:
        return None
    return _spot(checker, line.beside, ranks, (*seen, name))


def _unplaced(checker: _Checker, name: str, ranks: int, seen: tuple[str, ...]) -> Spot | None:
    """Where a phase is that has no line. A value has no such place."""
    model, _, phase = name.partition(".")
    if phase not in ("", "generate", "update") and f"{model}.update" in checker.lines:
        return _spot(checker, f"{model}.update", ranks, seen)
    return Spot(0, ranks, ranks) if phase else None


def _on(checker: _Checker, name: str, line: _Line) -> Spot | None:
    if line.ranks is None:
        return None
    if "." not in name:
        return Spot(line.ranks.start, len(line.ranks), len(line.ranks))
    return spot(line.options, line.ranks, name, line.span, checker.report)


def _plain(value: Operand) -> Constant:
    if isinstance(value, Ref):
        return None
    return value.value if isinstance(value, Size) else value
