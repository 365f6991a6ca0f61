"""Models and states of a flow, made before its block: they have no order."""

from collections.abc import Sequence
from dataclasses import replace

from ....dsl import ast
from ....dsl.diagnostics import nearest, suggest
from ....dsl.vocabulary import CONSTRUCTOR_OPTIONS, MODEL_CONSTRUCTORS
from ...graph import Ref, Role, State
from .context import Context, Env, Scope
from .expressions import evaluate
from .names import claim
from .options import read_options, with_defaults


def declare_roles(context: Context, scope: Scope, body: Sequence[ast.FlowStatement]) -> None:
    """Models and states, known before anything that uses them. They may be made of constants that the flow names."""
    env = Env(scope, context.module)
    models = [s for s in body if isinstance(s, ast.ModelDecl) and claim(context, scope, s.name, s)]
    states = [s for s in body if isinstance(s, ast.StateDecl) and claim(context, scope, s.name, s)]
    for model in models:
        context.roles[model.name] = Role(model.name, "unknown", None, span=model.span)
    for state in states:
        context.states[state.name] = State(state.name, 0.0, state.span)
    pending = {m.name: m for m in models}
    for model in models:
        _declare_role(context, env, model, pending)
    for state in states:
        context.states[state.name] = State(state.name, _initial(context, env, state), state.span)


def _declare_role(context: Context, env: Env, statement: ast.ModelDecl, pending: dict[str, ast.ModelDecl]) -> None:
    """Make a role, after the model it is a frozen copy of."""
    if pending.pop(statement.name, None) is None:
        return
    source = _copied(statement.value)
    if _copies_itself(context, statement, pending):
        help = "one of them is made of a path: `causal_lm(…)`"
        context.refuse("E0112", f"model `{statement.name}` is a copy of itself", env, statement.span, help=help)
        return
    if source in pending:
        _declare_role(context, env, pending[source], pending)
    role = _role(context, env, statement.name, statement.value)
    if role:
        context.roles[statement.name] = role


def _copies_itself(context: Context, statement: ast.ModelDecl, pending: dict[str, ast.ModelDecl]) -> bool:
    """Whether following `frozen(model)` leads back to where it began."""
    seen, source = {statement.name}, _copied(statement.value)
    while source in pending:
        if source in seen:
            break
        seen.add(source)
        source = _copied(pending[source].value)
    return source == statement.name


def _copied(value: ast.Expr) -> str | None:
    """The model that `frozen(model)` names."""
    match value:
        case ast.Call(func=ast.Name(id="frozen"), args=(ast.Arg(value=ast.Name(id=name)),)):
            return name
    return None


def _initial(context: Context, env: Env, statement: ast.StateDecl) -> int | float | bool:
    value = evaluate(context, env, statement.value)
    if isinstance(value, int | float):
        return value
    if not context.is_error(value):
        message = f"state `{statement.name}` starts from a number known at compile time"
        context.refuse("E0113", message, env, statement.value.span)
    return 0.0


def _role(context: Context, env: Env, name: str, value: ast.Expr) -> Role | None:
    match value:
        case ast.Call(func=ast.Name(id="frozen"), args=(ast.Arg(value=inner),)):
            return _frozen(context, env, name, inner, value)
        case ast.Call(func=ast.Name(id=kind)) if kind in MODEL_CONSTRUCTORS:
            return _constructed(context, env, name, kind, value)
    made = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
    close = nearest(made, [*MODEL_CONSTRUCTORS, "frozen"]) if made != "frozen" else None
    allowed = ", ".join(f"`{c}(…)`" for c in MODEL_CONSTRUCTORS)
    help = f"did you mean `{close}(…)`?" if close else f"write {allowed}, or `frozen(…)` of one of these or of a model"
    context.refuse("E0312", f"this makes no model for `{name}`", env, value.span, help=help)
    return None


def _frozen(context: Context, env: Env, name: str, inner: ast.Expr, whole: ast.Call) -> Role | None:
    if isinstance(inner, ast.Name) and inner.id in context.roles:
        source = context.roles[inner.id]
        if source.kind == "unknown":
            return None  # refused where it was declared
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
        if not context.is_error(path):
            shown = "a value of the flow" if isinstance(path, Ref) else f"`{path}`"
            message = f"{kind} takes a path as text, known at compile time, not {shown}"
            context.refuse("E0113", message, env, value.args[0].span)
        return None
    return Role(name, kind, path, options=with_defaults(options, CONSTRUCTOR_OPTIONS), span=value.span)
