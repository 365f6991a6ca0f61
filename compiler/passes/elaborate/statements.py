"""Statements of a flow: each becomes nodes of the block it stands in."""

from collections.abc import Sequence

from ....dsl import ast
from ....dsl.diagnostics import suggest
from ....dsl.vocabulary import (
    COLLECT_OPTIONS,
    CONSTRUCTOR_OPTIONS,
    MODEL_CONSTRUCTORS,
    OPTIMIZERS,
    RESERVED,
    STATE_FUNCTIONS,
    UPDATE_OPTIONS,
)
from ...graph import Operand, Ref, Role, Size, State
from .context import Context, Env, Meaning, ModelUse, Scope
from .expressions import BUILTINS, evaluate, resolve
from .options import read_options, sized, with_defaults

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


def elaborate_block(context: Context, scope: Scope, body: Sequence[ast.FlowStatement]) -> None:
    """Elaborate a block. Its names are declared first: order in the file means nothing."""
    for statement in body:
        _declare(context, scope, statement)
    for statement in body:
        elaborate_statement(context, scope, statement)


def elaborate_statement(context: Context, scope: Scope, statement: ast.FlowStatement) -> None:
    if id(statement) in scope.done:
        return
    scope.done.add(id(statement))
    if not isinstance(statement, ALLOWED[scope.kind]):
        _misplaced(context, scope, statement)
        return
    env = Env(scope, context.module)
    match statement:
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
    if isinstance(statement, ast.Collect):
        elaborate_statement(context, owner, statement)
        return scope.names[name]
    if id(statement) in owner.done:
        env = Env(scope, context.module)
        return context.refuse(
            "E0112", f"`{name}` depends on itself", env, statement.span, help="a value of the step before is a `state`"
        )
    elaborate_statement(context, owner, statement)
    return owner.names[name]


# ---------------------------------------------------------------- names


def _declare(context: Context, scope: Scope, statement: ast.FlowStatement) -> None:
    if isinstance(statement, ast.Collect) and scope.kind == "flow":
        for inner in statement.body:
            if isinstance(inner, ast.Assign) and _claim(context, scope, inner.name, inner):
                scope.pending[inner.name] = (statement, scope)
    elif isinstance(statement, ast.Assign) and _claim(context, scope, statement.name, statement):
        scope.pending[statement.name] = (statement, scope)


def _claim(context: Context, scope: Scope, name: str, node: ast.Node) -> bool:
    """Whether the block may give this name; a second assignment and shadowing are refused.

    The names of a `collect` are claimed twice with one span: in it, and around it, where they mean the kept rows.
    """
    from ....dsl.diagnostics import Note

    if name in scope.spans:
        first = (Note("first assigned here", scope.spans[name]),)
        help = "give the second value another name; a value that changes from step to step is a `state`"
        context.report.add("E0102", f"`{name}` is assigned twice", node.span, notes=first, help=help)
        return False
    scope.spans[name] = node.span
    taken = _taken(context, scope, name)
    if taken:
        context.report.add(
            "E0103", f"`{name}` is already {taken}", node.span, help="choose another name: names never shadow"
        )
    return taken is None


def _taken(context: Context, scope: Scope, name: str) -> str | None:
    if name in RESERVED:
        return "a word of the language"
    if name in BUILTINS or name in MODEL_CONSTRUCTORS or name in OPTIMIZERS:
        return "a built-in function"
    if name in context.params:
        return "a parameter of the flow"
    if name in context.roles:
        return "a model"
    if name in context.states:
        return "a state"
    if name in context.module.names:
        return "an imported or defined name"
    outer = next((s for s in scope.chain()[1:] if name in s.spans and s.spans[name] != scope.spans[name]), None)
    return f"assigned in the block around, in line {outer.spans[name].line}" if outer else None


def _misplaced(context: Context, scope: Scope, statement: ast.FlowStatement) -> None:
    words = {ast.ModelDecl: "model", ast.StateDecl: "state", ast.Keep: "keep"}
    word = words.get(type(statement), type(statement).__name__.lower())
    where = {"flow": "the flow itself", "update": "an `update`", "collect": "a `collect`"}.get(
        scope.kind, f"a `{scope.kind}`"
    )
    homes = [k for k, kinds in ALLOWED.items() if isinstance(statement, kinds)]
    help = f"`{word}` stands in {' or '.join('the flow itself' if h == 'flow' else f'a `{h}` block' for h in homes)}"
    context.report.add("E0311", f"`{word}` can't stand in {where}", statement.span, help=help)


