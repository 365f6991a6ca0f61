"""The tokens of a flow file, with their spans; what is no token at all is reported here, once, and skipped."""

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .diagnostics import Report
from .literals import BadEscape, string_value
from .source import Span
from .vocabulary import KEYWORDS, UNITS

FOREIGN = frozenset(keyword.kwlist) - KEYWORDS
"""Words of Python that Flow has no use for. Reserved too, so that both front ends can write the same names."""

OPENING = {"(": ")", "[": "]", "{": "}"}
CLOSING = {close: open for open, close in OPENING.items()}

# The names that lark gives to quoted terminals of the grammar, and names of our own for what no rule takes.
_PUNCTUATION = (
    {"(": "LPAR", ")": "RPAR", "[": "LSQB", "]": "RSQB", "{": "LBRACE", "}": "RBRACE"}
    | {".": "DOT", ",": "COMMA", ":": "COLON", "=": "EQUAL"}
    | {"+": "PLUS", "-": "MINUS", "*": "STAR", "/": "SLASH", "//": "FLOORDIV", "%": "PERCENT", "**": "POW"}
    | {"<": "LESSTHAN", ">": "MORETHAN", "<=": "LE", ">=": "GE", "==": "EQ", "!=": "NE"}
    | dict.fromkeys(("+=", "-=", "*=", "/=", "//=", "%=", "**="), "AUGMENTED")
    | dict.fromkeys(("&&", "||", "&", "|", "~", "^", "!", "<<", ">>", "<>", "=>", "=<"), "UNKNOWN_OPERATOR")
    | {":=": "WALRUS", "->": "ARROW", ";": "SEMICOLON", "@": "AT"}
)

# Where prose that nobody closed must end, or one lost quote would hide all that follows.
_STATEMENT = r"\n[ \t]*(?:(?:flow|def|model|state|update|minimize|metric|place|cluster)[ ]|\w+[ ]*=)"

_TOKEN = re.compile(
    r"""
      (?P<SPACE>\ +)
    | (?P<NEWLINE>\n)
    | (?P<COMMENT>\#[^\n]*)
    | (?P<DOCSTRING>\"{3}(?:[^"\\]|\\.|"(?!""))*\"{3} | '{3}(?:[^'\\]|\\.|'(?!''))*'{3})
    | (?P<OPEN_DOCSTRING>(?:\"{3}|'{3})(?:(?!STATEMENT_HERE).)*)
    | (?P<STRING>"(?:[^"\\\n]|\\[^\n])*" | '(?:[^'\\\n]|\\[^\n])*')
    | (?P<OPEN_STRING>["'][^\n]*)
    | (?P<NAME>[^\W\d]\w*)
    | (?P<NUMBER>\.?\d(?:[\w.]|(?<=\d[eE])[+-](?=\d)|(?<=\.[eE])[+-](?=\d))*)
    | (?P<PUNCTUATION>PUNCTUATION_HERE)
    | (?P<TAB>\t+)
    | (?P<CONTINUATION>\\\ *\n)
    | (?P<UNKNOWN>.)
    """.replace("STATEMENT_HERE", _STATEMENT).replace(
        "PUNCTUATION_HERE", "|".join(re.escape(p) for p in sorted(_PUNCTUATION, key=len, reverse=True))
    ),
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"(?:\d+(?:_\d+)*(?:\.(?:\d+(?:_\d+)*)?)?|\.\d+(?:_\d+)*)(?:[eE][+-]?\d+)?")

_LOOKALIKES = (
    dict.fromkeys("“”„‟", '`"`')
    | dict.fromkeys("‘’‚‛", "`'`")
    | dict.fromkeys("−–—", "`-`")
    | {"×": "`*`", "÷": "`/`", "≤": "`<=`", "≥": "`>=`", "≠": "`!=`", "\N{NO-BREAK SPACE}": "a plain space"}
    | {"\\": "brackets: a line goes on inside `( )`", "?": "`where(c, a, b)`"}
)


@dataclass(frozen=True, slots=True)
class Token:
    """One token. `type` is a terminal of the grammar, or a name that no rule takes (`FOREIGN`, `BITWISE`, ...).

    `BROKEN` and `UNTERMINATED` stand where something was refused already, so that nobody refuses it a second time.
    """

    type: str
    value: str
    span: Span

    # Lark copies these to the token that it makes for the end of the input.
    start_pos = end_pos = None

    @property
    def line(self) -> int:
        return self.span.line

    @property
    def column(self) -> int:
        return self.span.column

    @property
    def end_line(self) -> int:
        return self.span.end_line

    @property
    def end_column(self) -> int:
        return self.span.end_column


def tokenise(text: str, path: str, report: Report) -> list[Token]:
    """All tokens of a file, comments and line ends included. Adds E0002, E0003 and E0005 to the report."""
    return list(_Tokeniser(text, path, report).tokens())


