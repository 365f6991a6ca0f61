"""Calls: built-in functions, model phases, Python operators, and definitions, which are inlined."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ....dsl import ast
from ....dsl.diagnostics import suggest
from ....dsl.modules import DefSymbol, FlowModule, PythonModule
from ....dsl.operators import Operator, Parameter
from ....dsl.vocabulary import (
    GENERATE_OPTIONS,
    MODEL_CONSTRUCTORS,
    POINTWISE,
    READ_OPTIONS,
    REDUCTIONS,
    STRUCTURAL,
    TOKENISED_OPTIONS,
)
from ...graph import AxisName, Operand, Ref, Size
from .context import Context, Env, Meaning, Method, ModelUse, Scope
from .expressions import apply, axis, evaluate, no_value, resolve
from .options import read_options, refused, with_defaults

LATER = ("env", "max_turns", "partial")
"""Options of `generate` that the language has and this version hasn't."""


def call(context: Context, env: Env, expr: ast.Call) -> Operand:
    """The value of a call."""
    if isinstance(expr.func, ast.Name) and not _is_bound(context, env, expr.func.id):
        name = expr.func.id
        if name in REDUCTIONS:
            return _reduction(context, env, name, expr)
        if name in POINTWISE:
            return _pointwise(context, env, name, expr)
        if name in STRUCTURAL:
            return _STRUCTURAL[name](context, env, expr)
        if name in MODEL_CONSTRUCTORS or name == "frozen":
            message = f"`{name}(…)` makes a model"
            return context.refuse("E0312", message, env, expr.span, help=f"write `model NAME = {name}(…)`")
    target = resolve(context, env.anonymous(), expr.func)
    if context.is_error(target):
        _evaluate_all(context, env, expr)
        return _error(context, env, expr)
    match target:
        case Method():
            return _phase(context, env, target, expr)
        case DefSymbol():
            return _inline(context, env, target, expr)
        case Operator():
            return _operator(context, env, target, expr)
    return context.refuse("E0205", "this can't be called", env, expr.func.span, help=_callable(target))


def _callable(target: Meaning) -> str | None:
    """What to write where something was called that is no function."""
    match target:
        case ModelUse(role=role):
            return f"call one of its methods, such as `{role}.logprobs(rollout)`"
        case FlowModule() | PythonModule():
            return f"call one of its functions, such as `{target.name}.{next(iter(_functions(target)), 'f')}(…)`"
    return "a value is used as it is, without parentheses"


def _functions(module: FlowModule | PythonModule) -> Iterable[str]:
    return module.names if isinstance(module, FlowModule) else module.functions


def _evaluate_all(context: Context, env: Env, expr: ast.Call) -> None:
    """Look at the arguments of a call that was refused, for what else is wrong."""
    for arg in expr.args:
        resolve(context, env.anonymous(), arg.value)


def _is_bound(context: Context, env: Env, name: str) -> bool:
    return name in (env.locals or ()) or name in env.module.names


# ---------------------------------------------------------------- binding arguments


def bind(
    context: Context, env: Env, args: Sequence[ast.Arg], params: Sequence[str], required: int, what: str, span: ast.Node
) -> dict[str, ast.Expr] | None:
    """Arguments by parameter name, or None after reporting what doesn't fit."""
    bound: dict[str, ast.Expr] = {}
    positional = [a for a in args if a.name is None]
    if len(positional) > len(params):
        message = f"{what} takes {_counted(len(params))}, not {len(positional)}"
        context.refuse("E0109", message, env, positional[len(params)].span, help=f"it is `{what}({', '.join(params)})`")
        return None
    for name, arg in zip(params, positional, strict=False):
        bound[name] = arg.value
    for arg in args:
        if arg.name is None:
            continue
        if arg.name not in params:
            context.refuse(
                "E0105", f"{what} has no parameter `{arg.name}`", env, arg.span, help=suggest(arg.name, params)
            )
            return None
        if arg.name in bound:
            context.refuse("E0109", f"argument `{arg.name}` of {what} is given twice", env, arg.span)
            return None
        bound[arg.name] = arg.value
    missing = [p for p in params[:required] if p not in bound]
    if missing:
        message = f"{what} needs {' and '.join(f'`{m}`' for m in missing)}"
        context.refuse("E0108", message, env, span.span, help=f"it is `{what}({', '.join(params)})`")
        return None
    return bound


