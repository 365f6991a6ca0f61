"""How literals are spelt: from text to value in the front end, from value to text in the formatter."""

import math
import re
from collections.abc import Iterable

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", '"': '"', "'": "'"}
"""What may follow a backslash in a one-line string; `\\xNN` and `\\uNNNN` besides."""

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_DOC_ESCAPE = re.compile(r'\\([\\"\'])')


class BadEscape(ValueError):
    """A backslash that starts no known escape, at `offset` characters from the opening quote."""

    def __init__(self, escape: str, offset: int) -> None:
        self.escape = escape
        self.offset = offset
        super().__init__(f"unknown escape `{escape}`")


def number_value(text: str) -> int | float:
    """The value of a number as a flow spells it: `64`, `1_000`, `0.2`, `1e-6`."""
    return float(text) if any(mark in text for mark in ".eE") else int(text)


def string_value(text: str) -> str:
    """The value of a one-line string, its quotes included in `text`; raises BadEscape."""
    body = text[1:-1]
    return _ESCAPE.sub(_unescape, body) if "\\" in body else body


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code in ESCAPES:
        return ESCAPES[code]
    if len(code) > 1 and int(code[1:], 16) <= 0x10FFFF:
        return chr(int(code[1:], 16))
    raise BadEscape(match[0], match.start() + 1)


def doc_value(text: str) -> str:
    """The value of a triple-quoted docstring: formulas keep their backslashes, only quotes and `\\\\` need one."""
    return clean_doc(_DOC_ESCAPE.sub(r"\1", text[3:-3]))


def clean_doc(text: str) -> str:
    """A docstring without its indentation and the blank space around it: `inspect.cleandoc`, line ends trimmed too."""
    first, *rest = (line.rstrip() for line in text.expandtabs().split("\n"))
    margin = min((len(line) - len(line.lstrip(" ")) for line in rest if line), default=0)
    return "\n".join([first.lstrip(" "), *(line[margin:] for line in rest)]).strip("\n")


# ---------------------------------------------------------------- back to text


def spell_number(value: int | float, raw: str | None) -> str:
    """The author's spelling, tidied (`.5` is `0.5`, `1E-6` is `1e-6`), if it says this value; else the shortest one."""
    if (
        raw is not None
        and number_value(raw) == value
        and isinstance(value, float) == isinstance(number_value(raw), float)
    ):
        return _tidy(raw)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a flow can't spell the number {value}")
    return _tidy(repr(value))


def _tidy(text: str) -> str:
    mantissa, mark, exponent = text.lower().partition("e")
    if mantissa.startswith("."):
        mantissa = "0" + mantissa
    if mantissa.endswith("."):
        mantissa += "0"
    if not mark:
        return mantissa
    sign = "-" if exponent.startswith("-") else ""
    return f"{mantissa.removesuffix('.0')}e{sign}{exponent.lstrip('+-0') or '0'}"


def quote_string(value: str) -> str:
    """The one-line string with this value, in the quotes that need fewer escapes."""
    quote = "'" if '"' in value and "'" not in value else '"'
    return quote + "".join(_escape(char, quote) for char in value) + quote


_SPELT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0", "\\": "\\\\"}


def _escape(char: str, quote: str) -> str:
    if char == quote:
        return "\\" + char
    if char in _SPELT:
        return _SPELT[char]
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quote_doc(doc: str, indent: str) -> list[str]:
    """The lines of a docstring at this indentation; the closing quotes stand alone if it has several lines."""
    if _needs_own_lines(doc):
        return [f'{indent}"""', *_indented(_escape_doc(doc).split("\n"), indent), f'{indent}"""']
    if "\n" not in doc and doc.endswith('"'):
        return [f'{indent}"""{_escape_doc(doc[:-1])}\\""""']
    first, *rest = _escape_doc(doc).split("\n")
    if not rest:
        return [f'{indent}"""{first}"""']
    return [f'{indent}"""{first}', *_indented(rest, indent), f'{indent}"""']


def _needs_own_lines(doc: str) -> bool:
    """Whether its first line can't stand after the quotes, since the others would then lose indentation of theirs."""
    first, *rest = doc.split("\n")
    return first.startswith(" ") or (any(rest) and all(line.startswith(" ") for line in rest if line))


def _indented(lines: Iterable[str], indent: str) -> list[str]:
    return [f"{indent}{line}" if line else "" for line in lines]


def _escape_doc(doc: str) -> str:
    """Backslashes only where the text would be read otherwise: before a quote or another backslash, and at the end."""
    text = re.sub(r"\\(?=[\\\"']|$)", r"\\\\", doc)
    return text.replace('"""', r"\"\"\"")
