"""The text front end: a flow file to its Module, with every syntax error of the file."""

from dataclasses import replace
from typing import Any

from lark.exceptions import UnexpectedToken

from .ast import Assign, Collect, Def, Every, Expr, Flow, Module, Place, Statement, Update, When
from .build import NO_RESULT, Docstring, Refused, Return
from .diagnostics import Report, in_order
from .grammar import line_grammar
from .levels import EXAMPLES, MODULE, Level, block_level, guess_level, wrong_level
from .lines import Line, line_tree
from .source import Span
from .syntax_errors import explain
from .tokens import Token


def parse(text: str, path: str) -> Module:
    """The module that a file holds; raises FlowError with all its syntax errors."""
    report = Report()
    module = parse_with_report(text, path, report)
    report.raise_if_errors()
    return module


def parse_with_report(text: str, path: str, report: Report) -> Module:
    """What could be parsed; the syntax errors go to `report`. For editors, which need the rest of a broken file."""
    mine = Report()
    module = _FileParser(mine).module(text, path)
    report.diagnostics += [d for d in in_order(mine.diagnostics) if d not in report.diagnostics]
    return module


def parse_expr(text: str, path: str = "<expression>") -> Expr:
    """One expression, as the command line gives it (`--set batch=128prompts`); raises FlowError."""
    report = Report()
    lines = line_tree(text, path, report).lines
    expr: Expr | None = None
    if not lines:
        report.add("E0001", "an expression is missing", Span(path, 1, 1, 1, 1))
    elif not lines[0].broken:
        expr = _FileParser(report).match(lines[0], "lone_expr")
    if len(lines) > 1 or any(line.children for line in lines):
        report.add("E0001", "one expression, not several lines", lines[0].span)
    report.raise_if_errors()
    assert expr is not None  # or there were errors
    return expr


# ---------------------------------------------------------------- the file


class _FileParser:
    """Walks the lines of a file, level by level. A line that can't be read is reported and left out."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def module(self, text: str, path: str) -> Module:
        tree = line_tree(text, path, self.report)
        doc, body = self._block(tree.lines, MODULE)
        return Module(
            tuple(body),
            doc.text if doc else None,
            span=Span(path, 1, 1, text.count("\n") + 1, len(text) - text.rfind("\n")),
            leading=_comments(doc),
            closing=tree.closing,
        )

    def _block(self, lines: list[Line], level: Level) -> tuple[Docstring | None, list[Any]]:
        """The docstring and the statements of a block."""
        doc: Docstring | None = None
        body: list[Any] = []
        for line in lines:
            header: Statement | None = None if line.broken else self.match(line, level.start(line))
            below = block_level(header) if header is not None else None
            statement = self._complete(header, line, below) if header is not None else None
            if isinstance(statement, Docstring) and line is lines[0] and level.docstring:
                doc = statement
            elif isinstance(statement, level.allowed):
                body.append(statement)
            elif statement is not None:
                self.report.diagnostics.append(wrong_level(statement, level, line.span))
            if line.children and below is None:
                body += self._stray_block(line, statement, level)
        return doc, body

    def _stray_block(self, line: Line, statement: Statement | None, level: Level) -> list[Any]:
        """The lines under one that opens no block. Under an unreadable line they are checked, and left out with it."""
        if statement is None:
            self._block(line.children, guess_level(line, level))
            return []
        help = "only a line that ends with `:` opens a block; remove the indentation"
        self.report.add("E0006", "this line is indented, but no block is open", line.children[0].first.span, help=help)
        return self._block(line.children, level)[1]

    def _complete(self, header: Statement, line: Line, below: Level | None) -> Statement:
        """The statement with its block and its comments."""
        whole = self._with_block(header, line, below) if below else header
        return replace(
            whole,
            leading=line.leading,
            trailing=line.trailing,
            closing=whole.closing + line.closing,
            blank_before=line.blank_before,
        )

    def _with_block(self, header: Statement, line: Line, level: Level) -> Statement:
        doc, body = self._block(line.children, level)
        body = _with_comments(doc, body)
        self._check_block(line, doc, level)
        unread = len(line.children) > len(body) + (doc is not None)
        text, span = doc.text if doc else None, _whole_span(line)
        match header:
            case Def():
                return self._finish_def(replace(header, doc=text, span=span), body, None if unread else line.span)
            case Flow():
                return replace(header, body=tuple(body), doc=text, span=span)
            case Place():
                return replace(header, lines=tuple(body), span=span)
            case Update() | When() | Every() | Collect():
                return replace(header, body=tuple(body), span=span)
            case _:
                raise TypeError(f"{type(header).__name__} has no block")

    def _check_block(self, line: Line, doc: Docstring | None, level: Level) -> None:
        """A header needs a block; where its `:` was missing that is enough to say."""
        given = line.tokens[-1].type == "COLON"
        if given and len(line.children) == (1 if doc else 0):
            message = f"the block of `{line.first.value}` is empty"
            self.report.add("E0007", message, line.span, help=f"indent its lines below, such as {EXAMPLES[level]}")

    def _finish_def(self, header: Def, body: list[Any], complain_at: Span | None) -> Def:
        """Split the block of a `def` into its assignments and what it returns."""
        for statement in body[:-1]:
            if isinstance(statement, Return):
                self._refuse_early_return(statement)
        last = body[-1] if body else None
        result = last.value if isinstance(last, Return) else NO_RESULT
        if body and complain_at and not any(isinstance(s, Return) for s in body):
            help = "end its block with `return EXPRESSION`"
            self.report.add("E0007", f"`def {header.name}` returns nothing", complain_at, help=help)
        return replace(
            header,
            body=tuple(s for s in body if isinstance(s, Assign)),
            result=result,
            closing=_comments(last) if isinstance(last, Return) else (),
        )

    def _refuse_early_return(self, statement: Return) -> None:
        help = "a `def` has one `return`, its last line; choose between values with `where(c, a, b)`"
        self.report.add("E0009", "`return` can't stand before other lines", statement.span, help=help)

    # ------------------------------------------------------------ one line

    def match(self, line: Line, start: str) -> Any:
        """What the grammar makes of a line, or None after reporting why it makes nothing of it."""
        try:
            return line_grammar().parse(line.tokens, start=start)
        except UnexpectedToken as error:
            found = explain(line.tokens, error.token, error.accepts)
        except Refused as refused:
            found = refused.diagnostic
        self.report.diagnostics.append(found)
        return self.match(_with_colon(line), start) if found.code == "E0008" else None


def _with_colon(line: Line) -> Line:
    """The header as if its `:` were there."""
    end = line.span
    nothing = Span(end.path, end.end_line, end.end_column, end.end_line, end.end_column)
    return replace(line, tokens=[*line.tokens, Token("COLON", ":", nothing)])


def _whole_span(line: Line) -> Span:
    """The span of a line and the block under it."""
    last = line
    while last.children:
        last = last.children[-1]
    return line.span.to(last.span)


def _comments(line: Docstring | Return | None) -> tuple[str, ...]:
    """What the formatter would lose with a line that becomes no statement."""
    if line is None:
        return ()
    blank = ("",) if line.blank_before and isinstance(line, Return) else ()
    return blank + line.leading + ((line.trailing,) if line.trailing else ())


def _with_comments(doc: Docstring | None, body: list[Any]) -> list[Any]:
    """Comments around a docstring have no node of their own; the first statement takes them."""
    moved = _comments(doc)
    if not moved or not body:
        return body
    return [replace(body[0], leading=moved + body[0].leading), *body[1:]]
