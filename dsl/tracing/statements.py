"""Statements: what a flow does besides naming values. Those that hold others are context managers."""

import keyword
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

from .. import ast
from ..source import Span
from ..vocabulary import COLLECT_OPTIONS, KEYWORDS, UPDATE_OPTIONS
from .expressions import Operand, named, to_args, to_expr
from .functions import Optimizer
from .spans import Site, caller
from .trace import Scope, Trace, refusal, tracing
from .values import Model, Value

Body: TypeAlias = tuple[ast.FlowStatement, ...]


class Block:
    """A statement that holds others, to be entered by `with`."""

    def __init__(self, trace: Trace, site: Site, title: str, build: Callable[[Body], ast.FlowStatement]) -> None:
        self._trace, self._site, self._title, self._build = trace, site, title, build
        trace.unopened[self] = site

    def __enter__(self) -> None:
        self._trace.unopened.pop(self, None)
        self._trace.enter(Scope(self._title, self._trace.scope, leaks=self._title == "collect"))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self._trace.abandon()
            return
        body = self._trace.leave()
        self._trace.emit(self._build(body))


def update(model: Model, optimizer: Optimizer, /, **options: Operand) -> Block:
    """`with update(policy, adamw(lr=1e-6), minibatch=Prompts(16), epochs=4):`; names inside are its own."""
    site = caller()
    trace = tracing(site)
    name = named(model, "a model", site.part(0))
    first = ast.Arg(to_expr(optimizer, site.part(1)), span=site.part(1))
    args = (first, *to_args((), options, site, UPDATE_OPTIONS))
    return Block(
        trace, site, f"update {name}", lambda body: ast.Update(name, args, body, span=site.span, name_span=site.part(0))
    )


def when(condition: Value | bool) -> Block:
    """`with when(step >= warmup):`"""
    site = caller()
    trace = tracing(site)
    test = to_expr(condition, site.part(0))
    return Block(trace, site, "when", lambda body: ast.When(test, body, span=site.span))


def every(period: Operand) -> Block:
    """`with every(Steps(20)):`"""
    site = caller()
    trace = tracing(site)
    size = to_expr(period, site.part(0))
    return Block(trace, site, "every", lambda body: ast.Every(size, body, span=site.span))


def collect(target: Operand, **options: Operand) -> Block:
    """`with collect(Prompts(64), rounds=8, short="skip"):`; its names stand for the kept rows afterwards."""
    site = caller()
    trace = tracing(site)
    args = to_args((target,), options, site, COLLECT_OPTIONS)
    return Block(trace, site, "collect", lambda body: ast.Collect(args, body, span=site.span))


def keep_rows(rows: Value, *, where: Value) -> None:
    """`keep prompts where …`: what a `collect` keeps of its round (`keep` is the function that opens a child axis)."""
    site = caller()
    trace = tracing(site)
    name = named(rows, "the rows to keep", site.part(0))
    trace.emit(ast.Keep(name, to_expr(where, site.part("where")), span=site.span, name_span=site.part(0)))


def minimize(loss: Operand) -> None:
    """The loss of an update, exactly once in each."""
    site = caller()
    trace = tracing(site)
    trace.emit(ast.Minimize(to_expr(loss, site.part(0)), span=site.span))


def metric(*name_and_value: Operand, **values: Operand) -> None:
    """Record scalars: `metric(kl=kl)` or `metric("kl", kl)`."""
    site = caller()
    trace = tracing(site)
    if name_and_value:
        name, value = _one_metric(name_and_value, site)
        _record(trace, name, value, site.part(1), site)
    for name, value in values.items():
        _record(trace, name, value, site.part(name), site)


def _one_metric(given: tuple[Operand, ...], site: Site) -> tuple[str, Operand]:
    match given:
        case (str(name), value):
            return name, value
    help = 'write `metric("kl", kl)` or `metric(kl=kl)`'
    raise refusal("E0027", "a metric has a name and a value", site.span, help=help)


def _record(trace: Trace, name: str, value: Operand, at: Span, site: Site) -> None:
    if not name.isidentifier() or keyword.iskeyword(name) or name in KEYWORDS:
        help = "write a name such as `pass_rate`"
        raise refusal("E0022", f"`{name}` can't name a metric", site.part(0), help=help)
    trace.emit(ast.Metric(name, to_expr(value, at), span=site.span, name_span=at))
