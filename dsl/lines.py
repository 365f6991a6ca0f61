"""Logical lines and their indentation tree: what stands between the tokens of a file and the grammar of one line.

A logical line joins what brackets hold together. Comments and blank lines are not syntax: they ride on the line that
follows them (or close the block they end), so the formatter can put them back. Everything wrong here is reported here,
and the line goes on as well as it can: an error never hides the lines after it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from .diagnostics import Note, Report
from .source import Span
from .tokens import CLOSING, OPENING, Token, tokenise
from .vocabulary import KEYWORDS

STARTERS = KEYWORDS - {"as", "where", "on", "with", "and", "or", "not", "true", "false"}
"""The keywords that begin a statement."""

_WORDS = frozenset(word.upper() for word in KEYWORDS) | {"FOREIGN"}
_TAB_WIDTH = 4


@dataclass
class Line:
    """One logical line and the block under it.

    indent: the column of its first token, from 0.
    leading: whole-line comments before it, and those inside its brackets; "" is a blank line between comments.
    closing: comments at the end of its block.
    broken: refused already, so the grammar needn't look at it.
    """

    tokens: list[Token]
    indent: int
    leading: tuple[str, ...] = ()
    trailing: str | None = None
    blank_before: bool = False
    broken: bool = False
    children: list["Line"] = field(default_factory=list)
    closing: tuple[str, ...] = ()

    @property
    def span(self) -> Span:
        return self.tokens[0].span.to(self.tokens[-1].span)

    @property
    def first(self) -> Token:
        return self.tokens[0]


@dataclass(frozen=True)
class Tree:
    """All lines of a file; `closing` are the comments after the last one."""

    lines: list[Line]
    closing: tuple[str, ...]


def line_tree(text: str, path: str, report: Report) -> Tree:
    """The indentation tree of a file. Adds E0002 to E0006 to the report."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = _Joiner(text, path, report)
    return _nest(list(lines.lines()), lines.pending, report)


# ---------------------------------------------------------------- logical lines


@dataclass(frozen=True)
class _Comment:
    """A whole-line comment (or a blank line, with no text) that waits for the line it belongs to."""

    text: str
    indent: int


class _Joiner:
    """Makes logical lines of tokens, in order. `pending` are the comments and blank lines since the last one."""

    def __init__(self, text: str, path: str, report: Report) -> None:
        self.tokens = tokenise(text, path, report)
        self.source = text.split("\n")
        self.report = report
        self.at = 0
        self.pending: list[_Comment] = []

    def lines(self) -> Iterator[tuple[list[_Comment], Line]]:
        """Each logical line with what stood before it."""
        fresh = True  # at the start of a physical line: a NEWLINE here is a blank line
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.type == "NEWLINE":
                self.at += 1
                if fresh:
                    self.pending.append(_Comment("", 0))
                fresh = True
            elif token.type == "COMMENT":
                self.at += 1
                self.pending.append(_Comment(tidy_comment(token.value), self._indent(token)))
                fresh = False
            else:
                before, self.pending = self.pending, []
                yield before, self._line()
                fresh = False

    def _line(self) -> Line:
        start = self.tokens[self.at]
        stop, broken = self._end_of_line()
        piece = self.tokens[self.at : stop]
        self.at = stop
        trailing = tidy_comment(piece.pop().value) if piece[-1].type == "COMMENT" else None
        inside = tuple(tidy_comment(t.value) for t in piece if t.type == "COMMENT")
        tokens = [t for t in piece if t.type not in ("COMMENT", "NEWLINE")]
        broken = broken or any(t.type in ("BROKEN", "UNTERMINATED") for t in tokens)
        return Line(free_option_names(tokens), self._indent(start), inside, trailing, broken=broken)

    def _indent(self, token: Token) -> int:
        before = self.source[token.span.line - 1][: token.span.column - 1]
        return len(before.expandtabs(_TAB_WIDTH))

    def _end_of_line(self) -> tuple[int, bool]:
        """Where the logical line ends (the index of its NEWLINE), and whether its brackets are broken."""
        stack: list[Token] = []
        broken = False
        for index in range(self.at, len(self.tokens)):
            token = self.tokens[index]
            if token.type == "NEWLINE" and not stack:
                return index, broken
            if token.type == "NEWLINE" and self._must_be_statement(index + 1):
                break
            if token.type == "UNTERMINATED":
                stack = [t for t in stack if t.span.line != token.span.line]  # it may have swallowed what closes them
            elif token.value in OPENING:
                stack.append(token)
            elif token.value in CLOSING:
                broken |= not self._close(token, stack)
        if not stack:
            return len(self.tokens), broken
        self._report_unclosed(stack)
        return self._recover(stack[0]), True

    def _close(self, token: Token, stack: list[Token]) -> bool:
        """Whether `token` closes the innermost open bracket; reports it if it doesn't."""
        opened = stack.pop() if stack else None
        if opened and OPENING[opened.value] == token.value:
            return True
        if opened is None:
            help = f"remove it, or open it with `{CLOSING[token.value]}`"
            self.report.add("E0004", f"`{token.value}` closes nothing", token.span, help=help)
            return False
        want = OPENING[opened.value]
        message = f"`{token.value}` doesn't close `{opened.value}`"
        notes = [Note(f"`{opened.value}` is opened here", opened.span)]
        self.report.add("E0004", message, token.span, notes=notes, help=f"write `{want}`")
        return False

    def _report_unclosed(self, stack: Sequence[Token]) -> None:
        opened = stack[-1]
        close = OPENING[opened.value]
        message = f"`{opened.value}` is never closed"
        self.report.add("E0004", message, opened.span, label="opened here", help=f"close it with `{close}`")

    def _recover(self, opened: Token) -> int:
        """Where a line with an unclosed bracket ends: before the first line that looks like a statement."""
        limit = self._indent(self.tokens[self.at])
        for index in range(self.tokens.index(opened, self.at), len(self.tokens) - 1):
            if self.tokens[index].type == "NEWLINE" and self._looks_like_statement(index + 1, limit):
                return index
        return len(self.tokens)

    def _must_be_statement(self, index: int) -> bool:
        """Whether a line starts as no expression goes on: then a bracket before it isn't closed by one after it."""
        if index + 1 >= len(self.tokens) or self.tokens[index].value not in STARTERS - {"keep"}:
            return False
        return self.tokens[index + 1].type in ("NAME", "NUMBER", "LPAR") and self.tokens[index - 2].type != "DOT"

    def _looks_like_statement(self, index: int, limit: int) -> bool:
        token = self.tokens[index]
        if token.type in ("NEWLINE", "COMMENT"):
            return False
        if token.value in STARTERS and self.tokens[index + 1].type != "EQUAL":
            return True
        return self._indent(token) <= limit and token.value not in CLOSING


