"""A trace: what one run of a flow's function (or of a `@define`) has recorded so far, and how its values get names.

Python doesn't tell an object which variable holds it, so the trace looks: at each traced operation and at each block's
exit, a local variable of the function that holds a still unnamed value gives it its name, and that is an assignment.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Literal, TypeAlias

from .. import ast
from ..diagnostics import FlowError, Report, in_order
from ..source import Span
from ..vocabulary import RESERVED
from .module import Parts
from .spans import BUILT_IN, Site, is_ours, quoted, site_at, source_of, user_frame

LIBRARIES = (os.path.dirname(os.__file__), "<frozen ")
"""Where the files of Python itself and of installed packages begin."""

Kind: TypeAlias = Literal["value", "draw", "model", "state", "inline"]
"""What naming a value records: an assignment, a `model`, a `state`; an `inline` one is never named.
A `draw` (or a read) is recorded as a value is, and must be named."""


NAMED: Mapping[Kind, type[ast.Assign | ast.ModelDecl | ast.StateDecl]] = {
    "model": ast.ModelDecl,
    "state": ast.StateDecl,
}


@dataclass(eq=False)
class Scope:
    """A flow's body or one block of it. `leaks`: its names are known after it (only of `collect`)."""

    title: str
    parent: "Scope | None" = None
    leaks: bool = False
    names: set[str] = field(default_factory=set)
    statements: list[ast.FlowStatement] = field(default_factory=list)
    values: "list[Traced]" = field(default_factory=list)

    def chain(self) -> "Iterator[Scope]":
        """This scope and those around it."""
        scope: Scope | None = self
        while scope:
            yield scope
            scope = scope.parent

    def sees(self, other: "Scope") -> bool:
        """Whether a name of `other` is known here."""
        around = tuple(self.chain())
        while other not in around and other.leaks and other.parent:
            other = other.parent
        return other in around


@dataclass(eq=False)
class Traced:
    """What its trace knows of one value. Without an owner it belongs to every trace (`step`)."""

    expr: ast.Expr
    site: Site = BUILT_IN
    kind: Kind = "value"
    name: str | None = None
    owner: "Trace | None" = None
    scope: Scope | None = None
    used: bool = False

    @property
    def text(self) -> str:
        """How messages call it."""
        return f"`{self.name}`" if self.name else quoted(self.site.span, "this value")


class Symbol:
    """A Python object that stands for a value of the flow. Everything else about it is in its record."""

    __slots__ = ("_traced",)
    _traced: Traced

    def __init__(self, traced: Traced) -> None:
        object.__setattr__(self, "_traced", traced)


