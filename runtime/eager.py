"""Definitions of `.flow` modules, called from Python on real tensors.

    >>> from shardflow.runtime import Axes, load
    >>> load("std.losses").clipped_policy_loss(logp, old, adv, 0.2, 0.2)       # plain tensors, element by element
    >>> axes = Axes(samples=[4, 4], tokens=lengths)                            # 2 prompts of 4 samples
    >>> load("std.advantages").z(axes.sample(reward)).tensor

A plain tensor is one flat axis; values that need the hierarchy are made by `Axes`. Gradients flow.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..dsl import ast
from ..dsl.diagnostics import Report
from ..dsl.modules import STD, DefSymbol, FlowModule, FlowSymbol, Loader, PythonModule, Symbol, member
from ..dsl.operators import Hint, Operator
from ..dsl.ragged import PerSequence, Ragged
from ..dsl.vocabulary import AXES, POINTWISE, REDUCTIONS, STRUCTURAL
from . import algebra
from .errors import RunError
from .operators import module_of
from .values import AxisError, Frame, Record, Value, innermost, root

PACKED: Mapping[str, type[Ragged]] = {"ragged": Ragged, "per_sequence": PerSequence}


class EagerError(RunError):
    """A definition that can't be called like this."""


# ---------------------------------------------------------------- values by hand


class Axes:
    """The axes of a batch, for values made by hand.

    samples: how many samples each prompt has. tokens: how many tokens each sample has.
    """

    def __init__(self, samples: Sequence[int], tokens: Sequence[int] | None = None) -> None:
        self.prompts = root("batch.prompt", len(samples))
        self.samples = self.prompts.child("batch.sample", samples)
        self.tokens = self.samples.child("batch.token", tokens) if tokens is not None else None

    def prompt(self, x: Tensor | Sequence[Any]) -> Value:
        return _on(self.prompts, x)

    def sample(self, x: Tensor | Sequence[Any]) -> Value:
        return _on(self.samples, x)

    def token(self, x: Tensor | Sequence[Any]) -> Value:
        """Packed values [token], or one sequence per sample."""
        if self.tokens is None:
            raise EagerError("these axes have no tokens: write Axes(samples, tokens=lengths)")
        if not isinstance(x, Tensor) and len(x) and isinstance(x[0], list | tuple | Tensor):
            x = torch.cat([torch.as_tensor(row) for row in x])
        return _on(self.tokens, x)


def _on(frame: Frame, x: Tensor | Sequence[Any]) -> Value:
    data = x if isinstance(x, Tensor) else torch.as_tensor(x)
    if data.shape != (frame.size,):
        raise EagerError(f"`{frame.name}` has {frame.size} rows; the values have shape {tuple(data.shape)}")
    return Value(data, frame)


# ---------------------------------------------------------------- modules


class EagerModule:
    """A module whose definitions and Python operators are attributes."""

    def __init__(self, module: FlowModule | PythonModule) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Callable[..., Any]:
        symbol = member(self._module, name)
        if symbol is None or isinstance(symbol, FlowSymbol):
            known = ", ".join(sorted(self.__dir__()))
            raise AttributeError(f"module `{self._module.name}` has no definition `{name}`; it has {known}")
        return lambda *args, **kwargs: _unwrapped(_call_symbol(symbol, args, kwargs), [*args, *kwargs.values()])

    def __dir__(self) -> list[str]:
        names = self._module.names if isinstance(self._module, FlowModule) else self._module.functions
        return [n for n, s in names.items() if isinstance(s, DefSymbol | Operator)]


def load(name: str, folder: str | Path = ".") -> EagerModule:
    """The module `name` (`std.losses`, or a dotted one relative to `folder`). Raises FlowError, EagerError."""
    report = Report()
    module = Loader(report).import_module(name, Path(folder))
    report.raise_if_errors()
    if module is None:
        raise EagerError(f"no module `{name}` in `{folder}` or the standard library")
    return EagerModule(module)


def _unwrapped(result: Any, args: Sequence[Any]) -> Any:
    """Plain tensors in, plain tensor out."""
    plain = not any(isinstance(a, Value | Record) for a in args)
    return result.tensor if plain and isinstance(result, Value) else result


# ---------------------------------------------------------------- evaluation

Scope = Mapping[str, Any]


