"""The functions that every flow knows, by the tables of `vocabulary`, and the constructors of models and optimizers."""

from dataclasses import dataclass
from typing import Any, TypeVar

from .. import ast
from ..source import Span
from ..vocabulary import POINTWISE, STRUCTURAL
from .expressions import Inline, Operand, axis_or_expr, to_args, to_expr
from .spans import Site, caller
from .trace import Kind, Traced, tracing
from .values import BuiltIn, Model, State, Value, call, made

S = TypeVar("S", bound=Value)


class Function(BuiltIn):
    """A built-in function. What it takes is checked by the compiler, with the same words for both front ends."""

    __slots__ = ("kind", "parameters")

    def __init__(self, name: str, kind: Kind = "value") -> None:
        super().__init__(name)
        self.kind = kind
        self.parameters = POINTWISE.get(name) or STRUCTURAL.get(name) or ()

    def __call__(self, *args: Operand, **options: Operand) -> Value:
        site = caller()
        return call(self, tuple(self._positional(i, a, site) for i, a in enumerate(args)), dict(options), self.kind)

    def _positional(self, i: int, value: Operand, site: Site) -> Operand:
        """An axis may be given by its place too: `rank(x, "prompt")`."""
        name = self.parameters[i] if i < len(self.parameters) else ""
        return Syntax(axis_or_expr(name, value, site.part(i))) if isinstance(value, str) else value


@dataclass(frozen=True)
class Syntax(Inline):
    """A piece of syntax that is known already."""

    expr: ast.Expr

    def _expr(self, span: Span) -> ast.Expr:
        return self.expr


mean = Function("mean")
sum = Function("sum")
std = Function("std")
var = Function("var")
max = Function("max")
min = Function("min")
count = Function("count")
quantile = Function("quantile")

maximum = Function("maximum")
minimum = Function("minimum")
where = Function("where")
clamp = Function("clamp")
abs = Function("abs")
exp = Function("exp")
ln = Function("ln")
sqrt = Function("sqrt")
sigmoid = Function("sigmoid")
log_sigmoid = Function("log_sigmoid")
stop_gradient = Function("stop_gradient")
comb = Function("comb")

expand = Function("expand")
rank = Function("rank")
keep = Function("keep")
read = Function("read", "draw")
ema = Function("ema")

step = Value(Traced(ast.Name("step"), kind="inline"))
"""The number of the step, from 0."""


@dataclass(frozen=True)
class Optimizer(Inline):
    """An optimizer with its options: plain data, written where it is passed."""

    expr: ast.Expr

    def _expr(self, span: Span) -> ast.Expr:
        return self.expr


def adamw(**options: Operand) -> Optimizer:
    """AdamW; `lr` is required. Options as in `vocabulary.OPTIMIZERS`."""
    site = caller()
    return Optimizer(ast.Call(ast.Name("adamw", span=site.span), to_args((), options, site), span=site.span))


def causal_lm(path: Operand, **options: Operand) -> Model:
    """A language model: `generate`, `logprobs`, `entropy`."""
    return _constructed(Model, "causal_lm", path, options)


def value_model(path: Operand, **options: Operand) -> Model:
    """A model with one value per token: `values`."""
    return _constructed(Model, "value_model", path, options)


def reward_model(path: Operand, **options: Operand) -> Model:
    """A model with one score per row: `score`."""
    return _constructed(Model, "reward_model", path, options)


def frozen(model: Model) -> Model:
    """A model that is never trained; of a model that is, its weights before step 0."""
    return _constructed(Model, "frozen", model, {})


def state(start: Operand) -> State:
    """A value carried from step to step: `beta = state(0.2)`, then `beta.next = …`."""
    site = caller()
    trace = tracing(site)
    return State(trace.add(to_expr(start, site.part(0)), site, "state"))  # a statement once its variable is found


def _constructed(of: type[S], name: str, argument: Operand, options: dict[str, Any]) -> S:
    return made(of, BuiltIn(name), (argument,), options, "model")
