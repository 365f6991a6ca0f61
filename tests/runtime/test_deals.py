"""Which rank holds which rows, and frames of dealt rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shardflow.runtime.deals import Deal, by_length, even
from shardflow.runtime.values import Concatenation, Frame, Selection, Value, cut, dealt, root

LENGTHS = st.lists(st.integers(0, 50), max_size=30).map(torch.tensor).map(Tensor.long)
SIZES = st.integers(1, 5)


def loads(lengths: Tensor, owner: Tensor, size: int) -> Tensor:
    """[size]: the tokens of each rank."""
    return torch.zeros(size, dtype=torch.long).index_add(0, owner, lengths)


# ---------------------------------------------------------------- ways to deal


@given(st.integers(0, 40), SIZES)
def test_even_blocks_are_contiguous_and_equal_but_for_one(rows: int, size: int) -> None:
    owner = even(rows, size)
    counts = torch.bincount(owner, minlength=size)
    assert owner.tolist() == sorted(owner.tolist()) and len(counts) == size
    assert counts.max() - counts.min() <= 1


@given(LENGTHS, SIZES)
@settings(deadline=None)
def test_no_rank_has_a_row_more_than_the_mean(lengths: Tensor, size: int) -> None:
    owner = by_length(lengths, [], size)
    assert owner.shape == lengths.shape and bool(((owner >= 0) & (owner < size)).all())
    if len(lengths):
        assert loads(lengths, owner, size).max() <= lengths.sum() / size + lengths.max()


@given(LENGTHS, SIZES, st.data())
@settings(deadline=None)
def test_a_deal_depends_on_nothing_but_lengths_and_cells(lengths: Tensor, size: int, data: st.DataObject) -> None:
    order = torch.tensor(data.draw(st.permutations(range(len(lengths)))), dtype=torch.long)
    cells = list(torch.tensor_split(order, data.draw(st.integers(1, 4))))
    owner = by_length(lengths, cells, size)
    assert torch.equal(owner, by_length(lengths.clone(), [c.flip(0) for c in cells], size))
    assert torch.equal(by_length(lengths, [], size), by_length(lengths, [order], size))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30, unique=True), SIZES, st.data())
@settings(deadline=None)
def test_rows_of_different_lengths_are_dealt_alike_in_any_order(
    lengths: list[int], size: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(lengths))))
    given_order = by_length(torch.tensor(lengths), [], size).tolist()
    turned = by_length(torch.tensor([lengths[i] for i in order]), [], size).tolist()
    assert turned == [given_order[i] for i in order]


@pytest.mark.parametrize("epochs", [1, 2])
def test_long_rows_are_shared_out_in_every_minibatch(epochs: int) -> None:
    torch.manual_seed(0)
    rows, size = 512, 8
    lengths = (torch.randn(rows) * 0.8 + 6).exp().long().clamp(max=1500)
    cells = [c for _ in range(epochs) for c in torch.split(torch.randperm(rows), rows // 8)]
    dealt_rows, blocks = by_length(lengths, cells, size), even(rows, size)

    def worst(owner: Tensor) -> float:
        """The most loaded rank against the mean, in the worst minibatch."""
        found = [loads(lengths[c], owner[c], size).double() for c in cells]
        return max(float(x.max() / x.mean()) for x in found)

    assert worst(dealt_rows) < 1.1 < 1.5 < worst(blocks)


def test_rows_of_no_minibatch_are_shared_out_too() -> None:
    lengths = torch.tensor([9, 9, 1, 1, 5, 5])
    owner = by_length(lengths, [torch.tensor([0, 1])], 2)
    assert owner[0] != owner[1] and loads(lengths[2:], owner[2:], 2).tolist() == [6, 6]


# ---------------------------------------------------------------- the part of a rank


@st.composite
def deals(draw: st.DrawFn) -> list[Deal]:
    """The same deal as each rank has it."""
    size = draw(SIZES)
    owner = torch.tensor(draw(st.lists(st.integers(0, size - 1), max_size=12)), dtype=torch.long)
    return [Deal(torch.arange(len(owner)) + 100, owner, index) for index in range(size)]


@given(deals(), st.data())
@settings(deadline=None)
def test_every_position_is_local_to_one_rank(ranks: list[Deal], data: st.DataObject) -> None:
    positions = torch.tensor(data.draw(st.permutations(range(ranks[0].rows))), dtype=torch.long)[: ranks[0].rows // 2]
    found: list[int] = []
    for deal in ranks:
        local, taken = deal.local(positions), deal.take(positions)
        assert deal.mine()[local].tolist() == positions[taken.mine()].tolist()
        found += positions[taken.mine()].tolist()
    assert sorted(found) == sorted(positions.tolist())


@given(deals(), st.data())
@settings(deadline=None)
def test_ranks_cut_the_rows_that_one_process_cuts(ranks: list[Deal], data: st.DataObject) -> None:
    positions = torch.tensor(data.draw(st.permutations(range(ranks[0].rows))), dtype=torch.long)[: ranks[0].rows // 2]
    whole = root("prompts.prompt", ranks[0].rows, ranks[0].ids)
    expected = cut(whole, positions).frame
    assert expected.deal is None and expected.ids is not None
    for deal in ranks:
        part = cut(dealt("prompts.prompt", deal), positions).frame
        assert part.deal is not None and part.ids is not None
        assert part.deal.ids.tolist() == expected.ids.tolist()
        assert part.ids.tolist() == part.deal.ids[part.deal.mine()].tolist()


def test_a_cut_takes_what_is_under_the_rows() -> None:
    frame = dealt("prompts.prompt", Deal(torch.arange(4), torch.tensor([0, 1, 1, 0]), 1))
    samples = frame.child("rollout.sample", [2, 1])
    selection = cut(frame, torch.tensor([2, 0, 1]))
    chosen = selection(Value(["a", "b", "c"], samples))
    assert isinstance(chosen, Value) and chosen.rows == ["c", "a", "b"]
    assert chosen.frame is not None and chosen.frame.parent is selection.frame
    below = Selection(samples, torch.tensor([0]))
    assert below.frame.parent is frame and frame.deal is not None  # the root stays as it was dealt


def test_joined_rounds_are_dealt_one_after_another() -> None:
    first = dealt("prompts.prompt", Deal(torch.tensor([0, 1]), torch.tensor([0, 1]), 0))
    second = dealt("prompts.prompt", Deal(torch.tensor([2, 3]), torch.tensor([1, 0]), 0))
    whole = Concatenation()([Value(["a"], first), Value(["d"], second)])
    assert isinstance(whole, Value) and whole.frame is not None and whole.frame.deal is not None
    assert whole.rows == ["a", "d"] and whole.frame.deal.owner.tolist() == [0, 1, 1, 0]
    assert whole.frame.deal.mine().tolist() == [0, 3] and whole.frame.row_name(1) == "row 3 of `prompts.prompt`"


def test_a_round_without_rows_says_nothing_about_a_column() -> None:
    frames = [root("prompts.prompt", 0), root("prompts.prompt", 2)]
    join = Concatenation()
    for none, some in ((torch.zeros(0, dtype=torch.bool), ["a", "b"]), (torch.zeros(0), torch.tensor([2**60, 1]))):
        joined = join([Value(none, frames[0]), Value(some, frames[1])])
        assert isinstance(joined, Value) and type(joined.data) is type(some) and joined.rows == list(some)


def test_frames_are_alike_if_the_whole_deal_is() -> None:
    def frame(ids: list[int], owner: list[int]) -> Frame:
        return dealt("prompts.prompt", Deal(torch.tensor(ids), torch.tensor(owner), 0))

    assert frame([5, 6], [0, 1]).is_like(frame([5, 6], [0, 1]))
    assert not frame([5, 6], [0, 1]).is_like(frame([5, 7], [0, 1]))  # the same rows here, other rows elsewhere
    assert not frame([5, 6], [0, 1]).is_like(root("prompts.prompt", 1, torch.tensor([5])))
    assert not frame([5, 6], [0, 0]).is_like(root("prompts.prompt", 2, torch.tensor([5, 6])))  # at no site
