"""`cluster` and `place`: do the lines name models, phases and devices that exist? What they say becomes a Placement."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ....dsl import ast
from ....dsl.diagnostics import Note, Report, suggest
from ....dsl.modules import FlowModule
from ....dsl.source import Span
from ....dsl.vocabulary import CLUSTER_OPTIONS, DEVICES, METHODS, PLACE_OPTIONS
from ...facts import Places
from ...graph import Constant, Graph, Operand, Ref, Size
from ...placement import DEFAULT_RANKS, Placement, Spot
from ..elaborate.context import Context, Env, Scope
from ..elaborate.options import read_options, with_defaults
from .degrees import check_degrees

CIRCLE = "one of them is made of a device: `h100(nodes=2)`"
DEGREES = ("tp", "pp", "dp", "fsdp")
LOCAL = ("local", "cpu")


@dataclass(frozen=True)
class Target:
    """What a plan is for: `single`, one process, or `multi`, with so many ranks (None: as many as `place` says)."""

    name: str = "single"
    ranks: int | None = None

    @property
    def is_multi(self) -> bool:
        return self.name == "multi"


@dataclass(frozen=True)
class Cluster:
    """What a cluster expression says: devices of one kind on equal nodes. devices: None for all that a run has."""

    device: str
    nodes: int
    devices: int | None

    @property
    def ranks(self) -> int | None:
        return None if self.devices is None else self.nodes * self.devices


@dataclass(frozen=True)
class _Line:
    """What a line asks for. ranks: None for all there are. beside: the phase whose place it shares."""

    ranks: range | None
    options: Mapping[str, Operand]
    span: Span
    beside: str | None = None


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
    if not checker.target.is_multi or report.has_errors:
        return Placement(phases)
    ranks = checker.target.ranks or (cluster.ranks if cluster else None) or DEFAULT_RANKS
    if cluster and cluster.ranks not in (None, ranks):
        message = f"`{graph.flow}` is placed on {cluster.ranks} devices, but {ranks} ranks were asked for"
        help = f"ask for {cluster.ranks} ranks, or change the cluster"
        report.add("E0505", message, blocks[0].cluster.span, help=help)
    spots = {phase: _spot(checker, phase, ranks) for phase in checker.lines}
    return Placement(phases, {k: v for k, v in spots.items() if v}, ranks)


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
            return Cluster(name, 1, None if name in LOCAL else 8)
        case ast.Call(func=ast.Name(id=name), args=args) if name in DEVICES:
            given = read_options(checker.context, checker.env, args, CLUSTER_OPTIONS, name)
            options = with_defaults(given, CLUSTER_OPTIONS)
            all_there_are = name in LOCAL and "devices" not in given
            return Cluster(name, _count(options["nodes"]), None if all_there_are else _count(options["devices"]))
    known = [*DEVICES, *checker.module.clusters()]
    shown = _head(expr.func if isinstance(expr, ast.Call) else expr)
    checker.report.add("E0504", f"`{shown}` is no cluster", expr.span, help=suggest(shown, known))
    return None


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
    for line in block.lines:
        _line(checker, cluster, line)
    if cluster is not None and not checker.target.is_multi and not _is_one_device(cluster):
        if not checker.report.has_errors:
            message = f"one process runs this: what `place` says of {_devices_of(cluster)} is checked, not carried out"
            help = "`--target multi` carries it out; or place on `local`, or drop the block"
            checker.report.add("W0501", message, block.span, help=help)
    return cluster


def _line(checker: _Checker, cluster: Cluster | None, line: ast.PlaceLine) -> None:
    targets = _targets(checker, line.target)
    beside = _targets(checker, line.beside) if line.beside is not None else []
    options = read_options(checker.context, checker.env, line.options, PLACE_OPTIONS, "a `place` line")
    check_degrees(checker.graph, targets, options, line.span, checker.places, checker.report)
    ranks = _mesh(checker, line.mesh, cluster) if cluster is not None else None
    for target in targets:
        _once(checker, target, line)
        checker.lines.setdefault(target, _Line(ranks, options, line.span, next(iter(beside), None)))
    if cluster is None:
        return
    _refuse_unsupported(checker, cluster, line, targets, options)
    if checker.target.is_multi or _is_local(cluster):
        checker.phases |= {target: dict(options) for target in targets}
    _check_product(checker, line, cluster, ranks, options)


def _refuse_unsupported(
    checker: _Checker, cluster: Cluster, line: ast.PlaceLine, targets: Sequence[str], options: Mapping[str, Operand]
) -> None:
    """Refuse what a run would have to ignore."""
    asked = [name for name, value in (("offload", True), ("engine", "vllm")) if options.get(name) == value]
    if checker.target.is_multi:
        asked += [d for d in ("tp", "pp") if _count(options.get(d, 1)) > 1]
        asked += (
            ["fsdp"] if _count(options.get("fsdp", 1)) > 1 and any(t.endswith(".generate") for t in targets) else []
        )
        where = "by `--target multi`"
    else:
        asked = asked if _is_local(cluster) else []
        where = "on a local device"
    for name in asked:
        subject = (
            "`fsdp` of a `generate`, whose weights are whole on every rank," if name == "fsdp" else f"option `{name}`"
        )
        message = f"{subject} is not supported {where} by this version"
        span = next(a.span for a in line.options if a.name == name)
        checker.report.add("E0114", message, span, help="write `dp`" if name == "fsdp" else "leave it out")


def _is_local(cluster: Cluster) -> bool:
    return cluster.device in LOCAL


def _is_one_device(cluster: Cluster) -> bool:
    return _is_local(cluster) and cluster.ranks in (None, 1)


def _devices_of(cluster: Cluster) -> str:
    return f"{cluster.ranks} {cluster.device} devices"


def _once(checker: _Checker, target: str, line: ast.PlaceLine) -> None:
    if target in checker.lines:
        notes = (Note("first here", checker.lines[target].span),)
        checker.report.add("E0503", f"`{target}` is placed twice", line.span, notes=notes, help="drop one of the lines")


def _targets(checker: _Checker, target: ast.Expr) -> list[str]:
    """The phases a target names: one, or all of a model. A value is a target of its own."""
    roles = checker.graph.roles
    match target:
        case ast.Name(id=name) if name in roles:
            return [f"{name}.{phase}" for phase in _phases(checker, name)]
        case ast.Name(id=name) if name in {n.name for n in checker.graph.walk()}:
            return [name]
        case ast.Attr(base=ast.Name(id=name), name=phase) if name in roles:
            return _phase(checker, name, phase, target)
    shown = _head(target)
    values = [n.name for n in checker.graph.walk() if n.is_named]
    help = suggest(shown, [*roles, *values])
    checker.report.add(
        "E0502", f"`{shown}` is neither a model nor a value of `{checker.graph.flow}`", target.span, help=help
    )
    return []


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


def _check_product(
    checker: _Checker, line: ast.PlaceLine, cluster: Cluster, ranks: range | None, options: Mapping[str, Operand]
) -> None:
    available = len(ranks) if ranks is not None else cluster.ranks
    degrees = {d: max(1, _count(options.get(d, 1))) for d in DEGREES}
    wanted = math.prod(degrees.values())
    if available is not None and wanted > available:
        product = " × ".join(f"{k}={v}" for k, v in degrees.items() if v > 1)
        message = f"{product} needs {wanted} devices, but this mesh has {available}"
        checker.report.add("E0505", message, line.span, help=f"choose degrees whose product is at most {available}")


def _mesh(checker: _Checker, mesh: ast.Expr | None, cluster: Cluster) -> range | None:
    """The ranks of a mesh expression; None for all there are, or after reporting what is wrong with it."""
    each = cluster.devices
    match mesh:
        case None:
            return None
        case ast.Name(id="controller"):
            return range(1)
        case ast.Name(id="local") if cluster.device == "local":
            return None
        case ast.Name(id="nodes"):
            return None if cluster.ranks is None else range(cluster.ranks)
        case ast.Index(base=ast.Name(id="nodes"), index=start, stop=stop):
            last = stop if stop is not None else start + 1
            if 0 <= start < last <= cluster.nodes:
                return None if each is None else range(start * each, last * each)
            named = f"nodes[{start}]" if stop is None else f"nodes[{start}:{stop}]"
            message = f"{named} is outside this cluster: it has {cluster.nodes} nodes, from nodes[0]"
            checker.report.add("E0505", message, mesh.span)
            return None
    help = "write `nodes`, `nodes[0]`, `nodes[0:2]` or `controller`" + (
        ", or `local`" if cluster.device == "local" else ""
    )
    checker.report.add("E0504", "this names no devices of the cluster", mesh.span, help=help)
    return None


def _spot(checker: _Checker, phase: str, ranks: int, seen: tuple[str, ...] = ()) -> Spot | None:
    """The ranks and degrees of a phase that has a line; None if the line names a value, which runs where its rows are.

    Degrees that are written out say how many ranks it takes; a data-parallel degree that isn't fills the mesh.
    """
    line = checker.lines[phase]
    if line.beside in checker.lines and line.beside not in (*seen, phase):
        return _spot(checker, line.beside, ranks, (*seen, phase))
    if "." not in phase:
        return None
    mesh = line.ranks if line.ranks is not None else range(ranks)
    fsdp = max(1, _count(line.options.get("fsdp", 1)))
    dp = _count(line.options["dp"]) if "dp" in line.options else len(mesh) // fsdp
    wanted = dp * fsdp
    if wanted < 1 or wanted > len(mesh) or ("dp" not in line.options and len(mesh) % fsdp):
        fitting = ", ".join(f"`fsdp={d}`" for d in range(1, len(mesh) + 1) if len(mesh) % d == 0)
        message = f"`fsdp={fsdp}` doesn't divide the {len(mesh)} ranks of `{phase}`"
        checker.report.add("E0505", message, line.span, help=f"these do: {fitting}; or say `dp=` too")
        return None
    return Spot(mesh.start, wanted, dp, fsdp)


def _plain(value: Operand) -> Constant:
    if isinstance(value, Ref):
        return None
    return value.value if isinstance(value, Size) else value
