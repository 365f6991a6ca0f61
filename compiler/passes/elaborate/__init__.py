"""Elaborate: AST → graph. Names are resolved, parameters take their values, definitions are inlined, constants folded.

Types are not known yet; a value that was refused becomes an `error` node, so that every mistake is reported once.
"""

from collections.abc import Mapping

from ....dsl import ast
from ....dsl.diagnostics import Report, suggest
from ....dsl.modules import FlowModule
from ...graph import Constant, Graph, Ref, Size
from .context import Context, Env, Scope
from .expressions import evaluate
from .statements import _claim, declare_roles, elaborate_block


def elaborate(module: FlowModule, flow: ast.Flow, settings: Mapping[str, Constant], report: Report) -> Graph:
    """The graph of one flow with `settings` over its parameters' defaults."""
    context = Context(report, module)
    scope = Scope("flow")
    _bind_params(context, scope, flow, settings)
    declare_roles(context, scope, flow.body)
    elaborate_block(context, scope, flow.body)
    return Graph(flow.name, context.params, context.roles, context.states, tuple(scope.nodes), flow.doc, flow.span)


def _bind_params(context: Context, scope: Scope, flow: ast.Flow, settings: Mapping[str, Constant]) -> None:
    env = Env(scope, context.module)
    for name in settings:
        if name not in [p.name for p in flow.params]:
            help = suggest(name, [p.name for p in flow.params]) or f"flow `{flow.name}` has no parameters"
            context.report.add("E0105", f"flow `{flow.name}` has no parameter `{name}`", flow.span, help=help)
    for param in flow.params:
        default = evaluate(context, env, param.default) if param.default is not None else None
        value = settings.get(param.name, None if isinstance(default, Ref) else default)
        _claim(context, scope, param.name, param)
        if value is None:
            context.report.add(
                "E0111",
                f"parameter `{param.name}` has no value",
                param.span,
                help=f"give it with `--set {param.name}=…`",
            )
        context.params[param.name] = _checked(context, param, value, None if isinstance(default, Ref) else default)
    for param in flow.params:
        scope.spans.pop(param.name, None)


def _checked(context: Context, param: ast.Param, value: Constant, default: Constant) -> Constant:
    """The value of a parameter, if it is of its annotation's (or its default's) kind."""
    wanted = _kind(param, default)
    if value is None or wanted is None or _fits(value, wanted):
        return float(value) if wanted == "float" and isinstance(value, int) else value
    given = f"`{value}`"
    help = (
        f"write `{param.name}={value} {default.unit}`" if isinstance(default, Size) and isinstance(value, int) else None
    )
    context.report.add(
        "E0113", f"parameter `{param.name}` takes {_article(wanted)}, not {given}", param.span, help=help
    )
    return default if default is not None else value


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


def _article(kind: str) -> str:
    names = {"int": "a whole number", "float": "a number", "number": "a number", "bool": "true or false", "str": "text"}
    return names.get(kind, f"a size in {kind}")
