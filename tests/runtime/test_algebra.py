"""Reductions, ranks and broadcasting against plain Python, for any ragged hierarchy."""

import math
import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardflow.runtime import Axes, algebra, load
from shardflow.runtime.algebra import ReductionError
from shardflow.runtime.values import AxisError, Frame, Selection, Value

FINITE = st.floats(-1e3, 1e3, allow_nan=False).map(lambda x: round(x, 6))
FEW = st.integers(0, 3)


@dataclass(frozen=True)
class Batch:
    """A ragged hierarchy with a value and a condition per token."""

    axes: Axes
    x: Value
    where: Value

    def frames(self) -> list[Frame | None]:
        return [None, self.axes.prompts, self.axes.samples, self.axes.tokens]


@st.composite
def batches(draw: st.DrawFn, least: int = 0) -> Batch:
    """Prompts with 0 to 3 samples of 0 to 3 tokens (or from `least` on)."""
    samples = draw(st.lists(st.integers(least, 3), min_size=least, max_size=4))
    tokens = draw(st.lists(st.integers(least, 3), min_size=sum(samples), max_size=sum(samples)))
    axes, count = Axes(samples, tokens), sum(tokens)
    x = draw(st.lists(FINITE, min_size=count, max_size=count))
    where = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    data = torch.tensor(x, dtype=torch.float64), torch.tensor(where, dtype=torch.bool)
    return Batch(axes, axes.token(data[0]), axes.token(data[1]))


def groups(value: Value, to: Frame | None, where: Value | None = None) -> list[list[float]]:
    """The elements under each row, one list per row, by walking up parent by parent."""
    out: list[list[float]] = [[] for _ in range(to.size if to else 1)]
    for row, element in enumerate(value.rows):
        if where is None or where.rows[row]:
            out[ancestor(value.frame, row, to)].append(element)
    return out


def ancestor(frame: Frame | None, row: int, to: Frame | None) -> int:
    if to is None:
        return 0
    while frame is not to:
        assert frame is not None and frame.index is not None
        row, frame = int(frame.index[row]), frame.parent
    return row


def spread(x: Sequence[float]) -> float:
    return statistics.variance(x) if len(x) > 1 else 0.0


PLAIN: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": math.fsum,
    "count": len,
    "mean": lambda x: math.fsum(x) / len(x) if x else 0.0,
    "var": spread,
    "std": lambda x: math.sqrt(spread(x)),
    "max": max,
    "min": min,
    "quantile": lambda x: quantile(x, 0.3),
}


def quantile(x: Sequence[float], q: float) -> float:
    """With linear interpolation between the two nearest ranks."""
    ordered = sorted(x)
    at = q * (len(x) - 1)
    low = math.floor(at)
    high = min(low + 1, len(x) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


# ---------------------------------------------------------------- reductions


@pytest.mark.parametrize("fn", PLAIN)
@given(batches(), st.booleans(), st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_a_reduction_is_a_loop_over_groups(fn: str, batch: Batch, conditional: bool, level: int) -> None:
    to, where = batch.frames()[level], batch.where if conditional else None
    elements = groups(batch.x, to, where)
    if fn in ("max", "min", "quantile") and not all(elements):
        with pytest.raises(ReductionError, match="nothing"):
            algebra.reduce(fn, batch.x, to, where, 0.3)
        return
    result = algebra.reduce(fn, batch.x, to, where, 0.3)
    assert result.frame is to
    ours = result.tensor.reshape(-1).tolist()
    assert ours == pytest.approx([PLAIN[fn](g) for g in elements], rel=1e-9, abs=1e-6 if fn in ("var", "std") else 1e-9)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), FINITE, st.sampled_from((torch.float32, torch.float64)))
def test_equal_elements_have_no_deviation_at_all(sizes: list[int], x: float, dtype: torch.dtype) -> None:
    axes = Axes(sizes)
    value = axes.sample(torch.full((sum(sizes),), x / 3, dtype=dtype))
    for fn in ("std", "var"):
        assert algebra.reduce(fn, value, axes.prompts).tensor.eq(0).all()
    assert load("std.advantages").z(value).tensor.abs().max() < 1e-3  # the mean may round, the deviation may not


