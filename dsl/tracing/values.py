"""Traced values: Python objects whose operators, attributes and calls record expressions instead of computing."""

import ast as python
from typing import Any, TypeVar

from .. import ast
from .expressions import Operand, named, reference, to_args, to_expr
from .refused import no_truth, refuse_uses
from .spans import Site, caller
from .trace import Kind, Symbol, Traced, look, refusal, tracing

V = TypeVar("V", bound="Value")

COMPARISONS = {"<": python.Lt, "<=": python.LtE, ">": python.Gt, ">=": python.GtE, "==": python.Eq, "!=": python.NotEq}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


class Value(Symbol):
    """A value of the flow. Operators, attributes and calls on it are recorded; its truth or size can't be asked."""

    __slots__ = ()
    __array_ufunc__ = None  # so that a numpy scalar at the left leaves the operation to us

    def __getattr__(self, name: str) -> "Value":
        if name.startswith("__"):
            raise AttributeError(name)
        return attribute(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
            return
        look()
        message = f"`.{name}` of {self._traced.text} can't be set"
        raise refusal("E0027", message, caller().span, help="only `model.next = …` and `state.next = …` are statements")

    def __call__(self, *args: Operand, **options: Operand) -> "Value":
        return call(self, args, options)

    def __repr__(self) -> str:
        return f"<flow value {self._traced.text.strip('`')}>"

    def __add__(self, other: Operand) -> "Value":
        return binary("+", self, other)

    def __radd__(self, other: Operand) -> "Value":
        return binary("+", other, self)

    def __sub__(self, other: Operand) -> "Value":
        return binary("-", self, other)

    def __rsub__(self, other: Operand) -> "Value":
        return binary("-", other, self)

    def __mul__(self, other: Operand) -> "Value":
        return binary("*", self, other)

    def __rmul__(self, other: Operand) -> "Value":
        return binary("*", other, self)

    def __truediv__(self, other: Operand) -> "Value":
        return binary("/", self, other)

    def __rtruediv__(self, other: Operand) -> "Value":
        return binary("/", other, self)

    def __floordiv__(self, other: Operand) -> "Value":
        return binary("//", self, other)

    def __rfloordiv__(self, other: Operand) -> "Value":
        return binary("//", other, self)

    def __mod__(self, other: Operand) -> "Value":
        return binary("%", self, other)

    def __rmod__(self, other: Operand) -> "Value":
        return binary("%", other, self)

    def __pow__(self, other: Operand) -> "Value":
        return binary("**", self, other)

    def __rpow__(self, other: Operand) -> "Value":
        return binary("**", other, self)

    def __and__(self, other: Operand) -> "Value":
        return binary("and", self, other)

    def __rand__(self, other: Operand) -> "Value":
        return binary("and", other, self)

    def __or__(self, other: Operand) -> "Value":
        return binary("or", self, other)

    def __ror__(self, other: Operand) -> "Value":
        return binary("or", other, self)

    def __eq__(self, other: object) -> "Value":  # type: ignore[override]
        return comparison("==", self, other)

    def __ne__(self, other: object) -> "Value":  # type: ignore[override]
        return comparison("!=", self, other)

    def __lt__(self, other: Operand) -> "Value":
        return comparison("<", self, other)

    def __le__(self, other: Operand) -> "Value":
        return comparison("<=", self, other)

    def __gt__(self, other: Operand) -> "Value":
        return comparison(">", self, other)

    def __ge__(self, other: Operand) -> "Value":
        return comparison(">=", self, other)

    __hash__ = object.__hash__

    def __neg__(self) -> "Value":
        return unary("-", self)

    def __invert__(self) -> "Value":
        return unary("not", self)

    def __pos__(self) -> "Value":
        return self

    def __abs__(self) -> "Value":
        return call(BuiltIn("abs"), (self,), {})

    def __bool__(self) -> bool:
        raise no_truth(self)


refuse_uses(Value)


class Model(Value):
    """A model: its phases are methods, `next` is what it becomes at the next step."""

    __slots__ = ()

    @property
    def next(self) -> "Model":
        """The model after this step's updates (version t+1)."""
        site = caller()
        trace = tracing(site)
        base = reference(self._traced, site.span, must_be_named=True)
        return Model(trace.add(ast.Attr(base, "next", span=site.span), site, "inline"))

    @next.setter
    def next(self, value: "Operand") -> None:
        set_next(self, value)

    def generate(self, *prompts: Operand, **options: Operand) -> Value:
        """Draw a rollout: `policy.generate(prompts, n=8, max_new_tokens=512)`."""
        return _phase(self, "generate", prompts, options)

    def logprobs(self, *rows: Operand, **options: Operand) -> Value:
        """Log-probability [token] of a rollout's tokens, or of a response column after a prompt column."""
        return _phase(self, "logprobs", rows, options)

    def entropy(self, *rows: Operand, **options: Operand) -> Value:
        """Entropy [token] of the distribution that each token was chosen from."""
        return _phase(self, "entropy", rows, options)

    def values(self, *rows: Operand, **options: Operand) -> Value:
        """V [token] of the state before each token."""
        return _phase(self, "values", rows, options)

    def score(self, *rows: Operand, **options: Operand) -> Value:
        """One score per row [sample]."""
        return _phase(self, "score", rows, options)


class State(Value):
    """A value carried from step to step; `next` is what it becomes."""

    __slots__ = ()

    @property
    def next(self) -> Value:
        return attribute(self, "next")

    @next.setter
    def next(self, value: "Operand") -> None:
        set_next(self, value)


class BuiltIn(Symbol):
    """A name that every flow knows, as what is called."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(Traced(ast.Name(name)))


def attribute(base: Symbol, name: str) -> Value:
    """`base.name`"""
    site = caller()
    trace = tracing(site)
    return Value(trace.add(ast.Attr(reference(base._traced, site.span), name, span=site.span), site))


def call(func: Symbol, args: tuple[object, ...], options: dict[str, Any], kind: Kind = "value") -> Value:
    """`func(args, options)`"""
    return made(Value, func, args, options, kind)


def made(of: type[V], func: Symbol, args: tuple[object, ...], options: dict[str, Any], kind: Kind) -> V:
    """A call whose result is a value of class `of`."""
    site = caller()
    trace = tracing(site)
    written = ast.Call(reference(func._traced, site.span), to_args(args, options, site), span=site.span)
    return of(trace.add(written, site, kind))


def binary(op: str, left: object, right: object) -> Value:
    """`left op right`"""
    return _binary(op, left, right, caller())


def comparison(op: str, left: object, right: object) -> Value:
    """`left op right`, as it was written: for `0 < x` Python asks x whether it is greater."""
    site = caller()
    if _was_mirrored(op, site.node):
        return _binary(MIRRORED[op], right, left, site)
    return _binary(op, left, right, site)


def unary(op: str, operand: Value) -> Value:
    """`op operand`"""
    site = caller()
    trace = tracing(site)
    return Value(trace.add(ast.Unary(op, to_expr(operand, site.part(0)), span=site.span), site))


def set_next(target: Value, value: object) -> None:
    """`next target = value`"""
    site = caller()
    trace = tracing(site)
    name = named(target, "a model or a state", site.part(0))
    becomes = to_expr(value, site.opposite)
    trace.emit(ast.Next(name, becomes, span=site.span.to(site.opposite), name_span=site.part(0)))


def _binary(op: str, left: object, right: object, site: Site) -> Value:
    trace = tracing(site)
    sides = to_expr(left, site.part(0)), to_expr(right, site.part(1))
    return Value(trace.add(ast.Binary(op, *sides, span=site.span), site))


def _was_mirrored(op: str, node: python.expr | None) -> bool:
    match node:
        case python.Compare(ops=[written], left=left) if op in ("==", "!="):
            return isinstance(written, COMPARISONS[op]) and _is_literal(left)
        case python.Compare(ops=[written]):
            return isinstance(written, COMPARISONS[MIRRORED[op]])
    return False


def _is_literal(node: python.expr) -> bool:
    return isinstance(node.operand if isinstance(node, python.UnaryOp) else node, python.Constant)


def _phase(model: Model, phase: str, args: tuple[Operand, ...], options: dict[str, Operand]) -> Value:
    site = caller()
    trace = tracing(site)
    base = reference(model._traced, site.span, must_be_named=model._traced.kind == "model")
    method = ast.Attr(base, phase, span=site.span)
    written = ast.Call(method, to_args(args, options, site), span=site.span)
    return Value(trace.add(written, site, "draw" if phase == "generate" else "value"))