def _error(context: Context, env: Env, expr: ast.Expr) -> Ref:
    """A value that fits everywhere, after something was reported."""
    return context.error(env, expr.span)


# ---------------------------------------------------------------- built-in functions


PAIRWISE = {
    "max": "the larger of two is `maximum(a, b)`",
    "min": "the smaller of two is `minimum(a, b)`",
    "sum": "add two values with `+`; axes are named: `by=…`, `over=…`",
}
"""What a reduction with two values was probably meant to be."""


def _reduction(context: Context, env: Env, fn: str, expr: ast.Call) -> Operand:
    params = ["x", "q"] if fn == "quantile" else ["x"]
    extra = [a for a in expr.args if a.name is None][len(params) :]
    if extra:
        message = f"`{fn}` pools {'one value' if len(params) == 1 else 'a value by a fraction'}: this is one more"
        context.refuse("E0109", message, env, extra[0].span, help=PAIRWISE.get(fn, "axes are named: `by=…`, `over=…`"))
        return _error(context, env, expr)
    bound = bind(context, env, expr.args, [*params, "by", "over", "where"], len(params), fn, expr)
    if bound is None:
        return _error(context, env, expr)
    if "by" in bound and "over" in bound:
        return context.refuse("E0109", f"`{fn}` takes `by=` or `over=`, not both", env, expr.span)
    args = {"x": evaluate(context, env.anonymous(), bound["x"])}
    for name in ("q", "where"):
        if name in bound:
            args[name] = evaluate(context, env.anonymous(), bound[name])
    attrs: dict[str, object] = {"fn": fn}
    for name in ("by", "over"):
        if name in bound:
            attrs[name] = axis(context, env, bound[name])
            if attrs[name] is None:
                return _error(context, env, expr)
    return context.emit(env, "reduce", args, expr.span, attrs)


def _pointwise(context: Context, env: Env, fn: str, expr: ast.Call) -> Operand:
    params = POINTWISE[fn]
    bound = bind(context, env, expr.args, params, len(params), fn, expr)
    if bound is None:
        return _error(context, env, expr)
    return apply(context, env, fn, [evaluate(context, env.anonymous(), bound[p]) for p in params], expr)


def _expand(context: Context, env: Env, expr: ast.Call) -> Operand:
    bound = bind(context, env, expr.args, STRUCTURAL["expand"], 2, "expand", expr)
    to = axis(context, env, bound["to"]) if bound else None
    if bound is None or to is None:
        return _error(context, env, expr)
    return context.emit(env, "expand", {"x": evaluate(context, env.anonymous(), bound["x"])}, expr.span, {"to": to})


def _rank(context: Context, env: Env, expr: ast.Call) -> Operand:
    bound = bind(context, env, expr.args, STRUCTURAL["rank"], 1, "rank", expr)
    if bound is None:
        return _error(context, env, expr)
    by = axis(context, env, bound["by"]) if "by" in bound else None
    attrs = {"by": by} if by else {}
    return context.emit(env, "rank", {"x": evaluate(context, env.anonymous(), bound["x"])}, expr.span, attrs)


def _keep(context: Context, env: Env, expr: ast.Call) -> Operand:
    bound = bind(context, env, expr.args, STRUCTURAL["keep"], 2, "keep", expr)
    if bound is None:
        return _error(context, env, expr)
    args = {name: evaluate(context, env.anonymous(), bound[name]) for name in ("rollout", "where")}
    return context.emit(env, "keep", {"record": args["rollout"], "where": args["where"]}, expr.span)


def _read(context: Context, env: Env, expr: ast.Call) -> Operand:
    if not expr.args or expr.args[0].name not in (None, "data"):
        return context.refuse(
            "E0108", "read needs the data's path", env, expr.span, help='write `read("train.jsonl", batch=64 prompts)`'
        )
    path = evaluate(context, env.anonymous(), expr.args[0].value)
    given = read_options(context, env, expr.args[1:], READ_OPTIONS, "read")
    if context.is_error(path):
        return _error(context, env, expr)
    if not isinstance(path, str):
        return context.refuse("E0113", "read takes a path as text, known at compile time", env, expr.args[0].span)
    options = with_defaults(given, READ_OPTIONS)
    if (options["batch"] is None) == (not options["all"]) and not refused(given, "batch", "all"):
        message = "read takes either `batch=` or `all=true`"
        return context.refuse(
            "E0108", message, env, expr.span, help="write `batch=64 prompts`, or `all=true` for the whole file"
        )
    return context.emit(env, "read", {}, expr.span, {"path": path, **options})


