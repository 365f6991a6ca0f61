"""Constant folding on literals, with Python's arithmetic: `1 - 0.2` in a flow is what Python makes of it."""

import math
import operator
from collections.abc import Callable
from typing import Any

from .ast import Binary, Bool, Expr, Num, Str, Unary

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
}
_MIRRORED = {">": "<", ">=": "<="}
_LARGEST_POWER = 1024


def fold(expr: Expr) -> Expr:
    """The literal that an operation on literals gives; comparisons in one direction; anything else as it is.

    The operands must be folded already.
    """
    match expr:
        case Unary(op="-", operand=Num(value=value, unit=unit)):
            return Num(-value, unit, span=expr.span)
        case Unary(op="not", operand=Bool(value=truth)):
            return Bool(not truth, span=expr.span)
        case Binary(op="and" | "or"):
            return _fold_logic(expr)
        case Binary(op="==" | "!=" | "<" | "<=" | ">" | ">="):
            return _fold_comparison(expr)
        case Binary(left=Num() as left, right=Num() as right):
            return _fold_numbers(expr, left, right)
        case Binary(op="+", left=Str() as first, right=Str() as second):
            return Str(first.value + second.value, span=expr.span)
        case _:
            return expr


def _fold_logic(expr: Binary) -> Expr:
    """`true and x` is x, `false and x` is false, and so on."""
    neutral = expr.op == "and"
    for literal, other in ((expr.left, expr.right), (expr.right, expr.left)):
        if isinstance(literal, Bool):
            return other if literal.value == neutral else literal
    return expr


def _fold_comparison(expr: Binary) -> Expr:
    """Python can't tell `0 < x` from `x > 0`, so neither do we: `<` and `<=` remain, `==` has literals at its right."""
    op, left, right = expr.op, expr.left, expr.right
    if op in _MIRRORED:
        op, left, right = _MIRRORED[op], right, left
    elif op in ("==", "!=") and _is_literal(left) and not _is_literal(right):
        left, right = right, left
    match left, right:
        case (Num(unit=unit), Num(unit=other)) if unit == other:
            return Bool(_COMPARISONS[op](left.value, right.value), span=expr.span)
        case (Str(), Str()) | (Bool(), Bool()) if op in ("==", "!="):
            return Bool(_COMPARISONS[op](left, right), span=expr.span)
        case _:
            return Binary(op, left, right, span=expr.span)


def _is_literal(expr: Expr) -> bool:
    return isinstance(expr, (Num, Str, Bool))


def _fold_numbers(expr: Binary, left: Num, right: Num) -> Expr:
    """The number; as it is where units don't fit or there is no finite result."""
    units = {left.unit, right.unit}
    scaled = expr.op == "*" and None in units
    summed = expr.op in ("+", "-") and len(units) == 1
    too_large = expr.op == "**" and abs(right.value) > _LARGEST_POWER
    if not (units == {None} or scaled or summed) or too_large:
        return expr
    try:
        value = _ARITHMETIC[expr.op](left.value, right.value)
    except ArithmeticError:
        return expr
    if isinstance(value, complex) or not math.isfinite(value):
        return expr
    return Num(value, left.unit or right.unit, span=expr.span)
