"""Arithmetic on what is known at compile time."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ...graph import LARGEST_INT, Constant, Size

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
    "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b),
}

LARGEST_CHOICE = 10_000
"""Above this, exact combinations take longer than a compilation may."""


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and abs(a) > 1 and b > LARGEST_INT.bit_length():
        raise OverflowError
    return a**b


def _comb(n: Any, k: Any) -> float:
    if min(k, n - k) > LARGEST_CHOICE:
        raise OverflowError
    return float(math.comb(int(n), int(k)))


def _log_sigmoid(x: Any) -> float:
    return float(min(x, 0) - math.log1p(math.exp(-abs(x))))


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

KEEPS_UNIT = frozenset({"+", "-", "*", "//", "%", "maximum", "minimum", "neg"})
QUOTIENTS = frozenset({"/", "//"})


def _check_texts(fn: str, plain: list[Any]) -> None:
    """Text is compared with text, chosen between texts and joined with `+`."""
    values = plain[1:] if fn == "where" else plain
    texts = [isinstance(v, str) for v in values]
    if any(texts) and fn not in ("==", "!=", "where", "+"):
        raise TypeError("text has no arithmetic")
    if any(texts) and not all(texts):
        raise TypeError("text and numbers don't mix")


def _computed(fn: str, plain: list[Any]) -> Any:
    try:
        return FUNCTIONS[fn](*plain)
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("the result is too large") from None
    except ValueError:
        raise ValueError(f"`{fn}` of {', '.join(str(p) for p in plain)} is not defined") from None


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
    sizes = [isinstance(v, Size) for v in values]
    if (fn == "*" and all(sizes)) or (fn == "**" and any(sizes)):
        raise ValueError(f"a product of sizes isn't counted in {units.pop()}; one of them is a plain number")
    plain = [v.value if isinstance(v, Size) else v for v in values]
    _check_texts(fn, plain)
    result = _computed(fn, plain)
    check_number(result)
    ratio = fn in QUOTIENTS and sizes[-1]  # how often one size is in another is a plain number
    if units and not ratio and fn in KEEPS_UNIT and float(result).is_integer():
        return Size(int(result), units.pop())
    return result  # type: ignore[no-any-return]
