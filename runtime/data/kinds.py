"""The kinds of value a column can hold, and the rule that every row has the kinds of the first one.

A column has one kind, so that an operator's `answer: str` is a string in every row. The first row decides; an
integer column becomes `float` when a fractional number turns up, and a column whose first value is null may hold
nulls and takes its kind from the first value that isn't.
"""

import reprlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Literal

Kind = Literal["null", "bool", "int", "float", "str", "messages", "list", "object", "huge"]
Row = dict[str, Any]

_WORDS: Mapping[Kind, str] = {
    "null": "null",
    "bool": "a truth value",
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "messages": 'chat messages (a list of objects with "role" and "content")',
    "list": "a list",
    "object": "an object",
    "huge": "an integer that 64 bits can't hold",
}
NESTED: frozenset[Kind] = frozenset({"messages", "list", "object"})

_SAME_EVERYWHERE = "Every row needs the columns and types of the first row: mend or remove this one."


def kind_of(value: object) -> Kind:
    """The kind of one value as JSON has them; `messages` is a list of chat messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int():
            return "int" if -(2**63) <= value < 2**63 else "huge"
        case float():
            return "float"
        case str():
            return "str"
        case list():
            return "messages" if _are_messages(value) else "list"
        case dict():
            return "object"
    raise TypeError(f"a data file can't hold {type(value).__name__}")


def _are_messages(items: list[Any]) -> bool:
    return bool(items) and all(isinstance(m, dict) and "role" in m and "content" in m for m in items)


class Columns:
    """The columns of a table, learnt from its first row and checked against every later one."""

    def __init__(self) -> None:
        self.kinds: dict[str, Kind] = {}
        self._nullable: set[str] = set()
        self._first_line = 0

    def check(self, row: Row, line: int) -> tuple[str, str] | None:
        """Take in one row; the cause and the remedy if it doesn't fit, else None."""
        if not self.kinds:
            return self._learn(row, line)
        if row.keys() != self.kinds.keys():
            return self._other_names(row), _SAME_EVERYWHERE
        for name, value in row.items():
            kind = kind_of(value)
            if kind != self.kinds[name] and not self._widen(name, kind):
                return self._other_kind(name, kind, value), _SAME_EVERYWHERE
        return None

    def _learn(self, row: Row, line: int) -> tuple[str, str] | None:
        if not row:
            return "the row has no columns", 'Give every row the columns a flow reads, such as {"prompt": "…"}.'
        self.kinds = {name: kind_of(value) for name, value in row.items()}
        self._nullable = {name for name, kind in self.kinds.items() if kind == "null"}
        self._first_line = line
        for name, kind in self.kinds.items():
            if kind == "huge":
                return f"the column '{name}' is {_WORDS[kind]}", 'Write it as a string: "…".'
        return None

    def _widen(self, name: str, kind: Kind) -> bool:
        """Whether a value of another kind may stand in this column; the column's kind follows where it must."""
        match self.kinds[name], kind:
            case ("float", "int") | ("list", "messages"):
                return True
            case ("int", "float") | ("null", "bool" | "int" | "float" | "str" | "messages" | "list" | "object"):
                self.kinds[name] = kind
                return True
            case (_, "null"):
                return name in self._nullable
        return False

    def _other_names(self, row: Row) -> str:
        missing = [name for name in self.kinds if name not in row]
        extra = [name for name in row if name not in self.kinds]
        parts = [f"the column {_quoted(missing)} is missing"] if missing else []
        for name in extra:
            near = get_close_matches(name, missing, n=1)
            hint = f" (did you mean '{near[0]}'?)" if near else ""
            parts.append(f"the column '{name}'{hint} isn't in the first row")
        return " and ".join(parts) + f"; the first row (line {self._first_line}) has {_quoted(self.kinds)}"

    def _other_kind(self, name: str, kind: Kind, value: object) -> str:
        shown = "" if kind == "null" else f" ({reprlib.repr(value)})"
        return (
            f"the column '{name}' is {_WORDS[kind]}{shown}; "
            f"in the first row (line {self._first_line}) it is {_WORDS[self.kinds[name]]}"
        )


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
