"""`place` and `cluster` from Python: which flow runs where. Nothing here changes what a flow computes."""

from typing import Any

from .. import ast
from ..source import Span
from ..vocabulary import PLACE_OPTIONS
from .definitions import FlowDefinition
from .expressions import Inline, Operand, to_args, to_name
from .functions import Syntax
from .spans import Site, caller, quoted
from .trace import refusal


class Nodes(Inline):
    """The nodes of the cluster that a placement is for: `nodes[0]`, `nodes[0:2]`."""

    __slots__ = ()

    def __getitem__(self, which: int | slice) -> Syntax:
        site = caller()
        match which:
            case int(first) if first >= 0:
                return Syntax(ast.Index(ast.Name("nodes", span=site.span), first, span=site.span))
            case slice(start=int(first), stop=int(stop), step=None) if 0 <= first < stop:
                return Syntax(ast.Index(ast.Name("nodes", span=site.span), first, stop, span=site.span))
        raise refusal(
            "E0022", f"{quoted(site.span, 'this')} picks no nodes", site.span, help="write `nodes[0]` or `nodes[0:2]`"
        )

    def _expr(self, span: Span) -> ast.Expr:
        return ast.Name("nodes", span=span)


nodes = Nodes()


class Cluster(Inline):
    """Devices to run on, written out or by the name that `cluster` gave them."""

    def __init__(self, expr: ast.Expr, declarations: tuple[ast.ClusterDecl, ...] = ()) -> None:
        self.expr, self.declarations = expr, declarations

    def __add__(self, other: "Cluster") -> "Cluster":
        """The nodes of both: `h100(nodes=2) + a100(nodes=4)`."""
        if not isinstance(other, Cluster):
            return NotImplemented
        expr = ast.Binary("+", self.expr, other.expr, span=caller().span)
        return Cluster(expr, (*self.declarations, *other.declarations))

    def _expr(self, span: Span) -> ast.Expr:
        return self.expr


class Device:
    """A kind of cluster by its devices: `h100(nodes=2)`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, **options: Operand) -> Cluster:
        site = caller()
        func = ast.Name(self.name, span=site.span)
        return Cluster(ast.Call(func, to_args((), options, site), span=site.span))


local = Device("local")
cpu = Device("cpu")
a100 = Device("a100")
a100_40 = Device("a100_40")
a100_80 = Device("a100_80")
a800 = Device("a800")
h100 = Device("h100")
h100_96 = Device("h100_96")
h800 = Device("h800")
h200 = Device("h200")
h20 = Device("h20")
b200 = Device("b200")
gb200 = Device("gb200")
l40s = Device("l40s")


def cluster(name: str, devices: Cluster) -> Cluster:
    """`cluster lab = h100(nodes=2)`: a name for a cluster that several placements use."""
    site = caller()
    if not name.isidentifier():
        raise refusal("E0022", f"`{name}` is not a name", site.part(0), help="write a name such as `lab`")
    declared = ast.ClusterDecl(name, devices.expr, span=site.span, name_span=site.part(0))
    return Cluster(ast.Name(name, span=site.span), (*devices.declarations, declared))


def put(target: str, *, on: Operand | None = None, beside: str | None = None, **options: Any) -> ast.PlaceLine:
    """One line of a placement: `put("policy.update", on=nodes[0], fsdp=8)` or `put("ref", beside="policy.update")`."""
    site = caller()
    if (on is None) == (beside is None):
        raise refusal(
            "E0027", f"`{target}` needs one place", site.span, help='write `on=nodes[0]` or `beside="policy.update"`'
        )
    if beside is not None and options:
        first = next(iter(options))
        raise refusal(
            "E0027",
            f"`{first}=` of `{target}`: what stands beside another takes no options",
            site.part(first),
            help=f"give them to `{beside}`, or place `{target}` with `on=`",
        )
    return ast.PlaceLine(
        to_name(target, site.part(0)),
        mesh=_mesh(on, site) if on is not None else None,
        beside=to_name(beside, site.part("beside")) if beside is not None else None,
        options=to_args((), options, site, PLACE_OPTIONS),
        span=site.span,
    )


def place(flow: FlowDefinition, on: Cluster, *lines: ast.PlaceLine) -> None:
    """Place a flow: `place(grpo, h100(nodes=2), put("policy.update", on=nodes[0], fsdp=8), …)`."""
    site = caller()
    if not isinstance(flow, FlowDefinition):
        raise refusal("E0027", f"`{flow!r}` is not a flow", site.part(0), help="pass the function under `@flow`")
    flow.placements.extend(d for d in on.declarations if d not in flow.placements)
    flow.placements.append(ast.Place(flow.name, on.expr, lines, span=site.span, name_span=site.part(0)))


def _mesh(on: Operand, site: Site) -> ast.Expr:
    return to_name(on, site.part("on")) if isinstance(on, str) else to_args((), {"on": on}, site)[0].value
