"""The mask-free algebra on packed values: element by element, up the axes by reductions, down by broadcasting.

Sums run in float64 whatever the values' dtype, so that a result doesn't depend on how rows are packed.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .errors import RunError
from .numbers import is_number, numeric
from .values import Frame, Value, innermost

Operand = Value | int | float | bool | str


class ReductionError(RunError):
    """A reduction that has no value, such as the largest of nothing."""


# ---------------------------------------------------------------- element by element


def _where(c: Any, a: Any, b: Any) -> Tensor:
    condition = torch.as_tensor(c).bool()
    like = next((x for x in (a, b) if isinstance(x, Tensor)), None)
    a, b = (x if isinstance(x, Tensor) else torch.as_tensor(x, dtype=_common(like, x)) for x in (a, b))
    return torch.where(condition, a, b)


def _common(like: Tensor | None, x: Any) -> torch.dtype | None:
    """The dtype of a constant beside a tensor: the tensor's, unless it is an integer tensor and a float constant."""
    if like is None:
        return torch.get_default_dtype() if isinstance(x, float) else None
    return like.dtype if like.is_floating_point() or not isinstance(x, float) else torch.get_default_dtype()


def _extreme(fn: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Tensor]:
    def apply(a: Any, b: Any) -> Tensor:
        like = a if isinstance(a, Tensor) else b
        a, b = (x if isinstance(x, Tensor) else torch.as_tensor(x, dtype=_common(like, x)) for x in (a, b))
        return fn(a, b)

    return apply


def _comb(n: Any, k: Any) -> Tensor:
    """Binomial coefficients, 0 where k > n; exact up to 2^53."""
    n, k = (torch.as_tensor(x, dtype=torch.float64) for x in (n, k))
    n, k = n + torch.zeros_like(k), k + torch.zeros_like(n)
    table = [math.comb(int(a), int(b)) for a, b in zip(n.flatten().tolist(), k.flatten().tolist(), strict=True)]
    return torch.tensor(table, dtype=torch.float64).reshape(n.shape)


def _logical(fn: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Tensor]:
    return lambda a, b: fn(torch.as_tensor(a).bool(), torch.as_tensor(b).bool())


def _unary(fn: Callable[[Tensor], Tensor]) -> Callable[[Any], Tensor]:
    def apply(x: Any) -> Tensor:
        tensor = x if isinstance(x, Tensor) else torch.as_tensor(x)
        return fn(tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype()))

    return apply


