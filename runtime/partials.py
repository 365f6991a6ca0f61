"""Reductions to one number over rows that are dealt to several ranks: statistics of each rank, and what they make.

Every rank gives a few float64 numbers about its own rows, [k]; all of them, [ranks, k], make the result that
`algebra.reduce` gives for all rows together. A rank with no rows may not even know what dtype they have.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from .algebra import deviation, extreme_of_nothing, is_exact, result_dtype, selected
from .values import Value

_DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
)
_HIGH = 32  # bits; a whole number is two floats, each of which holds its part exactly


def partial(fn: str, x: Value, where: Value | None = None) -> Tensor:
    """The statistics of this rank's rows: float64 [k], k the same on every rank; differentiable.

    They are the number of the elements' dtype (-1 if there are no rows here), how many elements there are, and what
    `fn` needs of them.
    """
    data, _, dtype = selected(fn, x, None, where)
    rows = x.frame.size if x.frame else 1
    head = torch.tensor([_DTYPES.index(dtype) if rows else -1, len(data)], dtype=torch.float64)
    return torch.cat([head, _PARTIAL[fn](data)])


def combined(fn: str, stats: Tensor, dtype: torch.dtype, count: Tensor | None = None) -> Tensor:
    """What `algebra.reduce` gives for all rows, from the statistics of all ranks: a scalar.

    stats: float64 [ranks, k]. dtype: the elements' own, for when no rank has rows. count: the denominator to use for a
    mean. Its gradient goes to whatever rows of `stats` have one. Raises ReductionError.
    """
    dtypes = [_DTYPES[int(code)] for code in stats[:, 0].tolist() if code >= 0]
    for number, other in enumerate(dtypes):
        dtype = torch.promote_types(dtype, other) if number else other
    if fn in _OF_NUMBERS:
        result = _OF_NUMBERS[fn](stats, _whole(stats) if is_exact(fn, dtype) else _real(stats))
    elif fn == "mean":
        result = stats[:, 2].sum() / (elements(stats) if count is None else count.double()).clamp(min=1)
    else:
        result = _OF_STATISTICS[fn](stats)
    return result.to(result_dtype(fn, dtype)).reshape(())


def elements(stats: Tensor) -> Tensor:
    """How many elements all ranks pool."""
    return stats[:, 1].detach().sum()


# ---------------------------------------------------------------- of one rank


def _number(x: Tensor) -> Tensor:
    """[2]: a float and nothing, or the high and the low bits of an integer."""
    if x.is_floating_point():
        return torch.stack([x, torch.zeros_like(x)])
    return torch.stack([x >> _HIGH, x & ((1 << _HIGH) - 1)]).double()


def _spread(x: Tensor) -> Tensor:
    """[3]: the first element, the mean of the differences to it, and the sum of squares around that mean."""
    if not len(x):
        return torch.zeros(3, dtype=torch.float64)
    first = x[0].detach()
    mean = (x - first).mean()
    return torch.stack([first, mean, (x - first - mean).square().sum()])


def _extreme(best: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        """[3]: the extreme, and how many elements share it, which share its gradient (1 if there is none)."""
        if not len(x):
            return torch.zeros(3, dtype=torch.float64)
        found = best(x)
        ties = (x == found).sum().clamp(min=1) if x.requires_grad else torch.tensor(1)  # a NaN equals nothing
        return torch.cat([_number(found), ties.double()[None]])

    return apply


_PARTIAL: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: _number(x.sum()),
    "count": lambda x: torch.zeros(0, dtype=torch.float64),
    "mean": lambda x: x.sum()[None],
    "var": _spread,
    "std": _spread,
    "max": _extreme(torch.amax),
    "min": _extreme(torch.amin),
}

# ---------------------------------------------------------------- of all ranks


def _whole(stats: Tensor) -> Tensor:
    """int64 [ranks]: the integers that `_number` took apart."""
    return (stats[:, 2].long() << _HIGH) + stats[:, 3].long()


def _real(stats: Tensor) -> Tensor:
    """[ranks]: the ranks' numbers as floats, those of ranks that have integers too."""
    is_whole = torch.tensor([code >= 0 and not _DTYPES[int(code)].is_floating_point for code in stats[:, 0].tolist()])
    return torch.where(is_whole, stats[:, 2] * 2.0**_HIGH + stats[:, 3], stats[:, 2])


def _extremum(best: Callable[[Tensor], Tensor], word: str) -> Callable[[Tensor, Tensor], Tensor]:
    def apply(stats: Tensor, numbers: Tensor) -> Tensor:
        if not bool(elements(stats)):
            raise extreme_of_nothing(word)
        # As often as it is there: torch gives each of equal elements its share of the gradient.
        return best(numbers.repeat_interleave(stats[:, 4].long()))

    return apply


def _var(stats: Tensor) -> Tensor:
    """Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances" (1979).

    Means are differences to one element, so that of elements that are all equal nothing remains but exact zeros.
    """
    n, first, mean, squares = stats[:, 1:].unbind(1)
    if not bool(n.any()):
        return torch.zeros((), dtype=stats.dtype)
    mean = first - first[n > 0][0] + mean
    whole = (n * mean).sum() / n.sum()
    return (squares + n * (mean - whole).square()).sum() / (n.sum() - 1).clamp(min=1)


_OF_NUMBERS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda stats, numbers: numbers.sum(),
    "max": _extremum(torch.amax, "largest"),
    "min": _extremum(torch.amin, "smallest"),
}
_OF_STATISTICS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "count": lambda stats: elements(stats),
    "var": _var,
    "std": lambda stats: deviation(_var(stats)),
}
