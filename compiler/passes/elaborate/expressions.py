"""Expressions: names, fields, arithmetic. Calls are in `calls`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from ....dsl import ast
from ....dsl.diagnostics import nearest, suggest
from ....dsl.modules import (
    DefSymbol,
    FlowModule,
    FlowSymbol,
    PythonModule,
    Unresolved,
    member,
    member_help,
    missing_member,
)
from ....dsl.operators import Operator
from ....dsl.vocabulary import AXES, METHODS, OPTIMIZERS, POINTWISE, REDUCTIONS, STATE_FUNCTIONS, STRUCTURAL, UNITS
from ...graph import AxisName, Constant, Operand, Ref, Size
from .context import Context, Env, Meaning, Method, ModelUse
from .folding import check_number, fold

BUILTINS = frozenset({*REDUCTIONS, *POINTWISE, *STRUCTURAL})

ELSEWHERE = {
    "average": "`mean(x)`",
    "avg": "`mean(x)`",
    "clip": "`clamp(x, lo, hi)`",
    "detach": "`stop_gradient(x)`",
    "len": "`count(x)`",
    "log": "`ln(x)`",
    "logsigmoid": "`log_sigmoid(x)`",
    "median": "`quantile(x, 0.5)`",
    "no_grad": "`stop_gradient(x)`",
    "pow": "`x ** y`",
    "relu": "`maximum(x, 0)`",
    "size": "`count(x)`",
    "softplus": "`-log_sigmoid(-x)`",
}
"""Names of other languages and libraries, and how Flow spells them."""

STATEMENT_WORDS = {
    **dict.fromkeys(OPTIMIZERS, "the header of an update: `update MODEL(adamw(lr=1e-6)):`"),
    **dict.fromkeys(STATE_FUNCTIONS, "the next weights of a model: `next ref = ema(ref, policy, decay=0.99)`"),
}
"""What stands only in one place of one statement."""

PACKAGES = frozenset({"math", "np", "numpy", "torch", "jnp", "jax", "F"})


def evaluate(context: Context, env: Env, expr: ast.Expr) -> Operand:
    """The value of an expression; what is no value (a module, a model, an axis) is refused."""
    meaning = resolve(context, env, expr)
    if meaning is None or isinstance(meaning, Ref | Size | int | float | str):
        return meaning
    return no_value(context, env, expr, meaning)


def no_value(context: Context, env: Env, expr: ast.Expr, meaning: Meaning) -> Operand:
    """Refuse what an expression means, since it is no value."""
    match meaning:
        case ModelUse(role=role):
            message, help = f"model `{role}` is no value", "call one of its methods, such as `.logprobs(rollout)`"
        case Method(model=model, name=name):
            message, help = f"`{model.role}.{name}` is not called", f"write `{model.role}.{name}(…)`"
        case AxisName(kind=kind):
            message, help = f"axis `{kind}` is no value", "axes stand after `by=`, `over=` and `to=`"
        case DefSymbol() | Operator():
            message, help = f"function `{_spelt(expr)}` is not called", f"write `{_spelt(expr)}(…)`"
        case _:
            message, help = f"module `{_spelt(expr)}` is no value", "call one of its functions"
    return context.refuse("E0205", message, env, expr.span, help=help)


def resolve(context: Context, env: Env, expr: ast.Expr) -> Meaning:
    """What an expression means."""
    match expr:
        case ast.Num():
            return _number(context, env, expr)
        case ast.Str(value=value) | ast.Bool(value=value):
            return value
        case ast.Name():
            return lookup(context, env, expr)
        case ast.Attr():
            return _attribute(context, env, expr)
        case ast.Unary(op=op, operand=operand):
            return pointwise(context, env, "neg" if op == "-" else op, [operand], expr)
        case ast.Binary(op=op, left=left, right=right):
            return pointwise(context, env, op, [left, right], expr)
        case ast.Call():
            from .calls import call

            return call(context, env, expr)
        case ast.Index():
            return context.refuse("E0205", "values have no subscripts", env, expr.span, help="use `keep` or `where`")


def _number(context: Context, env: Env, expr: ast.Num) -> Operand:
    try:
        check_number(expr.value)
    except ValueError as error:
        return context.refuse("E0205", f"this has no value: {error}", env, expr.span)
    if expr.unit is None:
        return expr.value
    if expr.unit not in UNITS:
        message = f"`{expr.unit}` is no unit"
        return context.refuse("E0206", message, env, expr.span, help=suggest(expr.unit, UNITS))
    if not isinstance(expr.value, int):
        help = f"write `{round(expr.value)} {expr.unit}`"
        return context.refuse("E0206", f"a size is a whole number, not {expr.value}", env, expr.span, help=help)
    return Size(expr.value, expr.unit)


def _spelt(expr: ast.Expr) -> str:
    """A dotted name as it was written."""
    match expr:
        case ast.Attr(base=base, name=name):
            return f"{_spelt(base)}.{name}"
        case ast.Name(id=name):
            return name
    return "this"


# ---------------------------------------------------------------- names


def lookup(context: Context, env: Env, name: ast.Name) -> Meaning:
    """What a name means: a local of the definition, a name of the blocks around, then of the module."""
    if env.locals is not None and name.id in env.locals:
        return env.locals[name.id]
    if env.locals is None:
        found = _in_scopes(context, env, name.id)
        if found is not _MISSING:
            return found  # type: ignore[return-value]
    if name.id in env.module.names:
        symbol = env.module.names[name.id]
        if isinstance(symbol, Unresolved):
            return context.error(env, name.span)
        if isinstance(symbol, FlowSymbol):
            message = f"`{name.id}` is a flow: nothing calls or reads it"
            help = "a flow is compiled and run by itself; share formulas with `def`"
            return context.refuse("E0205", message, env, name.span, help=help)
        return symbol
    if name.id in AXES:
        return AxisName(name.id)
    if name.id == "step" and env.locals is None:
        return context.emit(env.anonymous(), "step", {}, name.span)
    return _unknown(context, env, name)


_MISSING = object()


def _in_scopes(context: Context, env: Env, name: str) -> object:
    for scope in env.scope.chain():
        if name in scope.names or name in scope.pending:
            scope.read.add(name)
        if name in scope.names:
            return scope.names[name]
        if name in scope.pending:
            from .statements import elaborate_pending

            return elaborate_pending(context, scope, name)
    if name in context.roles:
        return ModelUse(name)
    if name in context.states:
        return context.emit(
            Env(env.scope.chain()[-1], env.module), "state", {}, context.states[name].span, {"state": name}
        )
    if name in context.params:
        context.read.add(name)
        value = context.params[name]
        return value if value is not None else context.error(env, env.module.tree.span)
    return _MISSING


def visible_names(context: Context, env: Env) -> set[str]:
    """Every name that could stand here, for suggestions."""
    names: set[str] = set(env.locals or ()) | set(env.module.names) | set(BUILTINS)
    if env.locals is None:
        names |= {"step", *context.roles, *context.states, *context.params}
        for scope in env.scope.chain():
            names |= set(scope.names) | set(scope.pending)
    return names


def _unknown(context: Context, env: Env, name: ast.Name) -> Operand:
    """Refuse a name that nothing gives: once per file, however often it is read."""
    if (env.module.path, name.id) in context.unknown:
        return context.error(env, name.span)
    context.unknown.add((env.module.path, name.id))
    if name.id in STATEMENT_WORDS:
        message = f"`{name.id}` makes no value"
        return context.refuse("E0205", message, env, name.span, help=f"write it in {STATEMENT_WORDS[name.id]}")
    if name.id in BUILTINS:
        return context.refuse(
            "E0205", f"function `{name.id}` is not called", env, name.span, help=f"write `{name.id}(…)`"
        )
    close = nearest(name.id, visible_names(context, env))
    help = f"did you mean `{close}`?" if close else "assign it, import it, or make it a parameter of the flow"
    if name.id in ELSEWHERE:
        help = f"in Flow it is {ELSEWHERE[name.id]}"
    elif name.id in PACKAGES:
        help = "Flow has its own functions (`mean`, `exp`, `ln`, …); other Python stands in a module beside the flow"
    return context.refuse("E0101", f"unknown name `{name.id}`", env, name.span, help=help)


# ---------------------------------------------------------------- attributes


def _attribute(context: Context, env: Env, expr: ast.Attr) -> Meaning:
    base = resolve(context, env.anonymous(), expr.base)
    if context.is_error(base):
        return base
    match base:
        case ModelUse():
            return _of_model(context, env, base, expr)
        case FlowModule() | PythonModule():
            symbol = member(base, expr.name)
            if isinstance(symbol, Unresolved):
                return context.error(env, expr.span)
            if symbol is None or isinstance(symbol, FlowSymbol):
                message = missing_member(base, expr.name)
                return context.refuse("E0107", message, env, expr.span, help=member_help(base, expr.name))
            return symbol
        case Ref():
            return context.emit(env, "field", {"record": base}, expr.span, {"field": expr.name})
        case Method() | AxisName():
            return context.refuse("E0104", f"`.{expr.name}` of something that has no fields", env, expr.span)
    return context.refuse("E0104", f"a number or text has no field `{expr.name}`", env, expr.span)


def _of_model(context: Context, env: Env, model: ModelUse, expr: ast.Attr) -> Meaning:
    kind = context.roles[model.role].kind
    if kind == "unknown":  # refused where it was declared
        return context.error(env, expr.span)
    if expr.name == "next" and env.scope.updated_role() == model.role:
        message = f"`{model.role}.next` inside the update that makes it"
        help = f"write `{model.role}` for its current weights, or read `{model.role}.next` after the update"
        return context.refuse("E0306", message, env, expr.span, help=help)
    if expr.name == "next" and model.version == "now":
        return ModelUse(model.role, "next")
    methods = METHODS.get(kind, ())
    if expr.name in methods:
        return Method(model, expr.name)
    others = [k for k, m in METHODS.items() if expr.name in m]
    if others:
        message = f"a `{kind}` has no `{expr.name}`; that is a phase of a `{others[0]}`"
        return context.refuse("E0309", message, env, expr.span, help=f"`{model.role}` has {_listed(methods)}")
    message = f"model `{model.role}` has no `{expr.name}`"
    return context.refuse("E0309", message, env, expr.span, help=suggest(expr.name, [*methods, "next"]))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`.{n}`" for n in names) or "no phases"


# ---------------------------------------------------------------- arithmetic


def pointwise(context: Context, env: Env, fn: str, operands: Sequence[ast.Expr], expr: ast.Expr) -> Operand:
    """An operator or pointwise function, folded if everything in it is known."""
    values = [evaluate(context, env.anonymous(), o) for o in operands]
    return apply(context, env, fn, values, expr)


def apply(context: Context, env: Env, fn: str, values: list[Operand], expr: ast.Expr) -> Operand:
    constants: list[Constant] = [v for v in values if not isinstance(v, Ref)]
    if len(constants) == len(values):
        return _fold(context, env, fn, constants, expr)
    plain = [v.value if isinstance(v, Size) else v for v in values]
    return context.emit(env, "map", {str(i): v for i, v in enumerate(plain)}, expr.span, {"fn": fn})


def _fold(context: Context, env: Env, fn: str, constants: list[Constant], expr: ast.Expr) -> Operand:
    try:
        return fold(fn, constants)
    except (ArithmeticError, ValueError, TypeError) as error:
        return context.refuse("E0205", f"this has no value: {error}", env, expr.span)


def axis(context: Context, env: Env, expr: ast.Expr) -> AxisName | None:
    """The axis that `by=`, `over=` or `to=` names; anything else is refused."""
    match expr:
        case ast.Name(id=name) if env.locals and context.is_error(env.locals.get(name)):
            return None  # refused where it was passed
        case ast.Name(id=name) if env.locals and isinstance(env.locals.get(name), AxisName):
            return cast(AxisName, env.locals[name])  # a definition's parameter that stands for an axis
        case ast.Name(id=name) if env.locals and (passed := _passed_axis(context, env, env.locals.get(name))):
            return passed
        case ast.Name(id=kind) if kind in AXES:
            return AxisName(kind)
        case ast.Str(value=kind) if kind in AXES:
            return AxisName(kind)
        case ast.Attr(base=base, name=kind) if kind in AXES:
            owner = evaluate(context, env.anonymous(), base)
            return AxisName(kind, owner) if isinstance(owner, Ref) else None
    if isinstance(expr, ast.Name) and expr.id not in visible_names(context, env):
        help = f"{suggest(expr.id, AXES)}; a column is no axis"
        context.refuse("E0204", f"`{expr.id}` is no axis", env, expr.span, help=help)
    else:
        context.refuse(
            "E0208",
            "`by=`, `over=` and `to=` take an axis, not a value or a column",
            env,
            expr.span,
            help="write `prompt`, `sample` or `token`, or an axis of a value such as `rollout.sample`",
        )
    return None


def _passed_axis(context: Context, env: Env, meaning: Meaning) -> AxisName | None:
    """The axis that a definition was passed by its full name, `rollout.token`, which reads like a field."""
    if not isinstance(meaning, Ref):
        return None
    for scope in env.scope.chain():
        for i, node in enumerate(scope.nodes):
            if node.id == meaning.id and node.op == "field" and node.attrs["field"] in AXES:
                scope.nodes[i] = replace(node, attrs={**node.attrs, "is_axis": True})
                return AxisName(node.attrs["field"], cast(Ref, node.args["record"]))
    return None