def _assign(context: Context, env: Env, statement: ast.Assign) -> Meaning:
    from dataclasses import replace

    value = evaluate(context, replace(env, target=statement.name), statement.value)
    if isinstance(value, Ref):
        context.name_value(env.scope, value, statement.name)
    env.scope.pending.pop(statement.name, None)
    return value


# ---------------------------------------------------------------- models and states


def declare_roles(context: Context, scope: Scope, body: Sequence[ast.FlowStatement]) -> None:
    """Models and states, known before anything that uses them."""
    env = Env(scope, context.module)
    for statement in body:
        if isinstance(statement, ast.ModelDecl) and _claim(context, scope, statement.name, statement):
            role = _role(context, env, statement.name, statement.value)
            context.roles[statement.name] = role or Role(statement.name, "unknown", None, span=statement.span)
        elif isinstance(statement, ast.StateDecl) and _claim(context, scope, statement.name, statement):
            initial = evaluate(context, env, statement.value)
            if isinstance(initial, Ref | str) or initial is None or isinstance(initial, Size):
                context.refuse(
                    "E0113",
                    f"state `{statement.name}` starts from a number known at compile time",
                    env,
                    statement.value.span,
                )
                initial = 0.0
            context.states[statement.name] = State(statement.name, initial, statement.span)


def _role(context: Context, env: Env, name: str, value: ast.Expr) -> Role | None:
    match value:
        case ast.Call(func=ast.Name(id="frozen"), args=(ast.Arg(value=inner),)):
            return _frozen(context, env, name, inner, value)
        case ast.Call(func=ast.Name(id=kind)) if kind in MODEL_CONSTRUCTORS:
            return _constructed(context, env, name, kind, value)
    help = (
        f"allowed: {', '.join(f'`{c}(…)`' for c in MODEL_CONSTRUCTORS)}, or `frozen(…)` of one of these or of a model"
    )
    context.refuse("E0312", f"this makes no model for `{name}`", env, value.span, help=help)
    return None


def _frozen(context: Context, env: Env, name: str, inner: ast.Expr, whole: ast.Call) -> Role | None:
    from dataclasses import replace

    if isinstance(inner, ast.Name) and inner.id in context.roles:
        source = context.roles[inner.id]
        base = source.of or source.name
        return replace(
            source, name=name, frozen=True, of=None if source.frozen and not source.of else base, span=whole.span
        )
    if isinstance(inner, ast.Name):
        help = suggest(inner.id, context.roles) or "declare the model above it"
        context.refuse("E0101", f"unknown model `{inner.id}`", env, inner.span, help=help)
        return None
    role = _role(context, env, name, inner)
    return replace(role, frozen=True, span=whole.span) if role else None


def _constructed(context: Context, env: Env, name: str, kind: str, value: ast.Call) -> Role | None:
    if not value.args or value.args[0].name not in (None, "path"):
        context.refuse(
            "E0108",
            f"{kind} needs a model's path or hub id",
            env,
            value.span,
            help=f'write `{kind}("Qwen/Qwen2.5-0.5B-Instruct")`',
        )
        return None
    path = evaluate(context, env, value.args[0].value)
    options = read_options(context, env, value.args[1:], CONSTRUCTOR_OPTIONS, kind)
    if not isinstance(path, str):
        if not isinstance(path, Ref):
            context.refuse("E0113", f"{kind} takes a path as text, not `{path}`", env, value.args[0].span)
        return None
    return Role(name, kind, path, options=with_defaults(options, CONSTRUCTOR_OPTIONS), span=value.span)


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
    if attrs is None:
        help = f"write `next {statement.name} = MODEL` or `next {statement.name} = ema({statement.name}, MODEL, decay=0.99)`"
        context.refuse(
            "E0310", f"the next weights of `{statement.name}` come from a model", env, statement.value.span, help=help
        )
        return
    context.emit(env, "next_model", {}, statement.span, {"model": statement.name, **attrs})


def _ema(context: Context, env: Env, statement: ast.Next, args: tuple[ast.Arg, ...]) -> dict[str, object] | None:
    from .calls import bind

    bound = bind(context, env, args, STATE_FUNCTIONS["ema"], 3, "ema", statement)
    if bound is None:
        return None
    target, source = (resolve(context, env, bound[n]) for n in ("target", "source"))
    decay = evaluate(context, env, bound["decay"])
    if not isinstance(source, ModelUse) or not isinstance(target, ModelUse) or target.role != statement.name:
        return None
    if not isinstance(decay, int | float) or not 0 <= decay <= 1:
        context.refuse("E0113", f"`decay` is a number from 0 to 1, not `{decay}`", env, bound["decay"].span)
        return None
    return {"source": source.role, "version": source.version, "decay": float(decay)}


