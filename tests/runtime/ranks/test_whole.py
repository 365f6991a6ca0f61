"""What must see all rows sees them, and gradients are those of one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shardflow.runtime import algebra
from shardflow.runtime.deals import Deal
from shardflow.runtime.errors import RunError
from shardflow.runtime.partials import combined, partial
from shardflow.runtime.ranks.whole import gather, gather_numbers, own, spread
from shardflow.runtime.values import Any_, AxisError, Frame, Record, Selection, Value, dealt, root

from .batches import AXIS, assert_same, batch_of, batches, deal_of, owners, part_of, root_frame
from .threads import ThreadChannel, on_ranks

Open = Callable[..., ThreadChannel | None]


@st.composite
def dealt_batches(draw: st.DrawFn) -> tuple[dict[str, Any_], Tensor, int]:
    batch, size = draw(batches()), draw(st.integers(1, 3))
    return batch, draw(owners(root_frame(batch).size, size)), size


def all_ranks(size: int, channel: Open) -> ThreadChannel:
    found = channel(*range(size))
    assert found is not None
    return found


# ---------------------------------------------------------------- values


@given(dealt_batches())
@settings(deadline=None, max_examples=40)
def test_every_rank_sees_all_rows_and_has_its_own_again(case: tuple[dict[str, Any_], Tensor, int]) -> None:
    batch, owner, size = case

    def work(rank: int, channel: Open) -> None:
        deal, everyone = deal_of(batch, owner, rank), all_ranks(size, channel)
        part = part_of(batch, deal)
        whole = gather(part, everyone, "gather")
        for name, value in whole.items():
            assert_same(value, batch[name])
            assert value.frame is not None and value.frame.chain()[-1].deal is None
        assert whole["vector"].frame is root_frame(whole)
        for name, value in whole.items():
            frame = root_frame(part)
            again = own(value, frame, everyone, "own")
            assert_same(again, part[name])
            assert again.frame is not None and again.frame.chain()[-1] is frame

    on_ranks(size, work)


def test_a_value_lands_on_the_frame_it_is_asked_for() -> None:
    batch, owner = batch_of([2, 1], [1, 2, 1]), torch.tensor([1, 0])

    def work(rank: int, channel: Open) -> None:
        everyone = all_ranks(2, channel)
        part = part_of(batch, deal_of(batch, owner, rank))
        whole, tokens = gather(part, everyone, "gather"), part["tokens"].frame
        assert tokens is not None
        again = own(whole["rollout"], tokens, everyone, "own")
        assert isinstance(again, Record)
        assert again.fields["tokens"].frame is tokens and again.frame is tokens.parent
        assert own(whole["vector"], tokens, everyone, "own").frame is tokens.chain()[-1]
        other = dealt(AXIS, Deal(torch.tensor([1, 2]), owner, rank))
        with pytest.raises(AxisError, match="other rows"):
            own(whole["vector"], other, everyone, "own")

    on_ranks(2, work)


def test_values_gathered_later_join_the_frames_that_are_known() -> None:
    batch, owner = batch_of([1, 2], [1, 2, 1]), torch.tensor([1, 0])

    def work(rank: int, channel: Open) -> None:
        everyone = all_ranks(2, channel)
        part = part_of(batch, deal_of(batch, owner, rank))
        first = gather(part, everyone, "gather")["tokens"].frame
        assert first is not None

        def known(frame: Frame) -> Frame:
            return next((f for f in first.chain() if f.is_like(frame)), frame)

        assert gather({"tokens": part["tokens"]}, everyone, "gather", known)["tokens"].frame is first

    on_ranks(2, work)


def test_what_all_ranks_have_stays() -> None:
    batch = batch_of([1], [1])

    def work(rank: int, channel: Open) -> None:
        assert gather(batch, all_ranks(2, channel), "gather") == batch
        assert own(batch["tokens"], root_frame(batch), all_ranks(2, channel), "own") is batch["tokens"]

    on_ranks(2, work)


def test_what_cannot_travel_is_refused_everywhere() -> None:
    def work(rank: int, channel: Open) -> None:
        frame = dealt(AXIS, Deal(torch.arange(2), torch.tensor([0, 1]), rank))
        with pytest.raises(RunError, match="`x` holds a `set`"):
            gather({"x": Value([{1}] if rank else ["a"], frame)}, all_ranks(2, channel), "gather")

    on_ranks(2, work)


# ---------------------------------------------------------------- gradients


def whitened(x: Value) -> Value:
    """Needs all rows: a difference to the median, by the largest."""
    middle = algebra.reduce("quantile", x, None, q=0.5)
    return algebra.pointwise("/", [algebra.pointwise("-", [x, middle]), algebra.reduce("max", x, None)])


def loss_of(x: Value, weight: Value, scale: Value) -> Value:
    return algebra.pointwise("*", [algebra.pointwise("*", [x, x]), algebra.pointwise("*", [weight, scale])])


@given(dealt_batches(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_gradients_are_those_of_one_process(case: tuple[dict[str, Any_], Tensor, int], random: Any) -> None:
    """loss = sum(w·y²)·mean(x²) with y from all rows: gathered, owned, and with a scalar that all rows read."""
    batch, owner, size = case
    frame = batch["tokens"].frame
    assert frame is not None
    if not frame.size:
        return
    data = torch.tensor([1 + random.random() for _ in range(frame.size)], dtype=torch.float64)
    weights = Value(torch.tensor([random.random() for _ in range(frame.size)], dtype=torch.float64), frame)

    def one_process() -> tuple[Tensor, Tensor]:
        x = Value(data.clone().requires_grad_(), frame)
        scale = algebra.reduce("mean", algebra.pointwise("*", [x, x]), None)
        loss = algebra.reduce("sum", loss_of(whitened(x), weights, scale), None).tensor
        return loss.detach(), torch.autograd.grad(loss, x.tensor)[0]

    def work(rank: int, channel: Open) -> tuple[Tensor, Tensor, Tensor]:
        everyone, deal = all_ranks(size, channel), deal_of(batch, owner, rank)
        selection = Selection(root_frame(batch), deal.mine(), deal=deal)
        local, rows = selection.of(frame)
        # A model that is given no rows makes a result without a gradient.
        x = Value(data[rows].requires_grad_(len(rows) > 0), local)
        squares = partial("mean", algebra.pointwise("*", [x, x]))
        mean = Value(combined("mean", gather_numbers(squares, everyone, "mean"), torch.float64))
        whole = gather({"x": x}, everyone, "gather")["x"]
        assert isinstance(whole, Value)
        y = own(whitened(whole), local, everyone, "own")
        terms = loss_of(y, Value(weights.tensor[rows], local), spread(mean, everyone, "spread"))
        loss = combined("sum", gather_numbers(partial("sum", terms), everyone, "loss"), torch.float64)
        assert loss.requires_grad  # everywhere, since all must go backward together
        torch.autograd.backward(loss)
        return loss.detach(), rows, x.tensor.grad if x.tensor.grad is not None else torch.zeros(0)

    loss, gradient = one_process()
    for ours, rows, grad in on_ranks(size, work):
        torch.testing.assert_close(ours, loss, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(grad.double(), gradient[rows], rtol=1e-9, atol=1e-12)


def test_nothing_is_sent_back_where_nothing_has_a_gradient() -> None:
    batch, owner = batch_of([1, 1], [1, 1]), torch.tensor([1, 0])

    def work(rank: int, channel: Open) -> None:
        everyone = all_ranks(2, channel)
        whole = gather(part_of(batch, deal_of(batch, owner, rank)), everyone, "gather")
        rollout, scalar = whole["rollout"], Value(torch.tensor(1.0))
        assert isinstance(rollout, Record)
        assert not any(isinstance(v.data, Tensor) and v.data.requires_grad for v in rollout.fields.values())
        assert spread(scalar, everyone, "spread") is scalar
        assert not gather_numbers(torch.ones(2), everyone, "numbers").requires_grad

    on_ranks(2, work)


def test_a_field_of_a_record_has_its_gradient() -> None:
    owner = torch.tensor([0, 1, 0])

    def work(rank: int, channel: Open) -> None:
        frame = dealt(AXIS, Deal(torch.arange(3), owner, rank))
        x = torch.ones(frame.size, dtype=torch.float64, requires_grad=True)
        record = Record("result", frame, {"x": Value(x, frame), "name": Value(["a"] * frame.size, frame)})
        whole = gather({"r": record}, all_ranks(2, channel), "gather")["r"]
        assert isinstance(whole, Record)
        factors = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        torch.autograd.backward((whole.fields["x"].tensor * factors).sum())
        assert x.grad is not None and x.grad.tolist() == factors[owner == rank].tolist()

    on_ranks(2, work)


def test_an_empty_batch_is_whole() -> None:
    def work(rank: int, channel: Open) -> None:
        frame = dealt(AXIS, Deal(torch.arange(0), torch.arange(0), rank))
        whole = gather({"x": Value(torch.zeros(0), frame)}, all_ranks(2, channel), "gather")["x"]
        assert whole.rows == [] and whole.frame is not None and whole.frame.is_like(root(AXIS, 0))  # type: ignore[union-attr]

    on_ranks(2, work)
