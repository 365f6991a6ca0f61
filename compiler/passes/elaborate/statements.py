"""Statements of a flow: each becomes nodes of the block it stands in."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ....dsl import ast
from ....dsl.diagnostics import nearest, suggest
from ....dsl.vocabulary import COLLECT_OPTIONS, OPTIMIZERS, STATE_FUNCTIONS, UPDATE_OPTIONS
from ...graph import Operand, Ref, Role
from .context import Context, Env, Meaning, ModelUse, Scope
from .expressions import evaluate, resolve
from .names import claim
from .options import read_options, sized, with_defaults
from .roles import declare_roles

ALLOWED = {
    "flow": (
        ast.Assign,
        ast.ModelDecl,
        ast.StateDecl,
        ast.Next,
        ast.Metric,
        ast.Update,
        ast.When,
        ast.Every,
        ast.Collect,
    ),
    "when": (ast.Assign, ast.Next, ast.Metric, ast.Update, ast.When, ast.Every),
    "every": (ast.Assign, ast.Next, ast.Metric, ast.Update, ast.When, ast.Every),
    "collect": (ast.Assign, ast.Metric, ast.Keep),
    "update": (ast.Assign, ast.Metric, ast.Minimize),
}
"""Which statements each block may hold."""

PLACES = {
    "flow": "the flow itself",
    "when": "a `when`",
    "every": "an `every`",
    "collect": "a `collect`",
    "update": "an `update`",
}
"""How a message calls a block."""


def elaborate_block(context: Context, scope: Scope, body: Sequence[ast.FlowStatement]) -> None:
    """Elaborate a block. Its names are declared first: order in the file means nothing."""
    for statement in body:
        _declare(context, scope, statement)
    if scope.kind == "flow":
        declare_roles(context, scope, body)
    for statement in body:
        elaborate_statement(context, scope, statement)
    _unread_constants(context, scope, body)


def _unread_constants(context: Context, scope: Scope, body: Sequence[ast.FlowStatement]) -> None:
    """Warn of names for constants that nothing reads; those for values of the graph are checked there."""
    for statement in body if not context.report.has_errors else ():
        if isinstance(statement, ast.Assign) and statement.name not in scope.read:
            value = scope.names.get(statement.name)
            outside = scope.parent is not None and scope.kind == "collect" and statement.name in scope.parent.spans
            if not isinstance(value, Ref) and not outside:
                message = f"`{statement.name}` is never used"
                context.report.add("W0101", message, statement.span, help="drop it, or record it with `metric`")


def elaborate_statement(context: Context, scope: Scope, statement: ast.FlowStatement) -> None:
    if id(statement) in scope.done:
        return
    scope.done.add(id(statement))
    if not isinstance(statement, ALLOWED[scope.kind]):
        _misplaced(context, scope, statement)
        return
    env = Env(scope, context.module)
    match statement:
        case ast.Assign() if scope.spans.get(statement.name) != statement.span:
            evaluate(context, env, statement.value)  # the name is another's, which was reported
        case ast.Assign():
            scope.names[statement.name] = _assign(context, env, statement)
        case ast.Metric():
            value = evaluate(context, env, statement.value)
            context.emit(env, "metric", {"value": value}, statement.span, {"metric": statement.name})
        case ast.Minimize():
            context.emit(env, "minimize", {"value": evaluate(context, env, statement.value)}, statement.span)
        case ast.Keep():
            _keep_rows(context, env, statement)
        case ast.Next():
            _next(context, env, statement)
        case ast.Update():
            _update(context, env, statement)
        case ast.When():
            condition = evaluate(context, env, statement.condition)
            _region(context, env, "when", {"condition": condition}, {}, statement)
        case ast.Every():
            _every(context, env, statement)
        case ast.Collect():
            _collect(context, env, statement)
        case ast.ModelDecl() | ast.StateDecl():
            pass  # made before the block, since they have no order


def elaborate_pending(context: Context, scope: Scope, name: str) -> Meaning:
    """A name that is used before its statement was reached."""
    statement, owner = scope.pending.pop(name)
    if id(statement) in owner.done:
        env = Env(scope, context.module)
        help = "a value of the step before is a `state`"
        return context.refuse("E0112", f"`{name}` depends on itself", env, statement.span, help=help)
    elaborate_statement(context, owner, statement)
    return owner.names[name]


# ---------------------------------------------------------------- names


def _declare(context: Context, scope: Scope, statement: ast.FlowStatement) -> None:
    if isinstance(statement, ast.Collect) and scope.kind == "flow":
        for inner in statement.body:
            if isinstance(inner, ast.Assign) and claim(context, scope, inner.name, inner):
                scope.pending[inner.name] = (statement, scope)
    elif isinstance(statement, ast.Assign) and claim(context, scope, statement.name, statement):
        scope.pending[statement.name] = (statement, scope)


def _misplaced(context: Context, scope: Scope, statement: ast.FlowStatement) -> None:
    stand_in = context.error(Env(scope, context.module), statement.span)
    if isinstance(statement, ast.StateDecl):
        scope.names[statement.name] = stand_in
    elif isinstance(statement, ast.ModelDecl):
        context.roles.setdefault(statement.name, Role(statement.name, "unknown", None))
    words = {ast.ModelDecl: "model", ast.StateDecl: "state", ast.Keep: "keep"}
    word = words.get(type(statement), type(statement).__name__.lower())
    homes = [PLACES[k] for k, kinds in ALLOWED.items() if isinstance(statement, kinds)]
    help = f"`{word}` stands in {' or in '.join(homes)}"
    context.report.add("E0311", f"`{word}` can't stand in {PLACES[scope.kind]}", statement.span, help=help)


def _assign(context: Context, env: Env, statement: ast.Assign) -> Meaning:
    value = evaluate(context, replace(env, target=statement.name), statement.value)
    if isinstance(value, Ref):
        context.name_value(env.scope, value, statement.name)
    env.scope.pending.pop(statement.name, None)
    return value


# ---------------------------------------------------------------- the next step's models and states


def _next(context: Context, env: Env, statement: ast.Next) -> None:
    if statement.name in context.states:
        value = evaluate(context, env, statement.value)
        context.emit(env, "next_state", {"value": value}, statement.span, {"state": statement.name})
    elif statement.name in context.roles:
        _next_model(context, env, statement)
    else:
        help = suggest(statement.name, [*context.states, *context.roles])
        context.refuse("E0310", f"`{statement.name}` is neither a state nor a model", env, statement.span, help=help)


def _next_model(context: Context, env: Env, statement: ast.Next) -> None:
    match statement.value:
        case ast.Call(func=ast.Name(id="ema"), args=args):
            attrs = _ema(context, env, statement, args)
        case value:
            source = resolve(context, env, value)
            attrs = {"source": source.role, "version": source.version} if isinstance(source, ModelUse) else None
    if attrs == {}:
        return  # reported already
    if attrs is None:
        name = statement.name
        help = f"write `next {name} = MODEL` or `next {name} = ema({name}, MODEL, decay=0.99)`"
        context.refuse(
            "E0310", f"the next weights of `{statement.name}` come from a model", env, statement.value.span, help=help
        )
        return
    if attrs["source"] == statement.name and attrs["version"] == "next":
        message = f"the next `{statement.name}` is made of itself"
        context.refuse("E0306", message, env, statement.value.span, help=f"write `{statement.name}` for version t")
        return
    context.emit(env, "next_model", {}, statement.span, {"model": statement.name, **attrs})


def _ema(context: Context, env: Env, statement: ast.Next, args: tuple[ast.Arg, ...]) -> dict[str, object] | None:
    """What `ema(target, source, decay)` says; None if it names no models, empty if something was reported."""
    from .calls import bind

    bound = bind(context, env, args, STATE_FUNCTIONS["ema"], 3, "ema", statement)
    if bound is None:
        return {}
    target, source = (resolve(context, env, bound[n]) for n in ("target", "source"))
    decay = evaluate(context, env, bound["decay"])
    if not isinstance(source, ModelUse) or target != ModelUse(statement.name):
        return None
    if not isinstance(decay, int | float) or not 0 <= decay <= 1:
        shown = "a value of the flow" if isinstance(decay, Ref) else f"`{decay}`"
        message = f"`decay` is a number from 0 to 1, known at compile time, not {shown}"
        context.refuse("E0113", message, env, bound["decay"].span)
        return {}
    return {"source": source.role, "version": source.version, "decay": float(decay)}


# ---------------------------------------------------------------- regions


def _region(
    context: Context,
    env: Env,
    op: str,
    args: dict[str, Operand],
    attrs: Mapping[str, object],
    statement: ast.Update | ast.When | ast.Every | ast.Collect,
    role: str | None = None,
) -> Scope:
    scope = Scope(op, env.scope, role=role)
    elaborate_block(context, scope, statement.body)
    context.emit(env, op, args, statement.span, attrs, tuple(scope.nodes))
    return scope


def _update(context: Context, env: Env, statement: ast.Update) -> None:
    model = statement.model
    if model not in context.roles:
        help = suggest(model, context.roles)
        context.refuse(
            "E0101",
            f"unknown model `{model}`",
            env,
            statement.name_span if statement.name_span.line else statement.span,
            help=help,
        )
        model = nearest(model, context.roles) or next(iter(context.roles), model)  # look at its block as well
    optimizer = _optimizer(context, env, statement)
    rest = statement.args[1:] if _is_made(statement.args) else statement.args
    options = read_options(context, env, rest, UPDATE_OPTIONS, "update")
    attrs = {"model": model, "optimizer": optimizer, **with_defaults(options, UPDATE_OPTIONS)}
    _region(context, env, "update", {}, attrs, statement, role=model)


def _is_made(args: Sequence[ast.Arg]) -> bool:
    """Whether an update's arguments start with something that may have been meant as its optimizer."""
    return bool(args) and args[0].name is None


