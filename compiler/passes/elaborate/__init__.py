"""Elaborate: AST → graph. Names are resolved, parameters take their values, definitions are inlined, constants folded.

Types are not known yet; a value that was refused becomes an `error` node, so that every mistake is reported once.
"""

from collections.abc import Mapping

from ....dsl import ast
from ....dsl.diagnostics import Report, suggest
from ....dsl.modules import FlowModule
from ....dsl.vocabulary import UNITS
from ...graph import Constant, Graph, Ref, Size
from .calls import check_unused_definitions
from .context import Context, Env, Scope
from .expressions import evaluate
from .names import claim
from .statements import elaborate_block

KINDS = ("int", "float", "bool", "str", *UNITS)
"""What a parameter's annotation may be."""


def elaborate(module: FlowModule, flow: ast.Flow, settings: Mapping[str, Constant], report: Report) -> Graph:
    """The graph of one flow with `settings` over its parameters' defaults."""
    context = Context(report, module)
    scope = Scope("flow")
    _bind_params(context, scope, flow, settings)
    elaborate_block(context, scope, flow.body)
    check_unused_definitions(context)
    _unread_params(context, flow)
    return Graph(flow.name, context.params, context.roles, context.states, tuple(scope.nodes), flow.doc, flow.span)


def _bind_params(context: Context, scope: Scope, flow: ast.Flow, settings: Mapping[str, Constant]) -> None:
    env = Env(scope, context.module)
    for name in settings:
        if name not in [p.name for p in flow.params]:
            help = suggest(name, [p.name for p in flow.params]) or f"flow `{flow.name}` has no parameters"
            context.report.add("E0105", f"flow `{flow.name}` has no parameter `{name}`", flow.span, help=help)
    for param in flow.params:
        default = _default(context, env, param)
        value = settings.get(param.name, default)
        claim(context, scope, param.name, param)
        if value is None and param.default is None:
            help = f"give it with `--set {param.name}=…`, or write a default"
            context.report.add("E0111", f"parameter `{param.name}` has no value", param.span, help=help)
        context.params[param.name] = _checked(context, param, value, default)
    for param in flow.params:
        scope.spans.pop(param.name, None)


def _default(context: Context, env: Env, param: ast.Param) -> Constant:
    """The default of a parameter; None if it has none, or one that was refused."""
    value = evaluate(context, env, param.default) if param.default is not None else None
    if not isinstance(value, Ref):
        return value
    if not context.is_error(value):
        message = f"the default of parameter `{param.name}` is known at compile time"
        context.refuse("E0113", message, env, param.span, help="use constants and earlier parameters")
    return None


def _unread_params(context: Context, flow: ast.Flow) -> None:
    """Warn of parameters that nothing reads: a setting of theirs would change nothing."""
    placed = {n.id for p in context.module.places() for n in _names_in(p) if p.flow == flow.name}
    for param in flow.params if not context.report.has_errors else ():
        if param.name not in context.read | placed:
            help = "drop it, or use it: setting it changes nothing"
            context.report.add("W0102", f"parameter `{param.name}` is never read", param.span, help=help)


def _names_in(place: ast.Place) -> list[ast.Name]:
    options = [a.value for line in place.lines for a in line.options]
    options += [a.value for a in place.cluster.args] if isinstance(place.cluster, ast.Call) else []
    return [o for o in options if isinstance(o, ast.Name)]


def _checked(context: Context, param: ast.Param, value: Constant, default: Constant) -> Constant:
    """The value of a parameter, if it is of its annotation's (or its default's) kind; None if it was refused."""
    wanted = _kind(param, default)
    if param.annotation and param.annotation not in KINDS:
        message = f"`{param.annotation}` is no kind of parameter"
        context.report.add("E0113", message, param.span, help=suggest(param.annotation, KINDS))
        return None
    if value is None or wanted is None or _fits(value, wanted):
        return float(value) if wanted == "float" and isinstance(value, int) else value
    message = f"parameter `{param.name}` takes {_article(wanted)}, not {_shown(value)}"
    is_bare = wanted in UNITS and isinstance(value, int) and not isinstance(value, bool)
    help = f"write `{param.name}={value} {wanted}`" if is_bare else None
    context.report.add("E0113", message, param.span, help=help)
    return default if wanted is not None and _fits(default, wanted) else None


def _kind(param: ast.Param, default: Constant) -> str | None:
    if param.annotation:
        return param.annotation
    match default:
        case Size(unit=unit):
            return unit
        case bool():
            return "bool"
        case str():
            return "str"
        case int() | float():
            return "number"
    return None


def _fits(value: Constant, wanted: str) -> bool:
    match wanted:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float" | "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "bool":
            return isinstance(value, bool)
        case "str":
            return isinstance(value, str)
    return isinstance(value, Size) and value.unit == wanted


def _shown(value: Constant) -> str:
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def _article(kind: str) -> str:
    names = {"int": "a whole number", "float": "a number", "number": "a number", "bool": "true or false", "str": "text"}
    return names.get(kind, f"a size in {kind}")
