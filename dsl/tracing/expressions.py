"""From what a user's Python passes around to expressions of the language."""

import math
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from .. import ast
from ..diagnostics import FlowError
from ..source import Span
from ..vocabulary import Options
from .spans import Site
from .trace import Scope, Symbol, Trace, Traced, current, refusal


class Inline:
    """A Python object that stands for a piece of syntax wherever it is passed, and is never named."""

    __slots__ = ()

    def _expr(self, span: Span) -> ast.Expr:
        raise NotImplementedError


Operand: TypeAlias = Symbol | Inline | bool | int | float | str
"""What a traced operation takes."""

AXIS_OPTIONS = ("by", "over", "to")
"""Arguments whose strings are axes: `by="prompt"`."""

ADVICE: Mapping[type[object], str] = {
    type(None): "leave the argument out",
    list: "a flow has no lists: pass each element as an argument of its own",
    tuple: "a flow has no tuples: pass each element as an argument of its own",
    dict: "a flow has no dictionaries: pass each entry as an argument of its own",
    type: "pass an instance, as in `Prompts(64)`",
}


def to_expr(value: object, span: Span) -> ast.Expr:
    """The expression that `value` stands for, where it is used at `span`; refused if there is none."""
    match value:
        case Symbol():
            return reference(value._traced, span)
        case Inline():
            return value._expr(span)
        case bool():
            return ast.Bool(value, span=span)
        case int() | float() if math.isfinite(value):
            number = ast.Num(abs(value) if isinstance(value, int) else float(abs(value)), span=span)
            return ast.Unary("-", number, span=span) if math.copysign(1, value) < 0 else number
        case str():
            return ast.Str(str(value), span=span)
    raise _unsupported(value, span)


def to_args(
    values: Iterable[object], options: Mapping[str, object], site: Site, known: Options | None = None
) -> tuple[ast.Arg, ...]:
    """Arguments of a call, in the order written. `known` says which options are words of the language."""
    args = [ast.Arg(to_expr(v, site.part(i)), span=site.part(i)) for i, v in enumerate(values)]
    for name, value in options.items():
        span = site.part(name)
        args.append(ast.Arg(_option(name, value, span, known or {}), name, span=span))
    return tuple(args)


def axis_or_expr(name: str, value: object, span: Span) -> ast.Expr:
    """An argument or default by its name: strings of `by`, `over` and `to` are axes."""
    return to_name(value, span) if name in AXIS_OPTIONS and isinstance(value, str) else to_expr(value, span)


def to_name(text: str, span: Span) -> ast.Expr:
    """A name given as a string, dotted or not: `prompt`, `rollout.sample`, `policy.update`."""
    head, *rest = text.split(".")
    if not all(part.isidentifier() for part in (head, *rest)):
        raise refusal(
            "E0022", f"`{text}` is not a name", span, help="write a name such as `prompt` or `rollout.sample`"
        )
    named: ast.Expr = ast.Name(head, span=span)
    for part in rest:
        named = ast.Attr(named, part, span=span)
    return named


def reference(traced: Traced, span: Span, *, must_be_named: bool = False) -> ast.Expr:
    """How the running trace writes a value that is used at `span`: its name, or else the expression in place."""
    _check_owner(traced, span)
    traced.used = True
    if traced.name is not None:
        _check_visible(traced, span)
        return ast.Name(traced.name, span=span)
    if must_be_named or traced.kind in ("draw", "state"):
        raise _needs_name(traced, span)
    _check_same_block(traced, span)
    return traced.expr


def named(value: object, what: str, span: Span) -> str:
    """The name of a value that a statement names (`update policy`); refused for anything else."""
    if not isinstance(value, Symbol):
        raise refusal("E0027", f"{_described(value)} is not {what}", span, help=f"pass the variable that holds {what}")
    expr = reference(value._traced, span, must_be_named=True)
    if not isinstance(expr, ast.Name):
        raise refusal("E0027", f"{value._traced.text} is not {what}", span, help=f"pass the variable that holds {what}")
    return expr.id


def _option(name: str, value: object, span: Span, known: Options) -> ast.Expr:
    option = known.get(name)
    if option and option.kind == "word" and isinstance(value, str):
        return to_name(value, span)
    return axis_or_expr(name, value, span)


def _check_owner(traced: Traced, span: Span) -> None:
    trace = current()
    if traced.owner is not None and traced.owner is not trace:
        raise refusal(
            "E0028",
            f"{traced.text} belongs to `{traced.owner.what} {traced.owner.name}`",
            span,
            label="used outside of it",
            help="pass it as an argument",
        )


def _check_visible(traced: Traced, span: Span) -> None:
    here, made = _scopes(traced)
    if here and made and not here.sees(made):
        raise refusal(
            "E0028",
            f"`{traced.name}` is known only inside `{made.title}`",
            span,
            label="used after its block",
            help="compute it outside of the block, or use it inside",
        )


def _check_same_block(traced: Traced, span: Span) -> None:
    """An expression means something else in another block (a reduction in an update sees the minibatch)."""
    here, made = _scopes(traced)
    if here is not made and traced.kind != "inline":
        raise refusal(
            "E0028",
            f"{traced.text} was computed in another block and has no name",
            span,
            label="used here",
            help="assign it to a variable of the flow's function in the block that computes it",
        )


def _scopes(traced: Traced) -> tuple[Scope | None, Scope | None]:
    trace: Trace | None = traced.owner
    return (trace.scope if trace else None), traced.scope


def _needs_name(traced: Traced, span: Span) -> FlowError:
    what = {"draw": "a draw", "state": "a state", "model": "a model"}.get(traced.kind, "this value")
    return refusal(
        "E0024",
        f"{what} needs a name: {traced.text}",
        span,
        label="used before it has one",
        help="assign it to a variable of the flow's function first, as in `rollout = policy.generate(prompts)`",
    )


def _unsupported(value: object, span: Span) -> FlowError:
    if isinstance(value, float):
        return refusal("E0022", f"`{value}` is not a number of the language: it isn't finite", span)
    advice = next((a for kind, a in ADVICE.items() if isinstance(value, kind)), None)
    if advice is None and callable(value):
        advice = 'a Python function becomes an operator by `use("module").function`, a formula by `@define`'
    return refusal(
        "E0022",
        f"{_described(value)} can't stand in a flow",
        span,
        label="not a value of the language",
        help=advice or "a flow holds traced values, numbers, sizes such as `Prompts(64)`, text, True and False",
    )


def _described(value: Any) -> str:
    if isinstance(value, Symbol):
        return value._traced.text
    shown = reprlib.repr(value).splitlines()[0]
    return f"`{shown}`" if value is None else f"`{shown}` (of type `{type(value).__name__}`)"