@dataclass(eq=False)
class Trace:
    """One run of a function. `code` tells which frame's locals name values, all but those that are `hidden`."""

    what: Literal["flow", "def"]
    name: str
    code: CodeType
    parts: Parts
    report: Report
    scope: Scope
    hidden: frozenset[str] = frozenset()
    frame: FrameType | None = None
    unopened: dict[object, Site] = field(default_factory=dict)

    def look(self) -> None:
        """Name what a local variable holds by now."""
        self.frame = self.frame or self._find_frame()
        found: dict[Traced, str] = {}
        for name, held in self.frame.f_locals.items() if self.frame else ():
            if isinstance(held, Symbol) and name not in self.hidden and self._wants_name(held._traced):
                found.setdefault(held._traced, name)
        for traced in [t for t in self.scope.values if t in found]:
            self._assign(found[traced], traced)

    def add(self, expr: ast.Expr, site: Site, kind: Kind = "value") -> Traced:
        """Record a new value."""
        traced = Traced(expr, site, kind, owner=self, scope=self.scope)
        self.scope.values.append(traced)
        return traced

    def emit(self, statement: ast.FlowStatement) -> None:
        """Record a statement."""
        if self.what == "def":
            raise refusal(
                "E0025",
                f"`def {self.name}` holds a statement of a flow",
                statement.span,
                label="not in a definition",
                help="a definition is a pure function: move this into the flow",
            )
        self.scope.statements.append(statement)

    def enter(self, scope: Scope) -> None:
        self.look()
        self.scope = scope

    def leave(self) -> tuple[ast.FlowStatement, ...]:
        """Close the innermost block; its statements."""
        self.look()
        self._check_unused()
        closed = self.scope
        assert closed.parent, "the body of the function is left by `finish`"
        self.scope = closed.parent
        if closed.leaks:
            self.scope.names |= closed.names
        return tuple(closed.statements)

    def abandon(self) -> None:
        """Leave the innermost block because of an exception."""
        self.scope = self.scope.parent or self.scope

    def finish(self) -> tuple[ast.FlowStatement, ...]:
        """The function has returned; its frame still holds the last assignments."""
        self.look()
        self._check_unused()
        for site in self.unopened.values():
            self.report.add(
                "E0025",
                f"{quoted(site.span, 'this')} opens a block that nothing enters",
                site.span,
                help=f"write `with {source_of(site.span)}:`",
            )
        return tuple(self.scope.statements)

    def _find_frame(self) -> FrameType | None:
        frame = user_frame()
        while frame and frame.f_code is not self.code:
            frame = frame.f_back
        return frame

    def _wants_name(self, traced: Traced) -> bool:
        return traced.owner is self and traced.name is None and traced.kind != "inline"

    def _assign(self, name: str, traced: Traced) -> None:
        target = traced.site.opposite
        self._check_name(name, target)
        traced.name = name
        self.scope.names.add(name)
        statement = NAMED.get(traced.kind, ast.Assign)(
            name, traced.expr, span=target.to(traced.site.span), name_span=target
        )
        if isinstance(statement, ast.Assign):
            self.scope.statements.append(statement)
        else:
            self.emit(statement)

    def _check_name(self, name: str, span: Span) -> None:
        if name in RESERVED:
            self.report.add(
                "E0023",
                f"`{name}` is a word of the language and can't name a value",
                span,
                help=f"give the variable another name, `{name}_` for example",
            )
        if any(name in scope.names for scope in self.scope.chain()):
            self.report.add(
                "E0023",
                f"`{name}` is assigned twice",
                span,
                label="assigned again here",
                help="a name means one value, whatever the order of the statements: give this one another name",
            )

    def _check_unused(self) -> None:
        for traced in self.scope.values:
            if traced.name is None and not traced.used and not isinstance(traced.expr, ast.Attr | ast.Name):
                self.report.add(
                    "E0024",
                    f"nothing uses the value of {traced.text}",
                    traced.site.span,
                    help="assign it to a variable of the flow's function, or remove it",
                )


_current: ContextVar[Trace | None] = ContextVar("shardflow_trace", default=None)


def current() -> Trace | None:
    """The trace that is running, if any."""
    return _current.get()


def tracing(site: Site) -> Trace:
    """The trace that is running, with what is assigned by now named; refused outside of one."""
    trace = _current.get()
    if trace is None:
        raise refusal(
            "E0025",
            f"{quoted(site.span, 'this operation')} stands outside of a flow",
            site.span,
            help="move it into a function under `@flow` (or `@define`)",
        )
    trace.look()
    return trace


def look() -> None:
    """Name what is assigned by now, so that an error calls it by its name."""
    trace = _current.get()
    if trace:
        trace.look()


@contextmanager
def running(trace: Trace) -> Iterator[None]:
    """Make `trace` the one that operations are recorded in."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


def refusal(code: str, message: str, span: Span, *, label: str = "", help: str | None = None) -> FlowError:
    """The exception that stops the trace: this error, with all that were gathered before it."""
    trace = _current.get()
    report = trace.report if trace else Report()
    report.add(code, message, span, label=label, help=help)
    return FlowError(in_order(report.diagnostics))


def run_users(function: Callable[..., Any], what: str, report: Report, *args: Any, **options: Any) -> Any:
    """Call a function of the user's; an exception of theirs becomes an error at their line."""
    try:
        return function(*args, **options)
    except FlowError:
        raise
    except Exception as error:
        span = _raised_at(error)
        report.add("E0029", f"{type(error).__name__} while {what}: {error}", span, label="raised here")
        raise FlowError(in_order(report.diagnostics)) from error


def _raised_at(error: Exception) -> Span | None:
    """Where the user's own code raised: libraries and this package are not where to look."""
    last, span = error.__traceback__, None
    while last:
        code = last.tb_frame.f_code
        if not is_ours(code) and not code.co_filename.startswith(LIBRARIES):
            span = site_at(code, last.tb_lasti).span
        last = last.tb_next
    return span
