"""Where in the user's Python a traced operation stands: from the bytecode's positions, refined by the file's syntax."""

import ast as python
import inspect
import linecache
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import TypeAlias

from ..source import NOWHERE, Span

HERE = str(Path(__file__).parent)
Position: TypeAlias = tuple[int, int, int, int]
"""Line, end line, column, end column, as `co_positions` gives them: columns in UTF-8 bytes, from 0."""


@dataclass(frozen=True)
class Site:
    """One traced operation: its range, and its syntax where the source can be read."""

    span: Span
    node: python.expr | None = None

    def part(self, key: int | str) -> Span:
        """The range of one operand or argument; of the whole operation where the source doesn't tell."""
        node = _parts(self.node).get(key)
        return _node_span(self.span.path, node) if node else self.span

    @property
    def opposite(self) -> Span:
        """The other side of the assignment that this is a side of; itself if it is none."""
        other = _opposites(_text(self.span.path)).get(_position(self.node)) if self.node else None
        return _node_span(self.span.path, other) if other else self.span


BUILT_IN = Site(NOWHERE)


def user_frame() -> FrameType | None:
    """The innermost frame that isn't of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame and is_ours(frame.f_code):
        frame = frame.f_back
    return frame


def is_ours(code: CodeType) -> bool:
    """Whether a code object belongs to the tracer itself."""
    return code.co_filename.startswith(HERE)


def caller() -> Site:
    """The operation of the user's Python that called into this package."""
    frame = user_frame()
    return site_at(frame.f_code, frame.f_lasti) if frame else BUILT_IN


