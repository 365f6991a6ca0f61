"""What the result of a user's function may be: a plain Python value of the type its signature promises."""

import math
from collections.abc import Mapping
from typing import Any

from .boundary import OperatorError, RowContext, short

Expected = str | Mapping[str, str]


def checked(value: Any, expected: Expected, context: RowContext) -> Any:
    """The value as a plain Python one of the expected type.

    Raises:
        OperatorError: it isn't one; the text names the call.
    """
    try:
        return _convert(value, expected)
    except _UnfitError as error:
        raise OperatorError(context, f"returned {error}") from None


class _UnfitError(Exception):
    pass


def _convert(value: Any, expected: Expected) -> Any:
    if isinstance(expected, Mapping):
        return _convert_fields(value, expected)
    if value is None:
        raise _UnfitError(f"None, where {_word(expected)} is expected; does every path through it end in `return`?")
    if expected.startswith("list["):
        return _convert_items(value, expected)
    plain = _plain(value)
    match expected, plain:
        case ("any", _):
            return value
        case ("float", bool() | int() | float()) if math.isfinite(plain):
            return float(plain)
        case ("int", bool() | int()):
            return int(plain)
        case ("bool", bool()) | ("str", str()):
            return plain
        case ("float", float()):
            raise _UnfitError(f"{plain}, where a finite number is expected")
        case ("float" | "int" | "bool" | "str", _):
            raise _UnfitError(f"{short(value)} ({type(value).__name__}), where {_word(expected)} is expected")
    raise ValueError(f"unknown type of a result: {expected}")


def _convert_fields(value: Any, expected: Mapping[str, str]) -> Any:
    if not isinstance(value, tuple) or not hasattr(value, "_replace"):
        raise _UnfitError(f"{short(value)}, where a NamedTuple with {', '.join(expected)} is expected")
    fields: dict[str, Any] = {}
    for name, kind in expected.items():
        if not hasattr(value, name):
            raise _UnfitError(f"a {type(value).__name__} without the field '{name}'")
        try:
            fields[name] = _convert(getattr(value, name), kind)
        except _UnfitError as error:
            raise _UnfitError(f"a {type(value).__name__} whose field '{name}' is {error}") from None
    return value._replace(**fields)


def _convert_items(value: Any, expected: str) -> list[Any]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise _UnfitError(f"{short(value)} ({type(value).__name__}), where {_word(expected)} is expected")
    try:
        return [_convert(item, expected[5:-1]) for item in value]
    except _UnfitError as error:
        raise _UnfitError(f"a list with {error}") from None


def _plain(value: Any) -> Any:
    """A numpy scalar or a tensor of one element as a Python number."""
    if hasattr(value, "item") and getattr(value, "size", None) is not None:
        count = value.numel() if hasattr(value, "numel") else value.size
        return value.item() if count == 1 else value
    return value


def _word(expected: str) -> str:
    words = {"float": "a float", "int": "an int", "bool": "a bool", "str": "a str", "any": "a value"}
    return words.get(expected, f"a {expected}")
