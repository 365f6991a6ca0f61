"""Reductions over rows that lie on several ranks are the reductions of all rows, gradients included."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shardflow.runtime import algebra
from shardflow.runtime.algebra import ReductionError
from shardflow.runtime.partials import combined, elements, partial
from shardflow.runtime.values import Value, root

FUNCTIONS = ("sum", "count", "mean", "var", "std", "max", "min")
FLOATS = st.floats(-1e3, 1e3, allow_nan=False) | st.integers(-2, 2).map(float)  # with ties
DOUBLE = torch.float64


@st.composite
def parts(draw: st.DrawFn) -> tuple[list[list[float]], list[list[bool]]]:
    """What each of one to four ranks holds, some nothing, and which elements take part."""
    x = draw(st.lists(st.lists(FLOATS, max_size=4), min_size=1, max_size=4))
    return x, [draw(st.lists(st.booleans(), min_size=len(p), max_size=len(p))) for p in x]


def of(data: Tensor) -> Value:
    return Value(data, root("batch.prompt", len(data)))


def operands(data: Tensor, where: Tensor | None) -> tuple[Value, Value | None]:
    x = of(data)
    return x, Value(where, x.frame) if where is not None else None


def on_ranks(fn: str, data: Sequence[Tensor], where: Sequence[Tensor] | None = None) -> Tensor:
    masks = where if where is not None else [None] * len(data)
    stats = [partial(fn, *operands(x, mask)) for x, mask in zip(data, masks, strict=True)]
    return combined(fn, torch.stack(stats), data[0].dtype)


def whole(fn: str, data: Sequence[Tensor], where: Sequence[Tensor] | None = None) -> Tensor:
    x, mask = operands(torch.cat([*data]), torch.cat([*where]) if where is not None else None)
    return algebra.reduce(fn, x, None, mask).tensor


@pytest.mark.parametrize("fn", FUNCTIONS)
@given(parts(), st.booleans(), st.sampled_from((torch.float32, DOUBLE)))
@settings(deadline=None, max_examples=80)
def test_of_ranks_is_of_the_whole(
    fn: str, given_parts: tuple[list[list[float]], list[list[bool]]], conditional: bool, dtype: torch.dtype
) -> None:
    data = [torch.tensor(x, dtype=dtype) for x in given_parts[0]]
    where = [torch.tensor(m, dtype=torch.bool) for m in given_parts[1]] if conditional else None
    pooled = sum(int(m.sum()) for m in where) if where is not None else sum(map(len, data))
    if fn in ("max", "min") and not pooled:
        for reduction in (on_ranks, whole):
            with pytest.raises(ReductionError, match="of nothing"):
                reduction(fn, data, where)
        return
    tolerance = 1e-12 if dtype == DOUBLE else 1e-6
    torch.testing.assert_close(on_ranks(fn, data, where), whole(fn, data, where), rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize("fn", [f for f in FUNCTIONS if f != "count"])
@given(parts())
@settings(deadline=None, max_examples=80)
def test_gradients_are_those_of_the_whole(fn: str, given_parts: tuple[list[list[float]], list[list[bool]]]) -> None:
    data = [torch.tensor(x, dtype=DOUBLE).requires_grad_() for x in given_parts[0]]
    if not sum(map(len, data)):
        return
    expected = torch.autograd.grad(whole(fn, data), data)
    for rank, x in enumerate(data):
        # A rank's gradient goes to its own rows: to it the others' statistics are given.
        stats = [partial(fn, of(y)) if n == rank else partial(fn, of(y)).detach() for n, y in enumerate(data)]
        result = combined(fn, torch.stack(stats), DOUBLE)
        ours = torch.autograd.grad(result, x)[0] if len(x) else x
        torch.testing.assert_close(ours, expected[rank], rtol=1e-9, atol=1e-9)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), FLOATS, st.sampled_from((torch.float32, DOUBLE)))
def test_equal_elements_on_several_ranks_have_no_deviation_at_all(
    sizes: list[int], x: float, dtype: torch.dtype
) -> None:
    data = [torch.full((n,), x / 3, dtype=dtype) for n in sizes]
    assert on_ranks("std", data) == 0 and on_ranks("var", data) == 0


def test_integers_are_exact() -> None:
    large = [torch.tensor([2**60, 1]), torch.tensor([-5], dtype=torch.long), torch.zeros(0, dtype=torch.long)]
    for fn, expected in (("sum", 2**60 - 4), ("max", 2**60), ("min", -5)):
        assert on_ranks(fn, large).item() == whole(fn, large).item() == expected
    flags = [torch.tensor([True, True]), torch.tensor([False])]
    assert on_ranks("sum", flags).item() == 2 and on_ranks("max", flags).dtype == torch.long
    assert on_ranks("mean", flags).dtype == torch.get_default_dtype()


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_a_rank_without_rows_has_no_say_in_the_dtype(fn: str) -> None:
    """A column with no rows says nothing about what it holds."""
    data = [torch.zeros(0, dtype=torch.bool), torch.tensor([1.5, 2.0], dtype=DOUBLE), torch.tensor([3.0], dtype=DOUBLE)]
    result = on_ranks(fn, data)
    assert result.dtype == (torch.long if fn == "count" else DOUBLE)
    assert result.item() == pytest.approx(whole(fn, data[1:]).item())


def test_columns_of_numbers_may_be_lists() -> None:
    frame = root("batch.prompt", 2)
    stats = [partial("sum", Value([1, 2], frame)), partial("sum", Value([0.5, 1.0], frame))]
    assert combined("sum", torch.stack(stats), torch.long).item() == 4.5


def test_a_mean_may_have_a_denominator_of_its_own() -> None:
    stats = torch.stack([partial("mean", of(torch.tensor([1.0, 2.0]))), partial("mean", of(torch.zeros(0)))])
    assert combined("mean", stats, torch.float32, torch.tensor([6])).item() == 0.5
    assert elements(stats) == 2


@pytest.mark.parametrize("fn", ("sum", "mean", "var", "std", "max", "min"))
def test_nan_is_not_hidden(fn: str) -> None:
    data = [torch.tensor([1.0, 2.0]), torch.tensor([float("nan")]), torch.zeros(0)]
    assert on_ranks(fn, data).isnan()
    assert on_ranks(fn, [x.clone().requires_grad_() for x in data]).isnan()


def test_a_scalar_is_no_row() -> None:
    with pytest.raises(ReductionError, match="pools nothing"):
        partial("sum", Value(torch.tensor(1.0)))