def site_at(code: CodeType, last: int) -> Site:
    """The operation that the instruction at byte `last` belongs to."""
    line, end_line, column, end_column = next(islice(code.co_positions(), last // 2, None))
    if line is None or end_line is None or column is None or end_column is None:  # python -X no_debug_ranges
        known = line or code.co_firstlineno
        return Site(Span(code.co_filename, known, 1, known, 1))
    position = (line, end_line, column, end_column)
    node = _expressions(_text(code.co_filename)).get(position)
    return Site(_node_span(code.co_filename, node) if node else _span(code.co_filename, position), node)


def source_of(span: Span) -> str:
    """What stands there in the file, on one line; empty if the file can't be read."""
    lines = linecache.getlines(span.path)[max(0, span.line - 1) : span.end_line]
    if not lines:
        return ""
    lines[-1] = lines[-1][: span.end_column - 1]
    lines[0] = lines[0][span.column - 1 :]
    return " ".join(part.strip() for part in lines)


def quoted(span: Span, otherwise: str) -> str:
    """The source in backticks, for messages, cut where it is long."""
    text = source_of(span)
    shown = text if len(text) <= 60 else text[:59] + "…"
    return f"`{shown}`" if text else otherwise


@dataclass(frozen=True)
class Signature:
    """Where a function's name, parameters and defaults stand.

    hidden: names that only comprehensions bind. From Python 3.12 on they are among the function's locals while the
        comprehension runs.
    """

    name: Span
    params: dict[str, Span]
    defaults: dict[str, Site]
    hidden: frozenset[str] = frozenset()


def signature_of(function: FunctionType) -> Signature:
    """The places of a function's header; of its first line where the source can't be read."""
    code = code_of(function)
    path, line = code.co_filename, code.co_firstlineno
    linecache.checkcache(path)
    node = _function(_text(path), code.co_name, line)
    if node is None:
        return Signature(Span(path, line, 1, line, 1), {}, {})
    start = node.col_offset
    name = _span(path, (node.lineno, node.lineno, start, start + len("def ") + len(node.name.encode())))
    params = {a.arg: _node_span(path, a) for a in _arguments(node.args)}
    defaults = {n: Site(_node_span(path, d), d) for n, d in _defaults(node.args)}
    return Signature(name, params, defaults, _comprehension_names(node))


def code_of(function: FunctionType) -> CodeType:
    """The code of the function under any well-behaved wrappers."""
    inner = inspect.unwrap(function)
    return inner.__code__ if isinstance(inner, FunctionType) else function.__code__


def _parts(node: python.expr | None) -> dict[int | str, python.expr]:
    match node:
        case python.BinOp(left=left, right=right):
            return {0: left, 1: right}
        case python.Compare(left=left, comparators=[right]):
            return {0: left, 1: right}
        case python.UnaryOp(operand=operand) | python.Attribute(value=operand):
            return {0: operand}
        case python.Call(args=args, keywords=keywords):
            starred = next((i for i, a in enumerate(args) if isinstance(a, python.Starred)), len(args))
            return {**dict(enumerate(args[:starred])), **{k.arg: k.value for k in keywords if k.arg}}
    return {}


def _node_span(path: str, node: python.expr | python.arg) -> Span:
    return _span(path, _position(node))


def _position(node: python.expr | python.stmt | python.arg) -> Position:
    return node.lineno, node.end_lineno or node.lineno, node.col_offset, node.end_col_offset or node.col_offset


def _span(path: str, position: Position) -> Span:
    line, end_line, column, end_column = position
    return Span(path, line, _characters(path, line, column), end_line, _characters(path, end_line, end_column))


def _characters(path: str, line: int, offset: int) -> int:
    """The column, from 1 and in characters, of a byte offset."""
    return len(linecache.getline(path, line).encode()[:offset].decode(errors="ignore")) + 1 if offset else 1


def _text(path: str) -> str:
    return "".join(linecache.getlines(path))


@lru_cache(maxsize=8)
def _tree(text: str) -> python.Module:
    try:
        return python.parse(text)
    except SyntaxError:  # the file changed under us, or isn't the source of this code
        return python.Module([], [])


@lru_cache(maxsize=8)
def _expressions(text: str) -> dict[Position, python.expr]:
    """Each expression of a file by its position, of two the outer; a loop or an assertion stands for what it asks."""
    found: dict[Position, python.expr] = {}
    for node in python.walk(_tree(text)):
        match node:
            case python.expr():
                found.setdefault(_position(node), node)
            case python.For(iter=asked) | python.Assert(test=asked):
                found[_position(node)] = asked
    return found


@lru_cache(maxsize=8)
def _opposites(text: str) -> dict[Position, python.expr]:
    """The target of each assigned expression, and the value of each target, by position."""
    pairs: list[tuple[python.expr, python.expr]] = []
    for node in python.walk(_tree(text)):
        match node:
            case python.Assign(targets=[target], value=value):
                pairs += _sides(target, value)
            case (
                python.NamedExpr(target=target, value=value)
                | python.AnnAssign(target=target, value=python.expr() as value)
            ):
                pairs += _sides(target, value)
    there = {_position(value): target for target, value in pairs}
    return {**there, **{_position(target): value for target, value in pairs}}


def _sides(target: python.expr, value: python.expr) -> list[tuple[python.expr, python.expr]]:
    """`a, b = x, y` assigns side by side."""
    match target, value:
        case python.Tuple(elts=targets), python.Tuple(elts=values) if len(targets) == len(values):
            return list(zip(targets, values, strict=True))
        case _:
            return [(target, value)]


def _function(text: str, name: str, line: int) -> python.FunctionDef | None:
    for node in python.walk(_tree(text)):
        if isinstance(node, python.FunctionDef) and node.name == name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == line:
                return node
    return None


def _comprehension_names(function: python.FunctionDef) -> frozenset[str]:
    loops = [n.target for n in python.walk(function) if isinstance(n, python.comprehension)]
    inside = [n for target in loops for n in python.walk(target) if isinstance(n, python.Name)]
    stored = [n for n in python.walk(function) if isinstance(n, python.Name) and isinstance(n.ctx, python.Store)]
    return frozenset(n.id for n in inside) - frozenset(n.id for n in stored if n not in inside)


def _arguments(spec: python.arguments) -> list[python.arg]:
    return [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *(a for a in (spec.vararg, spec.kwarg) if a)]


def _defaults(spec: python.arguments) -> Iterable[tuple[str, python.expr]]:
    positional = [*spec.posonlyargs, *spec.args]
    for arg, default in zip(positional[len(positional) - len(spec.defaults) :], spec.defaults, strict=True):
        yield arg.arg, default
    for arg, keyword_default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        if keyword_default is not None:
            yield arg.arg, keyword_default