# ---------------------------------------------------------------- regions


def _region(
    context: Context,
    env: Env,
    op: str,
    args: dict[str, Operand],
    attrs: dict[str, object],
    statement: ast.Update | ast.When | ast.Every | ast.Collect,
    role: str | None = None,
) -> Scope:
    scope = Scope(op, env.scope, role=role)
    elaborate_block(context, scope, statement.body)
    context.emit(env, op, args, statement.span, attrs, tuple(scope.nodes))
    return scope


def _update(context: Context, env: Env, statement: ast.Update) -> None:
    if statement.model not in context.roles:
        help = suggest(statement.model, context.roles)
        context.refuse("E0101", f"unknown model `{statement.model}`", env, statement.span, help=help)
        return
    optimizer = _optimizer(context, env, statement)
    options = read_options(context, env, statement.args[1:], UPDATE_OPTIONS, "update")
    attrs = {"model": statement.model, "optimizer": optimizer, **with_defaults(options, UPDATE_OPTIONS)}
    _region(context, env, "update", {}, attrs, statement, role=statement.model)


def _optimizer(context: Context, env: Env, statement: ast.Update) -> dict[str, object]:
    match statement.args:
        case (ast.Arg(name=None, value=ast.Call(func=ast.Name(id=name)) as made), *_) if name in OPTIMIZERS:
            table = OPTIMIZERS[name]
            options = with_defaults(read_options(context, env, made.args, table, name), table)
            rate = options["lr"]
            if not isinstance(rate, int | float) or isinstance(rate, bool) or rate < 0:
                shown = "nothing" if rate is None else f"`{rate}`"
                context.refuse(
                    "E0113",
                    f"{name} needs a learning rate, a number known at compile time, not {shown}",
                    env,
                    made.span,
                    help=f"write `{name}(lr=1e-6)`",
                )
            return {"name": name, **options}
    help = f"write `update {statement.model}(adamw(lr=1e-6), …):`"
    context.refuse("E0108", "an update starts with its optimizer", env, statement.span, help=help)
    return {}


def _every(context: Context, env: Env, statement: ast.Every) -> None:
    period = evaluate(context, env, statement.period)
    if isinstance(period, Ref):
        context.refuse("E0113", "a period is known at compile time", env, statement.period.span)
        return
    size = sized(context, env, period, ("steps",), "every", statement.period.span)
    if size:
        _region(context, env, "every", {}, {"period": size.value}, statement)


def _collect(context: Context, env: Env, statement: ast.Collect) -> None:
    target = None
    if statement.args and statement.args[0].name is None:
        value = evaluate(context, env, statement.args[0].value)
        if not isinstance(value, Ref):
            target = sized(context, env, value, ("prompts",), "collect", statement.args[0].span)
    else:
        context.refuse(
            "E0108", "collect needs how much to keep", env, statement.span, help="write `collect(64 prompts, …):`"
        )
    options = read_options(context, env, statement.args[1:], COLLECT_OPTIONS, "collect")
    attrs = {"target": target.value if target else 1, **with_defaults(options, COLLECT_OPTIONS)}
    inner = _region(context, env, "collect", {}, attrs, statement)
    region = env.scope.nodes[-1].id
    for name, meaning in inner.names.items():
        env.scope.pending.pop(name, None)
        env.scope.names[name] = _collected(context, env, name, meaning, region, statement)


def _collected(context: Context, env: Env, name: str, meaning: Meaning, region: int, statement: ast.Collect) -> Meaning:
    """After the block, a name of it means the kept rows of all rounds."""
    from dataclasses import replace

    if not isinstance(meaning, Ref):
        return meaning
    named = replace(env, target=name)
    return context.emit(named, "collected", {"value": meaning}, statement.span, {"region": region})


def _keep_rows(context: Context, env: Env, statement: ast.Keep) -> None:
    rows = resolve(context, env, ast.Name(statement.name, span=statement.span))
    where = evaluate(context, env, statement.where)
    if isinstance(rows, Ref):
        context.emit(env, "keep_rows", {"rows": rows, "where": where}, statement.span)