_STRUCTURAL = {"expand": _expand, "rank": _rank, "keep": _keep, "read": _read}


# ---------------------------------------------------------------- model phases


def _phase(context: Context, env: Env, method: Method, expr: ast.Call) -> Operand:
    attrs = {"model": method.model.role, "version": _version(env, method.model)}
    if method.name == "generate":
        return _generate(context, env, expr, attrs)
    positional = [a for a in expr.args if a.name is None]
    options = read_options(context, env, [a for a in expr.args if a.name], TOKENISED_OPTIONS, f"`{method.name}`")
    if not 1 <= len(positional) <= 2:
        who = f"{method.model.role}.{method.name}"
        message = f"`{who}` takes a rollout, or a prompt and a response"
        help = f"write `{who}(rollout)` or `{who}(d.prompt, d.response)`"
        return context.refuse("E0108", message, env, expr.span, help=help)
    values = [evaluate(context, env.anonymous(), a.value) for a in positional]
    constant = next((a for a, v in zip(positional, values, strict=True) if not isinstance(v, Ref)), None)
    if constant:
        message = f"`{method.name}` reads a rollout or columns, not a constant"
        return context.refuse("E0205", message, env, constant.value.span)
    sequences = values[0]
    if len(values) == 2:
        tokeniser = {"tokenizer_of": method.model.role, "chat": bool(options.get("chat", False))}
        sequences = context.emit(
            env.anonymous(), "tokenise", {"prompt": values[0], "response": values[1]}, expr.span, tokeniser
        )
    return context.emit(env, method.name, {"sequences": sequences}, expr.span, attrs)


def _version(env: Env, model: ModelUse) -> str:
    """`live` for the model that the enclosing update trains: its weights change from minibatch to minibatch."""
    return "live" if model.version == "now" and env.scope.updated_role() == model.role else model.version


def _generate(context: Context, env: Env, expr: ast.Call, attrs: Mapping[str, object]) -> Operand:
    if _in_update(context, env, expr, "generate"):
        return _error(context, env, expr)
    if env.target is None:
        return context.refuse(
            "E0207",
            "a draw must be the whole right side of an assignment",
            env,
            expr.span,
            help="give it a name of its own: `rollout = policy.generate(…)`; its noise is keyed by that name",
        )
    if not expr.args or expr.args[0].name is not None:
        return context.refuse(
            "E0108", "generate needs the prompts", env, expr.span, help="write `policy.generate(prompts, …)`"
        )
    later = [a for a in expr.args if a.name in LATER and a.value != ast.Bool(False)]
    if later:
        message = f"option `{later[0].name}` of generate is not supported by this version"
        return context.refuse("E0114", message, env, later[0].span, help="leave it out")
    prompts = evaluate(context, env.anonymous(), expr.args[0].value)
    given = read_options(context, env, expr.args[1:], GENERATE_OPTIONS, "generate")
    options = with_defaults(given, GENERATE_OPTIONS)
    args = {"prompts": prompts}
    for name in ("max_new_tokens", "temperature"):
        args[name] = None if refused(given, name) else options[name]
    for name in (*args, *LATER):
        options.pop(name, None)
    return context.emit(env, "generate", args, expr.span, {**attrs, **options})


def _in_update(context: Context, env: Env, expr: ast.Call, what: str) -> bool:
    """Whether a draw stands in an update, which is refused: its minibatches read what was drawn before."""
    inside = env.scope.updated_role() is not None
    if inside:
        message = f"a draw can't stand in an `update`: `{what}`"
        context.refuse("E0311", message, env, expr.span, help="draw before the update; its minibatches cut the rows")
    return inside


# ---------------------------------------------------------------- Python operators


def _operator(context: Context, env: Env, operator: Operator, expr: ast.Call) -> Operand:
    params = [p for p in operator.params if p.hint.sees != "rng"]
    if operator.draws and _in_update(context, env, expr, operator.name):
        return _error(context, env, expr)
    if operator.draws and env.target is None:
        message = f"`{operator.name}` takes `rng`, so it is a draw and must be the whole right side of an assignment"
        help = f"give it a name of its own: `x = {operator.module}.{operator.name}(…)`"
        return context.refuse("E0207", message, env, expr.span, help=help)
    bound = bind_operator(context, env, operator, params, expr)
    if bound is None:
        return _error(context, env, expr)
    args = {name: evaluate(context, env.anonymous(), value) for name, value in bound.items()}
    return context.emit(env, "call", args, expr.span, {"operator": operator})


