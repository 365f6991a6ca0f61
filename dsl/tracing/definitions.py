"""`@flow` and `@define`: functions whose bodies are traced, with their parameters as symbols."""

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, Literal

from .. import ast
from ..diagnostics import Report
from ..literals import clean_doc
from ..vocabulary import RESERVED
from .expressions import Operand, axis_or_expr, to_args, to_expr
from .module import Parts
from .sizes import Prompts, Samples, Steps, Tokens
from .spans import Signature, Site, caller, code_of, signature_of
from .trace import Scope, Trace, Traced, refusal, run_users, running, tracing
from .values import Value

ANNOTATIONS = {
    **{kind.__name__: kind.__name__ for kind in (int, float, str, bool)},
    **{size.__name__: size.unit for size in (Prompts, Samples, Tokens, Steps)},
}
"""How a parameter's type is written in Python, and in the language."""
NOT_PLAIN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class FlowDefinition:
    """A flow written in Python. Its function runs when `module` is asked for, not before."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__
        self.placements: list[ast.Place | ast.ClusterDecl] = []

    def module(self) -> ast.Module:
        """The flow with what it needs: imports, definitions, and how it was placed.

        Raises FlowError with every violation found.
        """
        report = Report()
        parts = Parts(report)
        written = self._flow(parts, report)
        report.raise_if_errors()
        doc = clean_doc(self.function.__globals__.get("__doc__") or "") or None
        return ast.Module((*parts.statements(), written, *self.placements), doc, span=written.span)

    def __call__(self, *args: object, **options: object) -> None:
        site = caller()
        help = f"run it with `flowrun FILE.py:{self.name}`, or ask for `{self.name}.module()`"
        raise refusal("E0025", f"a flow isn't called, it is compiled: `{self.name}`", site.span, help=help)

    def __repr__(self) -> str:
        return f"<flow {self.name}>"

    def _flow(self, parts: Parts, report: Report) -> ast.Flow:
        header = signature_of(self.function)
        trace = _trace("flow", self.function, parts, header)
        parts.claim(self.name, self, header.name)
        with running(trace):
            params = _params(self.function, header)
            result = _run(trace, self.function, params)
            body = trace.finish()
        if result is not None:
            help = "a flow returns nothing: record results with `metric(name=…)`"
            report.add("E0026", f"flow `{self.name}` returns a value", header.name, help=help)
        return ast.Flow(self.name, params, body, _doc(self.function), span=header.name, name_span=header.name)


class Definition:
    """A formula written in Python: a pure function, inlined where a flow calls it."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *args: Operand, **options: Operand) -> Value:
        site = caller()
        trace = tracing(site)
        self._declare(trace, site)
        func = ast.Name(self.name, span=site.span)
        return Value(trace.add(ast.Call(func, to_args(args, options, site), span=site.span), site))

    def __repr__(self) -> str:
        return f"<def {self.name}>"

    def _declare(self, trace: Trace, site: Site) -> None:
        """Trace the body at its first use; those that it calls stand before it."""
        parts = trace.parts
        if self.name in parts.begun:
            message = f"`def {self.name}` calls itself"
            raise refusal("E0026", message, site.span, help="a definition is a finite formula: write it out")
        if parts.claim(self.name, self, site.span):
            parts.begun.append(self.name)
            parts.defs[self.name] = self._def(parts)
            parts.begun.pop()

    def _def(self, parts: Parts) -> ast.Def:
        header = signature_of(self.function)
        trace = _trace("def", self.function, parts, header)
        with running(trace):
            params = _params(self.function, header)
            result = _run(trace, self.function, params)
            trace.look()
            if result is None:
                message = f"`def {self.name}` returns nothing"
                raise refusal("E0026", message, header.name, help="return the formula's value")
            value = to_expr(result, header.name)
            body = tuple(s for s in trace.finish() if isinstance(s, ast.Assign))
        return ast.Def(self.name, params, body, value, _doc(self.function), span=header.name, name_span=header.name)


def flow(function: Callable[..., Any]) -> FlowDefinition:
    """Make a flow of a function; its parameters are the flow's, those without a default are required."""
    return FlowDefinition(_plain(function, "flow"))


def define(function: Callable[..., Any]) -> Definition:
    """Make a `def` of a function: a pure formula of its parameters, with what it returns as its result."""
    return Definition(_plain(function, "define"))


def _trace(what: Literal["flow", "def"], function: FunctionType, parts: Parts, header: Signature) -> Trace:
    scope = Scope(f"{what} {function.__name__}")
    return Trace(what, function.__name__, code_of(function), parts, parts.report, scope, header.hidden)


def _run(trace: Trace, function: FunctionType, params: tuple[ast.Param, ...]) -> object:
    """Call the function with a symbol for each parameter."""
    values: dict[str, Value] = {}
    for param in params:
        traced = Traced(ast.Name(param.name, span=param.span), name=param.name, owner=trace, scope=trace.scope)
        trace.scope.names.add(param.name)
        values[param.name] = Value(traced)
    kinds = inspect.signature(function).parameters
    by_name = {n: v for n, v in values.items() if kinds[n].kind is inspect.Parameter.KEYWORD_ONLY}
    in_place = [v for n, v in values.items() if n not in by_name]
    return run_users(function, f"tracing `{trace.what} {trace.name}`", trace.report, *in_place, **by_name)


def _params(function: FunctionType, header: Signature) -> tuple[ast.Param, ...]:
    return tuple(_param(p, header) for p in inspect.signature(function).parameters.values())


def _param(param: inspect.Parameter, header: Signature) -> ast.Param:
    span = header.params.get(param.name, header.name)
    if param.kind in (param.VAR_POSITIONAL, param.VAR_KEYWORD):
        raise refusal("E0026", f"`{param}` stands for many parameters", span, help="name each parameter")
    if param.name in RESERVED:
        message = f"`{param.name}` is a word of the language and can't name a parameter"
        raise refusal("E0023", message, span, help=f"call it `{param.name}_`, for example")
    default = None
    if param.default is not param.empty:
        default = axis_or_expr(param.name, param.default, header.defaults.get(param.name, Site(span)).span)
    return ast.Param(param.name, _annotation(param, header), default, span=span)


def _annotation(param: inspect.Parameter, header: Signature) -> str | None:
    if param.annotation is param.empty:
        return None
    hint = param.annotation
    written = hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
    known = ANNOTATIONS.get(written.rpartition(".")[2])
    if known is None:
        message = f"parameter `{param.name}` can't have the type `{written}`"
        help = f"allowed: {', '.join(f'`{a}`' for a in ANNOTATIONS)}, or none"
        raise refusal("E0026", message, header.params.get(param.name, header.name), help=help)
    return known


def _plain(function: object, decorator: str) -> FunctionType:
    if not isinstance(function, FunctionType):
        raise refusal("E0026", f"`@{decorator}` decorates a function, not `{function!r}`", caller().span)
    if function.__code__.co_flags & NOT_PLAIN:
        message = f"`{function.__name__}` is asynchronous or a generator"
        raise refusal("E0026", message, signature_of(function).name, help=f"`@{decorator}` takes a plain function")
    return function


def _doc(function: FunctionType) -> str | None:
    return clean_doc(function.__doc__) if function.__doc__ else None