def free_option_names(tokens: list[Token]) -> list[Token]:
    """Reserved words become plain names after a dot and before the `=` of an option (`policy.next`, `where=c`)."""
    for i, token in enumerate(tokens):
        if token.type in _WORDS and i and (tokens[i - 1].type == "DOT" or _is_option_name(tokens, i)):
            tokens[i] = replace(token, type="NAME")
    return tokens


def _is_option_name(tokens: Sequence[Token], i: int) -> bool:
    return tokens[i - 1].type in ("LPAR", "COMMA") and i + 1 < len(tokens) and tokens[i + 1].type == "EQUAL"


def tidy_comment(text: str) -> str:
    """`#a` as `# a`, without blank space at its end."""
    text = text.rstrip()
    body = text[1:]
    return f"# {body}" if body and body[0].isalnum() else text


# ---------------------------------------------------------------- the indentation tree


def _nest(flat: Sequence[tuple[list[_Comment], Line]], rest: list[_Comment], report: Report) -> Tree:
    root = Line([], -1)
    open_lines = [root]  # innermost last
    for before, line in flat:
        before = _close_blocks(open_lines, line.indent, before)
        _check_dedent(open_lines[-1], line, report)
        open_lines[-1].children.append(line)
        _give_comments(line, before)
        open_lines.append(line)
    rest = _close_blocks(open_lines, -1, rest)
    return Tree(root.children, _closing(rest))


def _close_blocks(open_lines: list[Line], indent: int, before: list[_Comment]) -> list[_Comment]:
    """Leave the blocks that a line at `indent` ends; comments that stand as deep as such a block belong to its end."""
    while len(open_lines) > 1 and open_lines[-1].indent >= indent:
        ended = open_lines.pop()
        if ended.children:
            own = _count_within(before, ended.children[0].indent)
            ended.closing, before = _closing(before[:own]), before[own:]
    return before


def _count_within(before: Sequence[_Comment], indent: int) -> int:
    """How many of these, from the first, belong to a block at `indent`; blank lines after its last comment do not."""
    count = 0
    for i, comment in enumerate(before):
        if comment.text and comment.indent < indent:
            break
        if comment.text:
            count = i + 1
    return count


def _check_dedent(parent: Line, line: Line, report: Report) -> None:
    first = parent.children[0] if parent.children else line
    if parent.indent < 0 and line.indent:
        report.add(
            "E0006", "this line is indented, but no block is open", line.first.span, help="remove the indentation"
        )
    if parent.indent < 0 or first.indent == line.indent:
        return
    report.add(
        "E0006",
        f"this line is indented by {line.indent}, its block by {first.indent}",
        line.first.span,
        notes=[Note("the block starts here", first.first.span)],
        help=f"indent it by {first.indent} spaces",
    )
    line.indent = first.indent  # so that the lines after it are measured against their own block


def _give_comments(line: Line, before: list[_Comment]) -> None:
    line.blank_before = bool(before) and not before[0].text
    line.leading = _texts(before) + line.leading


def _texts(comments: Sequence[_Comment]) -> tuple[str, ...]:
    """The comments, with one "" for the blank lines after one of them."""
    texts: list[str] = []
    for comment in comments:
        if comment.text or (texts and texts[-1]):
            texts.append(comment.text)
    return tuple(texts)


def _closing(comments: Sequence[_Comment]) -> tuple[str, ...]:
    texts = _texts(comments)
    return texts[:-1] if texts and not texts[-1] else texts