class _Tokeniser:
    def __init__(self, text: str, path: str, report: Report) -> None:
        self.text = text
        self.path = path
        self.report = report
        self.line = 1
        self.start_of_line = 0
        self.tabs: list[Span] = []

    def tokens(self) -> Iterator[Token]:
        for match in _TOKEN.finditer(self.text):
            kind = match.lastgroup or ""
            if kind == "SPACE":
                continue
            span = self._advance(match)
            if kind == "TAB":
                self.tabs.append(span)
            else:
                yield from self._token(kind, match[0], span)
        self._report_tabs()

    def _advance(self, match: re.Match[str]) -> Span:
        """The span of the match; moves on to the line it ends on."""
        line, column = self.line, match.start() - self.start_of_line + 1
        breaks = match[0].count("\n")
        if not breaks:
            return Span(self.path, line, column, line, match.end() - self.start_of_line + 1)
        self.line += breaks
        self.start_of_line = match.start() + match[0].rindex("\n") + 1
        if match[0] == "\n":
            return Span(self.path, line, column, line, column + 1)
        return Span(self.path, line, column, self.line, match.end() - self.start_of_line + 1)

    def _token(self, kind: str, text: str, span: Span) -> Iterator[Token]:
        match kind:
            case "NAME":
                yield self._word(text, span)
            case "PUNCTUATION":
                yield Token(_PUNCTUATION[text], text, span)
            case "NUMBER":
                yield from self._number(text, span)
            case "STRING":
                yield self._string(text, span)
            case "OPEN_STRING" | "OPEN_DOCSTRING":
                yield self._unterminated(kind, text, span)
            case "CONTINUATION":  # takes the line break with it, so that the next line isn't wrong as well
                yield self._unknown("\\", replace(span, end_line=span.line, end_column=span.column + 1))
            case "UNKNOWN":
                yield self._unknown(text, span)
            case _:
                yield Token(kind, text, span)

    def _word(self, text: str, span: Span) -> Token:
        if text in KEYWORDS:
            return Token(text.upper(), text, span)
        if text in FOREIGN:
            return Token("FOREIGN", text, span)
        if not text.isidentifier():
            self.report.add("E0005", f"`{text}` is not a name", span, help="names have letters, digits and `_`")
            return Token("BROKEN", text, span)
        return Token("NAME", text, span)

    def _number(self, text: str, span: Span) -> Iterator[Token]:
        good = _NUMBER.match(text)
        rest = text[good.end() :] if good else text
        if good and not rest:
            yield Token("NUMBER", text, span)
        elif good and rest in UNITS:  # `64prompts`, as on the command line
            cut = Span(span.path, span.line, span.column + good.end(), span.line, span.column + good.end())
            yield Token("NUMBER", good[0], Span(span.path, span.line, span.column, span.line, cut.column))
            yield Token("NAME", rest, cut.to(span))
        else:
            self.report.add("E0003", f"`{text}` is not a number", span, help=_number_help(text))
            yield Token("BROKEN", text, span)

    def _string(self, text: str, span: Span) -> Token:
        try:
            string_value(text)
        except BadEscape as bad:
            column = span.column + bad.offset
            where = Span(span.path, span.line, column, span.line, column + len(bad.escape))
            help = f"for a backslash itself write `\\{bad.escape}`"
            self.report.add("E0003", f"`{bad.escape}` is not an escape in a string", where, help=help)
            return Token("BROKEN", text, span)
        return Token("STRING", text, span)

    def _unterminated(self, kind: str, text: str, span: Span) -> Token:
        quote = text[:3] if kind == "OPEN_DOCSTRING" else text[0]
        what = "docstring" if kind == "OPEN_DOCSTRING" else "string"
        self.report.add(
            "E0003",
            f"the {what} is not terminated",
            Span(span.path, span.line, span.column, span.line, span.column + len(quote)),
            label="opened here",
            help=f"close it with `{quote}`"
            + (" on the same line; a line break in it is `\\n`" if what == "string" else ""),
        )
        return Token("UNTERMINATED", text, span)

    def _unknown(self, text: str, span: Span) -> Token:
        meant = _LOOKALIKES.get(text)
        named = text if text.isprintable() else f"U+{ord(text):04X}"
        help = f"write {meant}" if meant else None
        self.report.add("E0005", f"Flow has no character `{named}`", span, help=help)
        return Token("BROKEN", text, span)

    def _report_tabs(self) -> None:
        """One diagnostic however many tabs there are: a file that is indented by tabs is one mistake, not a hundred."""
        if not self.tabs:
            return
        lines = len({tab.line for tab in self.tabs})
        more = (
            f", here and on {lines - 1} more lines" if lines > 2 else ", here and on 1 more line" if lines == 2 else ""
        )
        message = f"a tab{more}; its width is anybody's guess"
        self.report.add("E0002", message, self.tabs[0], label="tab", help="indent with 4 spaces")


def _number_help(text: str) -> str:
    lower = text.lower()
    if lower.startswith(("0x", "0b", "0o")):
        return f"write it in decimals: `{int(lower, 0)}`" if _is_int(lower) else "write it in decimals"
    if lower[:-1].isdigit() and lower[-1] in "kmg":
        return f"write `{int(lower[:-1]) * {'k': 10**3, 'm': 10**6, 'g': 10**9}[lower[-1]]}`"
    return "a unit is parted by a space (`64 prompts`); numbers look like `64`, `1_000`, `0.2`, `1e-6`"


def _is_int(text: str) -> bool:
    try:
        int(text, 0)
    except ValueError:
        return False
    return True
