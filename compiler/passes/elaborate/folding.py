"""Arithmetic on what is known at compile time."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ...graph import Constant, Size

BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **BINARY,
    "neg": lambda x: -x,
    "not": lambda x: not x,
    "maximum": max,
    "minimum": min,
    "where": lambda c, a, b: a if c else b,
    "clamp": lambda x, lo, hi: min(max(x, lo), hi),
    "abs": abs,
    "exp": math.exp,
    "ln": math.log,
    "sqrt": math.sqrt,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "log_sigmoid": lambda x: -math.log1p(math.exp(-x)),
    "stop_gradient": lambda x: x,
    "comb": lambda n, k: float(math.comb(int(n), int(k))),
}

KEEPS_UNIT = frozenset({"+", "-", "*", "//", "maximum", "minimum", "neg"})


def fold(fn: str, values: list[Constant]) -> Constant:
    """The value of `fn` on constants. A size keeps its unit where the result is still a size.

    Raises ArithmeticError, ValueError or TypeError where Python would.
    """
    units = {v.unit for v in values if isinstance(v, Size)}
    if len(units) > 1:
        raise ValueError(f"{' and '.join(sorted(units))} don't mix")
    plain = [v.value if isinstance(v, Size) else v for v in values]
    if any(isinstance(v, str) for v in plain) and fn not in ("==", "!=", "where"):
        raise TypeError("text has no arithmetic")
    result = FUNCTIONS[fn](*plain)
    if units and fn in KEEPS_UNIT and float(result).is_integer():
        return Size(int(result), units.pop())
    return result  # type: ignore[no-any-return]
