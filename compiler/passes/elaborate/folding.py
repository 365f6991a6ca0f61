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
    "**": lambda a, b: _power(a, b),
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}

LARGEST_INT = 2**63 - 1
"""What a plan can hold."""

LARGEST_CHOICE = 10_000
"""Above this, exact combinations take longer than a compilation may."""


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and abs(a) > 1 and b > LARGEST_INT.bit_length():
        raise OverflowError("the power is too large")
    return a**b


def _comb(n: Any, k: Any) -> float:
    if min(k, n - k) > LARGEST_CHOICE:
        raise OverflowError("these are too many combinations")
    return float(math.comb(int(n), int(k)))


def _log_sigmoid(x: Any) -> float:
    return min(x, 0) - math.log1p(math.exp(-abs(x)))


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
    "sigmoid": lambda x: math.exp(_log_sigmoid(x)),
    "log_sigmoid": _log_sigmoid,
    "stop_gradient": lambda x: x,
    "comb": _comb,
}

KEEPS_UNIT = frozenset({"+", "-", "*", "//", "maximum", "minimum", "neg"})


def check_number(value: object) -> None:
    """Raises ValueError for a number that no plan can hold."""
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("the result is no finite number")
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        raise ValueError("the whole number is too large; write it as a float, such as `1e30`")


def fold(fn: str, values: list[Constant]) -> Constant:
    """The value of `fn` on constants. A size keeps its unit where the result is still a size.

    Raises ArithmeticError, ValueError or TypeError where Python would.
    """
    units = {v.unit for v in values if isinstance(v, Size)}
    if len(units) > 1:
        raise ValueError(f"{' and '.join(sorted(units))} don't mix")
    plain = [v.value if isinstance(v, Size) else v for v in values]
    texts = [isinstance(v, str) for v in plain]
    if any(texts) and fn not in ("==", "!=", "where") and not (fn == "+" and all(texts)):
        raise TypeError("text has no arithmetic")
    result = FUNCTIONS[fn](*plain)
    check_number(result)
    if units and fn in KEEPS_UNIT and float(result).is_integer():
        return Size(int(result), units.pop())
    return result  # type: ignore[no-any-return]