def _optimizer(context: Context, env: Env, statement: ast.Update) -> dict[str, object]:
    match statement.args:
        case (ast.Arg(name=None, value=ast.Call(func=ast.Name(id=name)) as made), *_) if name in OPTIMIZERS:
            table = OPTIMIZERS[name]
            given = read_options(context, env, made.args, table, name)
            help = f"write `{name}(lr=1e-6)`"
            if "lr" not in given:
                context.refuse("E0108", f"{name} needs a learning rate", env, made.span, help=help)
            elif isinstance(given["lr"], Ref):
                message = f"the learning rate of {name} must be known at compile time"
                context.refuse("E0113", message, env, made.span, help=help)
            return {"name": name, **with_defaults(given, table)}
        case (ast.Arg(name=None, value=ast.Call(func=ast.Name(id=name)) as made), *_):
            context.refuse("E0101", f"unknown optimizer `{name}`", env, made.func.span, help=suggest(name, OPTIMIZERS))
            return {}
    help = f"write `update {statement.model}(adamw(lr=1e-6), …):`"
    context.refuse("E0108", "an update starts with its optimizer", env, statement.span, help=help)
    return {}


def _every(context: Context, env: Env, statement: ast.Every) -> None:
    period = evaluate(context, env, statement.period)
    size = None
    if not isinstance(period, Ref):
        size = sized(context, env, period, ("steps",), "every", statement.period.span)
    elif not context.is_error(period):
        help = "for a condition that changes write `when`, such as `when step % 20 == 0:`"
        context.refuse("E0113", "a period is known at compile time", env, statement.period.span, help=help)
    _region(context, env, "every", {}, {"period": size.value if size else 1}, statement)


