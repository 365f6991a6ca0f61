"""Reading rows from JSON Lines, JSON and CSV files, with the line to blame when one is malformed.

Readers of data libraries guess (a date here, a null there, a short row filled up); these don't. Each yields
`(line, row)` with lines counted from 1 and raises `DataError` at the first malformed row.
"""

import csv
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from .errors import DataError
from .kinds import Row

NumberedRows = Iterator[tuple[int, Row]]


def jsonl_rows(file: Path, source: str) -> NumberedRows:
    """The objects of a JSON Lines file; blank lines are skipped."""
    for line, text in _lines(file, source):
        if text.strip():
            yield line, _object(_parse(text, source, line), source, line)


def json_rows(file: Path, source: str) -> NumberedRows:
    """The objects of a JSON file: a list of them, or `{"data": [...]}`."""
    text = _whole(file, source)
    if not text.strip():
        return
    document = _parse(text, source, None)
    items = document.get("data") if isinstance(document, dict) else document
    if not isinstance(items, list):
        found = f"an object with {', '.join(map(repr, document))}" if isinstance(document, dict) else "a single value"
        raise DataError(source, f"the file holds {found}", 'Make it a list of objects, or {"data": [...]}.', 1)
    for item, line in zip(items, _ItemLines(text), strict=True):
        yield line, _object(item, source, line)


def csv_rows(file: Path, source: str) -> NumberedRows:
    """The records of a CSV file with a header line; numbers and truth values as the first record has them."""
    csv.field_size_limit(sys.maxsize)  # the library's limit of 128 kB is less than a long prompt
    records = _csv_records(file, source)
    _, header = next(records, (1, []))
    _check_header(header, source)
    readers: list[Callable[[str], Any]] = []
    for line, fields in records:
        if len(fields) != len(header):
            cause = f"the row has {len(fields)} fields; the header has {len(header)} ({', '.join(header)})"
            raise DataError(source, cause, 'Quote a field that holds a comma or a line break: "…".', line)
        readers = readers or [_field_reader(field) for field in fields]
        yield line, {name: read(field) for name, read, field in zip(header, readers, fields, strict=True)}


def _lines(file: Path, source: str) -> Iterator[tuple[int, str]]:
    with file.open("rb") as stream:
        for line, raw in enumerate(stream, 1):
            yield line, _decode(raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw, source, line)


def _whole(file: Path, source: str) -> str:
    raw = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    return _decode(raw, source, 1)


def _decode(raw: bytes, source: str, first_line: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + raw.count(b"\n", 0, error.start)
        cause = f"the text isn't UTF-8 (byte 0x{raw[error.start]:02x} at position {_column(raw, error.start)})"
        raise DataError(source, cause, "Save the file as UTF-8.", line) from None


def _column(raw: bytes, position: int) -> int:
    return position - raw.rfind(b"\n", 0, position)


def _parse(text: str, source: str, line: int | None) -> Any:
    """A JSON value; `line` is where the text stands, None for a whole file."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        help = "Each line of a .jsonl file is one JSON object." if line else "Mend the JSON there."
        cause = f"malformed JSON: {error.msg} (column {error.colno})"
        raise DataError(source, cause, help, line or error.lineno) from None
    except _ConstantError as error:
        cause = f"{error} is no JSON value"
        raise DataError(source, cause, "Write a number, or leave the row out.", line) from None
    except RecursionError:
        raise DataError(source, "the JSON is nested too deeply", "Flatten the row.", line) from None


class _ConstantError(Exception):
    pass


def _refuse_constant(name: str) -> NoReturn:
    raise _ConstantError(name)


def _object(value: Any, source: str, line: int) -> Row:
    if isinstance(value, dict):
        return value
    help = 'Each row is an object such as {"prompt": "…", "answer": "…"}.'
    if source.endswith(".jsonl") and isinstance(value, list):
        help += " If the file is one JSON list, name it .json."
    raise DataError(source, f"the row is {_json_word(value)}, not an object", help, line)


def _json_word(value: Any) -> str:
    words = {list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return words.get(type(value), "a number")


class _ItemLines:
    """The line on which each item of a (valid) JSON document's list begins."""

    _SPACE = re.compile(r"[\s,:]*")

    def __init__(self, text: str) -> None:
        self._text = text
        self._decode = json.JSONDecoder().raw_decode

    def __iter__(self) -> Iterator[int]:
        at, line, counted = self._list_start(), 1, 0
        while self._text[at] != "]":
            line += self._text.count("\n", counted, at)
            counted = at
            yield line
            at = self._skip(self._decode(self._text, at)[1])

    def _list_start(self) -> int:
        at = self._skip(0)
        if self._text[at] == "[":
            return self._skip(at + 1)
        at, start = self._skip(at + 1), 0
        while self._text[at] != "}":  # to the end: of a repeated key, the last one counts, as in json.loads
            key, at = self._decode(self._text, at)
            at = self._skip(at)
            start = self._skip(at + 1) if key == "data" else start
            at = self._skip(self._decode(self._text, at)[1])
        return start

    def _skip(self, at: int) -> int:
        match = self._SPACE.match(self._text, at)
        return match.end() if match else at


def _csv_records(file: Path, source: str) -> Iterator[tuple[int, list[str]]]:
    """Records with the line each begins on; blank lines are skipped."""
    reader = csv.reader((text for _, text in _lines(file, source)), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise DataError(source, f"malformed CSV: {error}", "Check the quotes of this row.", line) from None
        if fields is None:
            return
        if fields:
            yield line, fields


def _check_header(header: list[str], source: str) -> None:
    help = "The first line names the columns, each once."
    if "" in (name.strip() for name in header):
        raise DataError(source, f"column {header.index('') + 1} of the header has no name", help, 1)
    for name in header:
        if header.count(name) > 1:
            raise DataError(source, f"the header has the column '{name}' {header.count(name)} times", help, 1)


# Only the plain spelling counts as a number: 007, 1_000 or 1e3 in the first row make a text column.
_INT = re.compile(r"-?(0|[1-9]\d*)")
_FLOAT = re.compile(r"-?(0|[1-9]\d*)(\.\d+([eE][-+]?\d+)?)?")
_BOOLS = {"true": True, "True": True, "false": False, "False": False}


def _field_reader(first: str) -> Callable[[str], Any]:
    """How to read a column whose first field is this; what doesn't read so stays text, for the check to refuse."""
    if first in _BOOLS:
        return lambda field: _BOOLS.get(field, field)
    if _FLOAT.fullmatch(first):
        return _number
    return lambda field: field


def _number(field: str) -> int | float | str:
    if _INT.fullmatch(field):
        return int(field)
    return float(field) if _FLOAT.fullmatch(field) else field