def bind_operator(
    context: Context, env: Env, operator: Operator, params: Sequence[Parameter], expr: ast.Call
) -> dict[str, ast.Expr] | None:
    """Arguments by parameter name, as Python binds them: keyword-only parameters take no positional argument."""
    what = f"{operator.module}.{operator.name}"
    free = [p.name for p in params if not p.keyword_only]
    positional = [a for a in expr.args if a.name is None]
    if len(positional) > len(free):
        message = f"{what} takes {_counted(len(free))} by position, not {len(positional)}"
        context.refuse("E0109", message, env, positional[len(free)].span, help=_signature(what, params))
        return None
    bound = bind(context, env, expr.args, [p.name for p in params], 0, what, expr)
    missing = [f"`{p.name}`" for p in params if p.required and p.name not in (bound or {})]
    if bound is not None and missing:
        message = f"{what} needs {' and '.join(missing)}"
        context.refuse("E0108", message, env, expr.span, help=_signature(what, params))
        return None
    return bound


def _signature(what: str, params: Sequence[Parameter]) -> str:
    shown = [f"{p.name}=…" if p.keyword_only or not p.required else p.name for p in params]
    return f"it is `{what}({', '.join(shown)})`"


def _counted(number: int) -> str:
    return f"{number} argument{'' if number == 1 else 's'}"


# ---------------------------------------------------------------- definitions


def _inline(context: Context, env: Env, symbol: DefSymbol, expr: ast.Call) -> Operand:
    definition = symbol.definition
    context.inlined.add(id(definition))
    if any(d is definition for d in context.inlining):
        message = f"definition `{definition.name}` uses itself"
        return context.refuse(
            "E0112", message, env, expr.span, help="definitions are inlined, so they can't be recursive"
        )
    params = [p.name for p in definition.params]
    required = len([p for p in definition.params if p.default is None])
    bound = bind(context, env, expr.args, params, required, definition.name, expr)
    if bound is None:
        return _error(context, env, expr)
    given = {name: _argument(context, env, value) for name, value in bound.items()}
    context.inlining.append(definition)
    try:
        return _body(context, env, symbol, given, expr)
    finally:
        context.inlining.pop()


def check_unused_definitions(context: Context) -> None:
    """Look for mistakes in definitions of the file that the flow doesn't call; nothing of them enters the graph."""
    for symbol in [*context.module.names.values()]:
        if isinstance(symbol, DefSymbol) and symbol.module is context.module:
            definition = symbol.definition
            if id(definition) not in context.inlined:
                env = Env(Scope("flow"), context.module, target=definition.name)
                given = {p.name: context.error(env, p.span) for p in definition.params}
                context.inlined.add(id(definition))
                _body(context, env, symbol, given, ast.Call(ast.Name(definition.name), span=definition.span))


def _argument(context: Context, env: Env, value: ast.Expr) -> Meaning:
    """An argument of a definition: a value, or a model, whose methods the definition may call."""
    meaning = resolve(context, env.anonymous(), value)
    if meaning is None or isinstance(meaning, ModelUse | AxisName | Ref | Size | int | float | str):
        return meaning
    return no_value(context, env, value, meaning)


def _body(context: Context, env: Env, symbol: DefSymbol, given: Mapping[str, Meaning], expr: ast.Call) -> Operand:
    names: dict[str, Meaning] = dict(given)
    inner = replace(env, module=symbol.module, locals=names, call_span=env.call_span or expr.span, target=None)
    if expr.func == ast.Name(symbol.definition.name) and expr.span == symbol.definition.span:
        inner = replace(inner, call_span=None)  # no call: it is looked at where it stands
    for param in symbol.definition.params:
        if param.name not in names and param.default is not None:
            names[param.name] = evaluate(context, inner, param.default)
    for statement in symbol.definition.body:
        if statement.name in names:
            context.refuse(
                "E0102", f"`{statement.name}` is assigned twice in `{symbol.definition.name}`", inner, statement.span
            )
        names[statement.name] = evaluate(context, inner, statement.value)
    return evaluate(context, replace(inner, target=env.target), symbol.definition.result)