def _call_symbol(symbol: Symbol, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    values = [_wrapped(a) for a in args]
    named = {k: _wrapped(v) for k, v in kwargs.items()}
    match symbol:
        case DefSymbol():
            return _call_definition(symbol, values, named)
        case Operator():
            return _call_operator(symbol, values, named)
    raise EagerError("only definitions and Python operators can be called")


def _wrapped(x: Any) -> Any:
    """A plain tensor as a value: one flat axis, or a scalar."""
    return Value(x) if isinstance(x, Tensor) else x


def _call_definition(symbol: DefSymbol, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    definition = symbol.definition
    scope: dict[str, Any] = _bound(definition, args, kwargs)
    for param in definition.params:
        if param.name not in scope and param.default is not None:
            scope[param.name] = _evaluate(param.default, scope, symbol.module)
    missing = [p.name for p in definition.params if p.name not in scope]
    if missing:
        raise TypeError(f"{definition.name}() misses {', '.join(missing)}")
    for statement in definition.body:
        scope[statement.name] = _evaluate(statement.value, scope, symbol.module)
    return _evaluate(definition.result, scope, symbol.module)


def _bound(definition: ast.Def, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = [p.name for p in definition.params]
    if len(args) > len(names) or any(k not in names for k in kwargs):
        raise TypeError(f"it is {definition.name}({', '.join(names)})")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _evaluate(expr: ast.Expr, scope: Scope, module: FlowModule) -> Any:
    match expr:
        case ast.Num(value=value) | ast.Str(value=value) | ast.Bool(value=value):
            return value
        case ast.Name(id=name):
            return scope[name] if name in scope else module.names.get(name, name)
        case ast.Unary(op=op, operand=operand):
            return _apply("neg" if op == "-" else op, [_evaluate(operand, scope, module)])
        case ast.Binary(op=op, left=left, right=right):
            return _apply(op, [_evaluate(left, scope, module), _evaluate(right, scope, module)])
        case ast.Attr(base=base, name=name):
            return _attribute(_evaluate(base, scope, module), name)
        case ast.Call():
            return _call(expr, scope, module)
    raise EagerError("this can't be evaluated eagerly")


def _attribute(base: Any, name: str) -> Any:
    if isinstance(base, FlowModule | PythonModule):
        return member(base, name)
    if isinstance(base, Record):
        return base.fields[name]
    if isinstance(base, Value) and base.frame and name in AXES:
        return base.frame.find(name)
    return getattr(base, name)


def _call(expr: ast.Call, scope: Scope, module: FlowModule) -> Any:
    name = expr.func.id if isinstance(expr.func, ast.Name) and expr.func.id not in module.names else ""
    if name in REDUCTIONS:
        return _reduction(name, expr, scope, module)
    if name in POINTWISE:
        bound = _arguments(name, POINTWISE[name], expr, scope, module)
        return _apply(name, [bound[p] for p in POINTWISE[name]])
    if name == "rank":
        bound = _arguments(name, STRUCTURAL[name], expr, scope, module)
        return algebra.rank(bound["x"], _target(bound["x"].frame, bound))
    if name == "expand":
        bound = _arguments(name, STRUCTURAL[name], expr, scope, module)
        return bound["x"].on(bound["to"])
    positional = [_evaluate(a.value, scope, module) for a in expr.args if a.name is None]
    named = {a.name: _evaluate(a.value, scope, module) for a in expr.args if a.name}
    return _call_symbol(_evaluate(expr.func, scope, module), positional, named)


def _arguments(
    fn: str, params: Sequence[str], expr: ast.Call, scope: Scope, module: FlowModule, positional: int | None = None
) -> dict[str, Any]:
    """Arguments by parameter, as the compiler binds them. positional: how many may go without a name; None: all."""
    free = [a.value for a in expr.args if a.name is None]
    named = {a.name: a.value for a in expr.args if a.name}
    wrong = [n for n in named if n not in params or n in params[: len(free)]]
    if wrong or len(free) > (len(params) if positional is None else positional):
        raise TypeError(f"it is {fn}({', '.join(params)})")
    given = {**dict(zip(params, free, strict=False)), **named}
    return {name: _evaluate(value, scope, module) for name, value in given.items()}


def _apply(fn: str, operands: list[Any]) -> Any:
    """Constants stay Python numbers, so that a definition doesn't change a tensor's dtype."""
    return algebra.pointwise(fn, operands) if any(isinstance(o, Value) for o in operands) else _number(fn, operands)


def _number(fn: str, operands: list[Any]) -> Any:
    result = algebra.POINTWISE[fn](*operands)
    return result.item() if isinstance(result, Tensor) else result


def _reduction(fn: str, expr: ast.Call, scope: Scope, module: FlowModule) -> Value:
    params = ["x", "q"] if fn == "quantile" else ["x"]
    options = _arguments(fn, [*params, "by", "over", "where"], expr, scope, module, len(params))
    value = _framed(options["x"])
    where = _framed(options["where"], value.frame) if "where" in options else None
    frame = innermost([value.frame, where.frame if where else None])
    return algebra.reduce(fn, value, _target(frame, options), where, options.get("q", 0.5))


def _framed(x: Any, frame: Frame | None = None) -> Value:
    """A plain tensor is one flat axis without a name."""
    if isinstance(x, Value) and x.frame is None and x.tensor.dim() == 1:
        return Value(x.tensor, frame or root("flat.axis", len(x.tensor)))
    if not isinstance(x, Value):
        raise EagerError(f"a reduction pools values, not {x!r}")
    return x


def _target(frame: Frame | None, options: Mapping[str, Any]) -> Frame | None:
    assert frame is not None
    try:
        if "over" in options:
            return frame.find(_axis(options["over"])).parent
        return frame.find(_axis(options["by"])) if "by" in options else None
    except AxisError as error:
        raise EagerError(f"{error}; make the values with Axes, such as Axes(samples=[4, 4]).sample(x)") from None


def _axis(axis: Any) -> str:
    return axis.name if isinstance(axis, Frame) else str(axis)


# ---------------------------------------------------------------- Python operators


def _call_operator(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A scan along tokens, or a function of plain numbers."""
    names = [p.name for p in operator.params]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    function = getattr(_python_module(Path(operator.file)), operator.name)
    if not isinstance(operator.result, Hint) or operator.result.sees not in PACKED:
        return function(**given)
    values = {n: v for n, v in given.items() if isinstance(v, Value)}
    frame = innermost(v.frame for v in values.values())
    if frame is None or frame.parent is None:
        raise EagerError(
            f"`{operator.name}` sees token sequences: make the values with Axes(samples, tokens=lengths).token(x)"
        )
    packed = {n: PACKED[operator.result.sees](v.on(frame).tensor, frame.lengths) for n, v in values.items()}
    return Value(function(**{**given, **packed}).values, frame)


def _python_module(file: Path) -> Any:
    if file.is_relative_to(STD):
        return importlib.import_module(f"{(__package__ or '').split('.')[0]}.stdlib.{file.stem}")
    return module_of(file)