def test_the_deviation_of_equal_elements_has_a_gradient() -> None:
    axes = Axes([3, 2, 1])
    x = torch.tensor([1.0, 1, 1, 2, 3, 5], dtype=torch.float64, requires_grad=True)
    torch.autograd.backward(algebra.reduce("std", axes.sample(x), axes.prompts).tensor.sum())
    assert x.grad is not None and x.grad.isfinite().all()
    assert x.grad[:3].eq(0).all() and x.grad[5] == 0
    assert x.grad[3:5].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])


@pytest.mark.parametrize("fn", ("mean", "std", "var", "sum"))
def test_nan_is_not_hidden(fn: str) -> None:
    axes = Axes([2, 2])
    x = axes.sample(torch.tensor([1.0, float("nan"), 1.0, 2.0]))
    assert algebra.reduce(fn, x, axes.prompts).tensor.isnan().tolist() == [True, False]


@pytest.mark.parametrize("fn", ("sum", "mean", "std", "var", "max", "min", "quantile"))
@given(batches(least=1))
@settings(deadline=None, max_examples=15)
def test_gradients_are_right(fn: str, batch: Batch) -> None:
    x = batch.x.tensor + torch.arange(len(batch.x.tensor)) * 10_000.0  # apart, so that nothing has a kink
    x = (x / 1e4).requires_grad_()

    def total(data: torch.Tensor) -> torch.Tensor:
        reduced = algebra.reduce(fn, batch.axes.token(data), batch.axes.samples, None, 0.3)
        return algebra.reduce("sum", algebra.pointwise("*", [reduced, reduced]), None).tensor

    assert torch.autograd.gradcheck(total, (x,), atol=1e-5)


