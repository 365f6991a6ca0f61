"""`cluster` and `place`: do the lines name models, phases and devices that exist? What they say becomes a Placement."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....dsl import ast
from ....dsl.diagnostics import Note, Report, suggest
from ....dsl.modules import FlowModule
from ....dsl.source import Span
from ....dsl.vocabulary import CLUSTER_OPTIONS, DEVICES, METHODS, PLACE_OPTIONS
from ...facts import Places
from ...graph import Constant, Graph, Operand, Ref, Size
from ...placement import Placement
from ..elaborate.context import Context, Env, Scope
from ..elaborate.options import read_options, with_defaults
from .degrees import check_degrees

CIRCLE = "one of them is made of a device: `h100(nodes=2)`"
DEGREES = ("tp", "pp", "dp", "fsdp")
LOCAL = ("local", "cpu")


@dataclass(frozen=True)
class Cluster:
    """What a cluster expression says: devices of one kind on equal nodes."""

    device: str
    nodes: int
    devices: int


@dataclass
class _Checker:
    module: FlowModule
    graph: Graph
    report: Report
    places: Places
    phases: dict[str, dict[str, Operand]] = field(default_factory=dict)
    placed: dict[str, Span] = field(default_factory=dict)

    @property
    def env(self) -> Env:
        return Env(Scope("flow"), self.module)

    @property
    def context(self) -> Context:
        return Context(self.report, self.module, params=dict(self.graph.params))


def place_flow(module: FlowModule, graph: Graph, report: Report, places: Places) -> Placement:
    """Check the `place` blocks of a flow, and what they say of each phase."""
    checker = _Checker(module, graph, report, places)
    for declaration in module.clusters().values():
        _cluster(checker, declaration.value)
    blocks = [p for p in module.places() if p.flow == graph.flow]
    if len(blocks) > 1:
        notes = (Note("first here", blocks[0].span),)
        report.add("E0503", f"`{graph.flow}` is placed twice", blocks[1].span, notes=notes, help="merge the two blocks")
    for block in blocks[:1]:
        _block(checker, block)
    return Placement({k: {n: _plain(v) for n, v in options.items()} for k, options in checker.phases.items()})


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
            return Cluster(name, 1, 1 if name in LOCAL else 8)
        case ast.Call(func=ast.Name(id=name), args=args) if name in DEVICES:
            given = read_options(checker.context, checker.env, args, CLUSTER_OPTIONS, name)
            options = with_defaults({"devices": 1} | dict(given) if name in LOCAL else given, CLUSTER_OPTIONS)
            return Cluster(name, _count(options["nodes"]), _count(options["devices"]))
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


def _block(checker: _Checker, block: ast.Place) -> None:
    cluster = _cluster(checker, block.cluster)
    for line in block.lines:
        targets = _targets(checker, line.target)
        for target in targets:
            _once(checker, target, line)
        options = read_options(checker.context, checker.env, line.options, PLACE_OPTIONS, "a `place` line")
        if line.beside is not None:
            _targets(checker, line.beside)
        check_degrees(checker.graph, targets, options, line.span, checker.places, checker.report)
        if cluster is not None and _is_local(cluster):
            _one_device(checker, line, options)
            checker.phases |= {target: dict(options) for target in targets}
        if cluster is not None:
            _devices(checker, line, cluster, options)
    if cluster is not None and not _is_local(cluster) and not checker.report.has_errors:
        message = (
            f"this version runs on one local device: what `place` says of {cluster.device} devices is checked, "
            "not carried out"
        )
        checker.report.add("W0501", message, block.span, help="place on `local`, or drop the block")
    if cluster is not None and _is_local(cluster) and cluster.nodes * cluster.devices > 1:
        message = f"this version runs on one local device, not on {cluster.nodes * cluster.devices}"
        checker.report.add("E0114", message, block.cluster.span, help=f"write `{cluster.device}`")


def _one_device(checker: _Checker, line: ast.PlaceLine, options: Mapping[str, Operand]) -> None:
    """Refuse what a run on one local device would have to ignore."""
    asked = [name for name, value in (("offload", True), ("engine", "vllm")) if options.get(name) == value]
    for name in asked:
        message = f"option `{name}` is not supported on a local device by this version"
        span = next(a.span for a in line.options if a.name == name)
        checker.report.add("E0114", message, span, help="leave it out")


def _is_local(cluster: Cluster) -> bool:
    return cluster.device in LOCAL


def _once(checker: _Checker, target: str, line: ast.PlaceLine) -> None:
    if target in checker.placed:
        notes = (Note("first here", checker.placed[target]),)
        checker.report.add("E0503", f"`{target}` is placed twice", line.span, notes=notes, help="drop one of the lines")
    checker.placed.setdefault(target, line.span)


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


def _devices(checker: _Checker, line: ast.PlaceLine, cluster: Cluster, options: Mapping[str, Operand]) -> None:
    available = _available(checker, line.mesh, cluster)
    degrees = {d: max(1, _count(options.get(d, 1))) for d in DEGREES}
    wanted = 1
    for value in degrees.values():
        wanted *= value
    if available is not None and wanted > available:
        product = " × ".join(f"{k}={v}" for k, v in degrees.items() if v > 1)
        message = f"{product} needs {wanted} devices, but this mesh has {available}"
        checker.report.add("E0505", message, line.span, help=f"choose degrees whose product is at most {available}")


def _available(checker: _Checker, mesh: ast.Expr | None, cluster: Cluster) -> int | None:
    """Devices of a mesh expression; None where there is none, or after reporting what is wrong with it."""
    match mesh:
        case None:
            return 1 if _is_local(cluster) else None
        case ast.Name(id="controller"):
            return 1
        case ast.Name(id="local") if cluster.device == "local":
            return 1
        case ast.Name(id="nodes"):
            return cluster.nodes * cluster.devices
        case ast.Index(base=ast.Name(id="nodes"), index=start, stop=stop):
            last = stop if stop is not None else start + 1
            if 0 <= start < last <= cluster.nodes:
                return (last - start) * cluster.devices
            named = f"nodes[{start}]" if stop is None else f"nodes[{start}:{stop}]"
            message = f"{named} is outside this cluster: it has {cluster.nodes} nodes, from nodes[0]"
            checker.report.add("E0505", message, mesh.span)
            return None
    help = "write `nodes`, `nodes[0]`, `nodes[0:2]` or `controller`" + (
        ", or `local`" if cluster.device == "local" else ""
    )
    checker.report.add("E0504", "this names no devices of the cluster", mesh.span, help=help)
    return None


def _plain(value: Operand) -> Constant:
    if isinstance(value, Ref):
        return None
    return value.value if isinstance(value, Size) else value