def _arithmetic(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Booleans count as 0 and 1: torch makes `or` of their sum, and refuses to subtract them."""
    return lambda *operands: fn(*(x.long() if isinstance(x, Tensor) and x.dtype == torch.bool else x for x in operands))


def _divided(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Whole numbers divided by zero have no value, on which torch and Python agree but not on the error."""

    def apply(a: Any, b: Any) -> Any:
        if _is_whole(a) and _is_whole(b) and bool((torch.as_tensor(b) == 0).any()):
            raise ZeroDivisionError("an integer is divided by zero")
        return fn(a, b)

    return apply


def _power(a: Any, b: Any) -> Any:
    """A negative power of a whole number is a fraction."""
    if _is_whole(a) and _is_whole(b) and bool((torch.as_tensor(b) < 0).any()):
        a = torch.as_tensor(a, dtype=torch.get_default_dtype())
    return a**b


def _is_whole(x: Any) -> bool:
    return not x.is_floating_point() if isinstance(x, Tensor) else isinstance(x, int)


POINTWISE: Mapping[str, Callable[..., Any]] = {
    "+": _arithmetic(operator.add),
    "-": _arithmetic(operator.sub),
    "*": _arithmetic(operator.mul),
    "/": _arithmetic(operator.truediv),
    "//": _arithmetic(_divided(operator.floordiv)),
    "%": _arithmetic(_divided(operator.mod)),
    "**": _arithmetic(_power),
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "and": _logical(torch.logical_and),
    "or": _logical(torch.logical_or),
    "not": lambda x: ~torch.as_tensor(x).bool(),
    "neg": _arithmetic(operator.neg),
    "maximum": _extreme(torch.maximum),
    "minimum": _extreme(torch.minimum),
    "where": _where,
    "clamp": _arithmetic(lambda x, lo, hi: _clamp(x, lo, hi)),
    "abs": _arithmetic(lambda x: torch.abs(torch.as_tensor(x))),
    "exp": _unary(torch.exp),
    "ln": _unary(torch.log),
    "sqrt": _unary(torch.sqrt),
    "sigmoid": _unary(torch.sigmoid),
    "log_sigmoid": _unary(torch.nn.functional.logsigmoid),
    "stop_gradient": lambda x: x.detach() if isinstance(x, Tensor) else x,
    "comb": _comb,
}


def _clamp(x: Any, lo: Any, hi: Any) -> Tensor:
    if isinstance(lo, Tensor) or isinstance(hi, Tensor):
        return _extreme(torch.minimum)(_extreme(torch.maximum)(x, lo), hi)
    return torch.clamp(torch.as_tensor(x), lo, hi)


def pointwise(fn: str, operands: list[Operand]) -> Value:
    """`fn` element by element, on the innermost frame of the operands."""
    frame = innermost(o.frame for o in operands if isinstance(o, Value))
    if fn in ("==", "!=", "where"):
        operands = [*(_number_or_text(o) for o in operands)]
        choices = operands[1:] if fn == "where" else operands
        if all(_is_text(o) for o in choices):
            return _on_texts(fn, operands, frame)
    if any(isinstance(o, str) for o in operands):
        raise RunError(f"`{fn}` can't mix text and numbers")
    data = [_broadcast(numeric(o), frame) if isinstance(o, Value) else o for o in operands]
    result = POINTWISE[fn](*data)
    result = torch.as_tensor(result)
    return Value(result.expand(frame.size) if frame and result.dim() == 0 else result, frame)


def _broadcast(value: Value, frame: Frame | None) -> Tensor:
    """A scalar stays one number, which torch broadcasts by itself; anything else goes down to the frame."""
    return value.tensor if value.frame is None else value.on(frame).tensor


def _number_or_text(operand: Operand) -> Operand:
    """A list that holds numbers is meant to be numbers, and then a null in it is refused."""
    if isinstance(operand, Value) and isinstance(operand.data, list) and any(map(is_number, operand.data)):
        return numeric(operand)
    return operand


def _is_text(operand: Operand) -> bool:
    return isinstance(operand, str) or (isinstance(operand, Value) and isinstance(operand.data, list))


def _on_texts(fn: str, operands: list[Operand], frame: Frame | None) -> Value:
    """Comparisons of texts, and choices between them."""
    size = frame.size if frame else 1
    if fn == "where":
        condition = operands[0]
        operands = [numeric(condition) if isinstance(condition, Value) else condition, *operands[1:]]
    columns = [_rows(o, frame) if isinstance(o, Value) else [o] * size for o in operands]
    if fn == "where":
        return Value([a if c else b for c, a, b in zip(*columns, strict=True)], frame)
    same = torch.tensor([(a == b) == (fn == "==") for a, b in zip(*columns, strict=True)], dtype=torch.bool)
    return Value(same if frame else same[0], frame)


def _rows(value: Value, frame: Frame | None) -> list[Any]:
    rows = value.on(frame).rows
    return rows if isinstance(rows, list) else [rows]


# ---------------------------------------------------------------- up the axes


def reduce(
    fn: str, x: Value, target: Frame | None, where: Value | None = None, q: float = 0.5, count: Tensor | None = None
) -> Value:
    """Pool `x` over everything under `target` (None: over all rows).

    where: [rows] bool, which elements take part. count: the denominator to use for a mean, instead of the number of
    elements here, when these are only a part of what is pooled.
    """
    data, index, dtype = selected(fn, x, target, where)
    result = _REDUCE[fn](data, index, target.size if target else 1, q, count).to(result_dtype(fn, dtype))
    return Value(result if target else result[0], target)


def selected(fn: str, x: Value, target: Frame | None, where: Value | None) -> tuple[Tensor, Tensor, torch.dtype]:
    """What a reduction pools: the elements, the row of `target` that each is under, and the dtype they had.

    The elements are float64, or int64 where the result is one of the integers or their sum.
    """
    frame = innermost([x.frame, where.frame if where else None])
    if frame is None:
        raise ReductionError(f"`{fn}` of a scalar pools nothing")
    if fn == "count":
        x = Value(torch.zeros(x.frame.size if x.frame else ()), x.frame)  # whatever it holds, it is counted
    x = numeric(x)
    dtype = x.tensor.dtype
    data, index = x.on(frame).tensor.to(torch.long if is_exact(fn, dtype) else torch.double), frame.path(target)
    if where is not None:
        kept = numeric(where).on(frame).tensor.bool()
        data, index = data[kept], index[kept]
    return data, index, dtype


def is_exact(fn: str, dtype: torch.dtype) -> bool:
    """Whether a reduction of elements of this dtype is one of them or their sum, as a whole number."""
    return fn in ("max", "min", "sum") and not dtype.is_floating_point


def result_dtype(fn: str, dtype: torch.dtype) -> torch.dtype:
    """What a reduction of elements of this dtype gives."""
    if fn == "count" or is_exact(fn, dtype):
        return torch.long
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def _sum(x: Tensor, index: Tensor, size: int, q: float, count: Tensor | None) -> Tensor:
    return x.sum()[None] if size == 1 else torch.zeros(size, dtype=x.dtype).index_add(0, index, x)


def _count(x: Tensor, index: Tensor, size: int, q: float, count: Tensor | None) -> Tensor:
    return torch.bincount(index, minlength=size).double()


def _mean(x: Tensor, index: Tensor, size: int, q: float, count: Tensor | None) -> Tensor:
    n = _count(x, index, size, q, None) if count is None else count.double().reshape(-1)
    return _sum(x, index, size, q, None) / n.clamp(min=1)


def _var(x: Tensor, index: Tensor, size: int, q: float, count: Tensor | None) -> Tensor:
    """Divided by n-1, from differences to each group's first element: exactly 0 if all are equal."""
    if not len(x):
        return torch.zeros(size, dtype=x.dtype)
    first = torch.full((size,), len(x)).scatter_reduce(0, index, torch.arange(len(x)), "amin")
    d = x - x.detach()[first.clamp(max=len(x) - 1)][index]
    d = d - _mean(d, index, size, q, None)[index]
    n = _count(x, index, size, q, None)
    return _sum(d * d, index, size, q, None) / (n - 1).clamp(min=1)


def _std(x: Tensor, index: Tensor, size: int, q: float, count: Tensor | None) -> Tensor:
    return deviation(_var(x, index, size, q, None))


def deviation(variance: Tensor) -> Tensor:
    none = variance == 0  # where the root has no gradient; a NaN stays one
    return torch.where(none, 0.0, torch.where(none, 1.0, variance).sqrt())


def _extremum(how: str, word: str) -> Callable[..., Tensor]:
    def apply(x: Tensor, index: Tensor, size: int, q: float, count: Tensor | None) -> Tensor:
        if bool((_count(x, index, size, q, None) == 0).any()):
            raise extreme_of_nothing(word)
        start = math.nan if x.is_floating_point() else 0  # torch gives what equals it a share of the gradient
        return x.new_full((size,), start).scatter_reduce(0, index, x, how, include_self=False)

    return apply


def extreme_of_nothing(word: str) -> ReductionError:
    return ReductionError(f"the {word} of nothing has no value: use `count` and `where` to leave such rows out")


def _quantile(x: Tensor, index: Tensor, size: int, q: float, count: Tensor | None) -> Tensor:
    if bool((_count(x, index, size, q, None) == 0).any()):
        raise ReductionError("a quantile of nothing has no value")
    if not 0 <= q <= 1:
        raise ReductionError(f"the fraction of a quantile is between 0 and 1, not {q:g}")
    groups = torch.split(x[torch.argsort(index, stable=True)], torch.bincount(index, minlength=size).tolist())
    return torch.stack([torch.quantile(group, q) for group in groups]) if size else x


_REDUCE: Mapping[str, Callable[..., Tensor]] = {
    "sum": _sum,
    "count": _count,
    "mean": _mean,
    "var": _var,
    "std": _std,
    "max": _extremum("amax", "largest"),
    "min": _extremum("amin", "smallest"),
    "quantile": _quantile,
}


def elements(x: Value, target: Frame | None, where: Value | None = None) -> Tensor:
    """How many elements a reduction to `target` pools: [target rows], or [1]."""
    frame = innermost([x.frame, where.frame if where else None])
    assert frame is not None
    index = frame.path(target)
    if where is not None:
        index = index[numeric(where).on(frame).tensor.bool()]
    return torch.bincount(index, minlength=target.size if target else 1)


def rank(x: Value, by: Frame | None) -> Value:
    """0 for the largest under each row of `by`, ties by row order."""
    assert x.frame is not None
    group = x.frame.path(by)
    order = torch.argsort(numeric(x).tensor.double(), descending=True, stable=True)
    order = order[torch.argsort(group[order], stable=True)]
    counts = torch.bincount(group, minlength=1)
    starts = torch.cumsum(counts, 0) - counts
    ranks = torch.empty(x.frame.size, dtype=torch.long)
    ranks[order] = torch.arange(x.frame.size) - starts[group[order]]
    return Value(ranks, x.frame)