def _collect(context: Context, env: Env, statement: ast.Collect) -> None:
    target = None
    if statement.args and statement.args[0].name is None:
        value = evaluate(context, env, statement.args[0].value)
        if not isinstance(value, Ref):
            target = sized(context, env, value, ("prompts",), "collect", statement.args[0].span)
        elif not context.is_error(value):
            message = "the target of collect is known at compile time"
            context.refuse("E0113", message, env, statement.args[0].span, help="write `collect(64 prompts, …):`")
    else:
        context.refuse(
            "E0108", "collect needs how much to keep", env, statement.span, help="write `collect(64 prompts, …):`"
        )
    rest = statement.args[1:] if _is_made(statement.args) else statement.args
    options = read_options(context, env, rest, COLLECT_OPTIONS, "collect")
    attrs = {"target": target.value if target else None, **with_defaults(options, COLLECT_OPTIONS)}
    inner = _region(context, env, "collect", {}, attrs, statement)
    region = env.scope.nodes[-1].id
    for name, meaning in inner.names.items():
        env.scope.pending.pop(name, None)
        env.scope.names[name] = _collected(context, env, name, meaning, region, statement)


def _collected(context: Context, env: Env, name: str, meaning: Meaning, region: int, statement: ast.Collect) -> Meaning:
    """After the block, a name of it means the kept rows of all rounds."""
    if not isinstance(meaning, Ref) or context.is_error(meaning):
        return meaning
    named = replace(env, target=name)
    return context.emit(named, "collected", {"value": meaning}, statement.span, {"region": region})


def _keep_rows(context: Context, env: Env, statement: ast.Keep) -> None:
    at = statement.name_span if statement.name_span.line else statement.span
    rows = evaluate(context, env, ast.Name(statement.name, span=at))
    where = evaluate(context, env, statement.where)
    context.emit(env, "keep_rows", {"rows": rows, "where": where}, statement.span)