@pytest.mark.parametrize("fn", ("max", "min"))
def test_an_extreme_of_zero_has_the_whole_gradient(fn: str) -> None:
    x = torch.tensor([0.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    torch.autograd.backward(algebra.reduce(fn, Axes([1, 2]).sample(x), None).tensor)
    assert x.grad is not None and x.grad.sum().item() == pytest.approx(1)


def test_sums_do_not_depend_on_the_dtypes_precision() -> None:
    axes = Axes([3])
    x = axes.sample(torch.tensor([1e8, 1.0, -1e8], dtype=torch.float32))
    result = algebra.reduce("sum", x, axes.prompts)
    assert result.tensor.tolist() == [1.0] and result.tensor.dtype == torch.float32


def test_integers_stay_exact() -> None:
    axes = Axes([2, 0])
    numbers, flags = axes.sample(torch.tensor([3, 4])), axes.sample(torch.tensor([True, True]))
    assert algebra.reduce("sum", numbers, axes.prompts).rows == [7, 0]
    assert algebra.reduce("sum", flags, None).tensor.item() == 2
    assert algebra.reduce("max", flags, None).tensor.dtype == torch.long
    assert algebra.reduce("mean", numbers, None).tensor.dtype == torch.get_default_dtype()
    large = axes.sample(torch.tensor([2**60, 1]))
    assert algebra.reduce("sum", large, axes.prompts).rows == [2**60 + 1, 0]


# ---------------------------------------------------------------- ranks


@given(batches(), st.integers(0, 2))
@settings(deadline=None)
def test_ranks_count_from_the_largest(batch: Batch, level: int) -> None:
    x = algebra.pointwise("//", [batch.x, 400.0])  # with ties
    by = batch.frames()[level]
    ranks = algebra.rank(x, by)
    assert ranks.frame is x.frame
    rows = [[] for _ in range(by.size if by else 1)]  # type: list[list[int]]
    for row in range(len(x.rows)):
        rows[ancestor(x.frame, row, by)].append(row)
    expected = [0] * len(x.rows)
    for members in rows:
        for place, row in enumerate(sorted(members, key=lambda r: (-x.rows[r], r))):
            expected[row] = place
    assert ranks.rows == expected


# ---------------------------------------------------------------- element by element


@given(batches(), st.integers(0, 2), st.sampled_from(["+", "-", "*", "<", ">=", "maximum"]))
@settings(deadline=None)
def test_down_is_free(batch: Batch, level: int, fn: str) -> None:
    to = batch.frames()[level]
    outer = algebra.reduce("sum", batch.x, to)
    result = algebra.pointwise(fn, [outer, batch.x])
    assert result.frame is batch.x.frame
    plain: Any = {"+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt, ">=": operator.ge}
    above = [outer.tensor.reshape(-1).tolist()[ancestor(batch.x.frame, row, to)] for row in range(len(batch.x.rows))]
    assert result.rows == [plain.get(fn, max)(a, b) for a, b in zip(above, batch.x.rows, strict=True)]


@pytest.mark.parametrize("fn", ["+", "-", "*", "/", "//", "%", "**", "clamp", "abs", "neg"])
def test_booleans_are_numbers(fn: str) -> None:
    axes = Axes([3])
    yes, both = axes.sample(torch.tensor([True] * 3)), axes.sample(torch.tensor([True, True, True]))
    plain: dict[str, tuple[list[Any], float]] = {
        "+": ([yes, both], 2), "-": ([yes, both], 0), "*": ([yes, both], 1), "/": ([yes, 2], 0.5), "//": ([yes, 2], 0),
        "%": ([yes, 2], 1), "**": ([yes, 2], 1), "clamp": ([yes, 0, 2], 1), "abs": ([yes], 1), "neg": ([yes], -1),
    }  # fmt: skip
    operands, expected = plain[fn]
    assert algebra.pointwise(fn, operands).rows == [expected] * 3


def test_constants_take_the_dtype_beside_them() -> None:
    x = Axes([2]).sample(torch.tensor([1.0, -1.0], dtype=torch.float32))
    cases: dict[str, list[Any]] = {
        "maximum": [x, 0.5],
        "where": [algebra.pointwise(">", [x, 0]), x, 0.1],
        "clamp": [x, -0.1, 0.1],
    }
    for fn, operands in cases.items():
        assert algebra.pointwise(fn, operands).tensor.dtype == torch.float32
    flags = algebra.pointwise(">", [x, 0])
    assert algebra.pointwise("where", [flags, 0.5, 0]).tensor.dtype == torch.get_default_dtype()
    assert algebra.pointwise("where", [flags, 1, -1]).rows == [1, -1]


def test_a_condition_may_be_a_number() -> None:
    x = Axes([2]).sample(torch.tensor([1.0, 2.0]))
    state = Value(torch.tensor(1.0, dtype=torch.float64))
    assert algebra.pointwise("where", [state, x, 0]).rows == [1.0, 2.0]


def test_binomials() -> None:
    assert algebra.pointwise("comb", [Axes([3]).sample(torch.tensor([5, 16, 2])), 3]).rows == [10, 560, 0]


def test_texts_compare() -> None:
    frame = Axes([2]).samples
    a, b = Value(["x", "y"], frame), Value(["x", "z"], frame)
    assert algebra.pointwise("==", [a, b]).rows == [True, False]
    assert algebra.pointwise("!=", [a, "x"]).rows == [False, True]


def test_strangers_do_not_mix() -> None:
    a, b = (Axes([2]).sample(torch.ones(2)) for _ in range(2))
    with pytest.raises(AxisError, match="strangers"):
        algebra.pointwise("+", [a, b])


# ---------------------------------------------------------------- permutations


@given(batches(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_permuting_samples_permutes_results(batch: Batch, random: Any) -> None:
    """In any order of the samples (within their prompts) every statistic is the same, row by row."""
    order = [r for rows in samples_of(batch.axes) for r in random.sample(rows, len(rows))]
    turned = Selection(batch.axes.samples, torch.tensor(order, dtype=torch.long))
    x = turned(batch.x)
    assert isinstance(x, Value) and x.frame is not None and x.frame.parent is not None
    for fn in ("sum", "mean", "std", "count"):
        for to, moved in ((batch.axes.samples, x.frame.parent), (batch.axes.prompts, x.frame.parent.parent)):
            before, after = algebra.reduce(fn, batch.x, to), algebra.reduce(fn, x, moved)
            expected = turned(before)
            assert isinstance(expected, Value)
            torch.testing.assert_close(after.tensor, expected.tensor, rtol=1e-9, atol=1e-9)


def samples_of(axes: Axes) -> list[list[int]]:
    assert axes.samples.index is not None
    return [[r for r in range(axes.samples.size) if axes.samples.index[r] == p] for p in range(axes.prompts.size)]


# ---------------------------------------------------------------- eager is executed

DEFINITIONS = """
def everything(x, reward, lo=-0.5):
    a = where(x > 0 and not (x > 2), exp(-x), log_sigmoid(x) ** 2) + clamp(x, lo, 0.5) % 0.3
    b = mean(a, over=token) - 0.5 * std(reward, by=prompt) + quantile(x, q=0.25) * count(x)
    c = expand(b, to=reward.sample) / (1 + abs(max(x)) + sum(a, where=x > 0))
    return maximum(c, minimum(reward, rank(reward, by=prompt))) - var(x, by=prompt) + stop_gradient(sqrt(abs(x)))
"""

POSITIONS = """
def high(x) = quantile(x, 0.9)
def high_named(x) = quantile(q=0.9, x=x)
def ranked(x) = rank(x, prompt)
def ranked_named(x) = rank(x, by=prompt)
def spread(x) = expand(mean(x), x.sample)
def clipped(x) = clamp(x, hi=2, lo=1)
def pooled(x) = mean(x, prompt)
def twice(x) = rank(x, prompt, by=prompt)
"""


def test_eager_calls_bind_arguments_as_the_compiler_does(tmp_path: Path) -> None:
    (tmp_path / "positions.flow").write_text(POSITIONS)
    module, x = load("positions", tmp_path), Axes(samples=[2, 2]).sample([0.0, 1.0, 2.0, 3.0])
    assert module.high(x).tensor.item() == module.high_named(x).tensor.item() == pytest.approx(2.7)
    assert module.ranked(x).rows == module.ranked_named(x).rows == [1, 0, 1, 0]
    assert module.spread(x).rows == [1.5] * 4 and module.clipped(x).rows == [1, 1, 2, 2]
    for wrong in (module.pooled, module.twice):
        with pytest.raises(TypeError, match="it is"):
            wrong(x)


FLOW = """
from formulas import everything
import rewards
flow check():
    model policy = causal_lm("p")
    prompts = read("d.jsonl", batch=5 prompts)
    rollout = policy.generate(prompts, n=3, max_new_tokens=5)
    reward = rewards.share(rollout.text)
    result = everything(rollout.logprobs + 4, reward)
    update policy(adamw(lr=1e-3)):
        minimize mean(policy.logprobs(rollout) * result)
"""


def test_eager_is_executed(workshop: Any) -> None:
    """A definition called by hand gives what the compiled flow gives, on the same numbers."""
    folder: Path = workshop.folder
    (folder / "formulas.flow").write_text(DEFINITIONS)
    values = workshop.run(FLOW, 1).values[0]
    rollout = values["rollout"]
    samples, tokens = rollout.frame, rollout.fields["logprobs"].frame
    axes = Axes(samples.lengths.tolist(), tokens.lengths.tolist())
    x, reward = axes.token(rollout.fields["logprobs"].tensor + 4), axes.sample(values["reward"].tensor)
    ours = load("formulas", folder).everything(x, reward)
    torch.testing.assert_close(ours.tensor, values["result"].tensor, rtol=1e-12, atol=1e-12)
