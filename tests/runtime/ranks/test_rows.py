"""Rows arrive where they are dealt to, whole and in order, and no byte travels twice."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shardflow.runtime.deals import Deal, even
from shardflow.runtime.errors import RunError
from shardflow.runtime.ranks import World
from shardflow.runtime.ranks.columns import decode, encode
from shardflow.runtime.ranks.rows import Dealing, move
from shardflow.runtime.values import Any_, Frame, Record, Value, dealt, root

from .batches import AXIS, assert_same, batch_of, batches, deal_of, owners, part_of, root_frame
from .pool import Pool
from .threads import ThreadChannel, on_ranks

Ranks = tuple[int, ...]


def no_root() -> Frame:
    raise AssertionError("the rows aren't dealt yet")


def same(frame: Frame) -> Frame:
    return frame


@dataclass(frozen=True)
class Case:
    """Rows that lie on the ranks of one mesh by one deal, and go to another."""

    batch: dict[str, Any_]
    source: Ranks
    target: Ranks
    before: Tensor
    after: Tensor

    def run(
        self,
        deal: Dealing | None = None,
        known: Callable[[Frame], Frame] = same,
        root: Callable[[int], Frame] | None = None,
        fields: Mapping[str, list[str]] | None = None,
        part: Callable[[int], dict[str, Any_]] | None = None,
    ) -> list[tuple[dict[str, Any_], int]]:
        """By rank, what has arrived and how many bytes it has sent."""
        union = tuple(sorted({*self.source, *self.target}))

        def work(rank: int, channel: Callable[..., ThreadChannel | None]) -> tuple[dict[str, Any_], int]:
            source, target, both = channel(*self.source), channel(*self.target), channel(*union)
            if both is None:
                return {}, 0
            values = (part or self.part)(source.index) if source is not None else {}
            moved = move(
                values,
                fields or {},
                axis=AXIS,
                source=source,
                target=target,
                union=both,
                deal=None if root else deal or (lambda ids, lengths: self.after),
                known=known,
                root=(lambda: root(target.index)) if root and target is not None else no_root,
                what="move",
                site="there",
            )
            return moved, both.sent

        return on_ranks(max(union) + 1, work)

    def part(self, index: int) -> dict[str, Any_]:
        return part_of(self.batch, deal_of(self.batch, self.before, index))

    def expected(self, index: int) -> dict[str, Any_]:
        return part_of(self.batch, deal_of(self.batch, self.after, index))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Meshes that are one, overlap or are apart."""
    batch = draw(batches())
    meshes = [tuple(range(first, first + draw(st.integers(1, 3)))) for first in (0, draw(st.integers(0, 3)))]
    source, target = draw(st.permutations(meshes))
    before, after = (draw(owners(root_frame(batch).size, len(mesh))) for mesh in (source, target))
    return Case(batch, source, target, before, after)


# ---------------------------------------------------------------- what arrives


@given(cases())
@settings(deadline=None, max_examples=60)
def test_rows_arrive_as_they_are_dealt(case: Case) -> None:
    for rank, (moved, _) in enumerate(case.run()):
        if rank not in case.target:
            assert moved == {}
            continue
        for name, expected in case.expected(case.target.index(rank)).items():
            assert_same(moved[name], expected)
        frames = [value.frame.chain()[-1] for value in moved.values() if value.frame is not None]
        assert all(frame is frames[0] for frame in frames)
        deal = frames[0].deal
        assert deal is not None and deal.site == "there" and torch.equal(deal.owner, case.after)


@given(cases())
@settings(deadline=None, max_examples=30)
def test_what_stays_on_its_rank_is_not_sent(case: Case) -> None:
    before = torch.tensor(case.source, dtype=torch.long)[case.before]
    after = torch.tensor(case.target, dtype=torch.long)[case.after]
    for rank, (_, sent) in enumerate(case.run()):
        leaving = bool(((before == rank) & (after != rank)).any())
        assert (sent > 0) == leaving


def test_bytes_travel_once() -> None:
    """What several names share, and the prompt that several samples share, is sent once."""
    prompts = root(AXIS, 1, torch.tensor([5]))
    rows = prompts.child("rollout.sample", [4])
    context = list(range(1000))
    ones = Value(torch.ones(4), rows)
    record = Record("rollout", rows, {"ones": ones}, {"context": Value([context] * 4, rows)})
    batch: dict[str, Any_] = {"rollout": record, "again": ones}
    case = Case(batch, (0,), (1,), torch.tensor([0]), torch.tensor([0]))
    results = case.run(part=lambda index: batch)
    lengths, numbers, tokens = 8 + 4 * 8, 4 * 4, 1000 * 4  # samples per prompt, token ids per sample; int32
    assert results[0][1] == lengths + numbers + tokens
    arrived = results[1][0]["rollout"]
    assert isinstance(arrived, Record) and arrived.fields["ones"].rows == [1] * 4
    contexts = arrived.hidden["context"].rows
    assert contexts == [context] * 4 and contexts[0] is contexts[3]


def test_only_wanted_fields_travel() -> None:
    batch = batch_of([1, 1], [2, 1])
    case = Case(batch, (0,), (0, 1), torch.zeros(2, dtype=torch.long), torch.tensor([1, 0]))
    for moved, _ in case.run(fields={"rollout": ["logprobs"]}):
        rollout = moved["rollout"]
        assert isinstance(rollout, Record)
        assert [*rollout.fields] == ["logprobs"] and [*rollout.hidden] == ["context", "response"]


def test_the_deal_sees_all_rows_and_their_tokens() -> None:
    seen: list[tuple[list[int], list[int]]] = []

    def deal(ids: Tensor, lengths: Tensor) -> Tensor:
        seen.append((ids.tolist(), lengths.tolist()))
        return even(len(ids), 1)

    batch = batch_of([2, 0, 1], [3, 1, 2])
    Case(batch, (0, 1), (2,), torch.tensor([1, 0, 1]), torch.zeros(3, dtype=torch.long)).run(deal)
    assert seen == [([100, 101, 102], [2 * 2 + 4, 0, 4 + 2])] * 3  # contexts and responses


# ---------------------------------------------------------------- rows that are there already


@given(cases())
@settings(deadline=None, max_examples=30)
def test_values_join_the_rows_that_are_there(case: Case) -> None:
    """Later values of the same rows land on the very frames of the first."""
    there = {rank: root_frame(moved) for rank, (moved, _) in enumerate(case.run()) if rank in case.target}
    by_place = {case.target.index(rank): frame for rank, frame in there.items()}

    for rank, (moved, _) in enumerate(case.run(root=by_place.__getitem__)):
        if rank in case.target:
            assert root_frame(moved) is there[rank]


def test_children_join_the_frames_that_are_known() -> None:
    batch = batch_of([2, 1], [1, 2, 3])
    case = Case(batch, (0,), (1,), torch.zeros(2, dtype=torch.long), torch.zeros(2, dtype=torch.long))
    first = case.run()[1][0]
    rollout = first["rollout"]
    assert isinstance(rollout, Record)
    frames = [rollout.frame, *rollout.frame.chain(), *(v.frame for v in rollout.fields.values() if v.frame is not None)]

    def known(frame: Frame) -> Frame:
        return next((f for f in frames if f.is_like(frame)), frame)

    again = case.run(known=known)[1][0]
    assert again["tokens"].frame is first["tokens"].frame and again["vector"].frame is first["vector"].frame


def test_part_of_the_rows_that_are_there_may_come() -> None:
    held = dealt(AXIS, Deal(torch.tensor([101, 103, 100, 102]), torch.tensor([0, 1, 1, 0]), 0, "there"))
    batch = batch_of([1, 1], [1, 1])  # the rows 100 and 101
    case = Case(batch, (0,), (0,), torch.zeros(2, dtype=torch.long), torch.zeros(2, dtype=torch.long))
    wider = Case(batch, (0,), (0, 1), case.before, case.after)
    frames = [held, dealt(AXIS, Deal(held.deal.ids, held.deal.owner, 1, "there"))] if held.deal else []
    first, second = (root_frame(moved) for moved, _ in wider.run(root=frames.__getitem__))
    assert first.ids is not None and second.ids is not None
    assert first.ids.tolist() == [101] and second.ids.tolist() == [100]
    with pytest.raises(RuntimeError, match="other rows"):
        case.run(root=lambda index: root(AXIS, 1, torch.tensor([7])))


# ---------------------------------------------------------------- columns that ranks see differently


def test_a_rank_without_rows_has_no_say_in_what_a_column_is() -> None:
    frames = [root(AXIS, 2, torch.tensor([1, 2])), root(AXIS, 0)]
    columns = [Value(["a", "b"], frames[0]), Value(torch.zeros(0, dtype=torch.bool), frames[1])]
    case = Case({}, (0, 1), (2,), torch.tensor([0, 0]), torch.tensor([0, 0]))
    assert case.run(part=lambda index: {"x": columns[index]})[2][0]["x"].rows == ["a", "b"]  # type: ignore[union-attr]


def test_integers_on_one_rank_are_floats_beside_those_of_another() -> None:
    deals = [Deal(torch.tensor([1, 2]), torch.tensor([0, 1]), index) for index in range(2)]
    columns = [Value(torch.tensor([1]), dealt(AXIS, deals[0])), Value(torch.tensor([0.5]), dealt(AXIS, deals[1]))]
    case = Case({}, (0, 1), (0,), torch.tensor([0, 1]), torch.tensor([0, 0]))
    moved = case.run(part=lambda index: {"x": columns[index]})[0][0]["x"]
    assert isinstance(moved, Value) and moved.tensor.is_floating_point() and moved.rows == [1, 0.5]


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1, 2), r"`x` holds a `tuple`, which can't travel between ranks"),
        ({"a": {1, 2}}, r"`x` holds a `set`"),
        ([2**70], r"`x` holds an integer beyond 64 bits"),
    ],
)
def test_what_cannot_travel_is_refused_everywhere(row: Any, message: str) -> None:
    failed: list[str] = []

    def work(rank: int, channel: Callable[..., ThreadChannel | None]) -> None:
        both, source, target = channel(0, 1), channel(0), channel(1)
        assert both is not None
        values: dict[str, Any_] = {"x": Value([row], root(AXIS, 1))} if source else {}
        try:
            move(values, {}, axis=AXIS, source=source, target=target, union=both, deal=lambda ids, lengths: ids * 0,
                 known=same, root=no_root, what="move")  # fmt: skip
        except RunError as error:
            failed.append(str(error))

    on_ranks(2, work)
    assert len(failed) == 2 and failed[0] == failed[1]
    with pytest.raises(RunError, match=message):
        raise RunError(failed[0])


def test_a_missing_field_is_named() -> None:
    case = Case(batch_of([1], [1]), (0,), (1,), torch.tensor([0]), torch.tensor([0]))
    with pytest.raises(RunError, match=r"`rollout` has no `score`; it has `text`, `tokens`"):
        case.run(fields={"rollout": ["score"]})


def test_rows_that_are_on_two_ranks_are_refused() -> None:
    case = Case(batch_of([1], [1]), (0, 1), (2,), torch.tensor([0]), torch.tensor([0]))
    with pytest.raises(RuntimeError, match="on several ranks"):
        case.run(part=lambda index: case.batch)


def test_strangers_do_not_travel_together() -> None:
    case = Case({}, (0,), (1,), torch.tensor([0]), torch.tensor([0]))
    values: dict[str, Any_] = {name: Value(torch.ones(1), root(AXIS, 1)) for name in "ab"}
    with pytest.raises(RunError, match="aren't under one root"):
        case.run(part=lambda index: values)
    with pytest.raises(RunError, match="`c` has no rows under"):
        case.run(part=lambda index: {"c": Value(torch.tensor(1.0))})


# ---------------------------------------------------------------- columns

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
LISTS = st.lists(st.text()) | st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)) | st.lists(PLAIN)


@given(LISTS, st.data())
@settings(deadline=None)
def test_lists_arrive_as_they_were(rows: list[Any], data: st.DataObject) -> None:
    rows = [row for row in rows for _ in range(data.draw(st.integers(1, 2)))]  # the same object more than once
    column = encode(rows, torch.arange(len(rows)) // 3, "x")
    arrived = decode(column)
    assert arrived == rows and list(map(type, arrived)) == list(map(type, rows))
    assert int(torch.as_tensor(column.sizes()).sum()) == column.flat.numel() * column.flat.element_size() + 8 * len(
        rows
    )


def test_lone_surrogates_and_nan_arrive() -> None:
    texts = ["\ud83d", "a"]
    assert decode(encode(texts, torch.arange(2), "x")) == texts
    numbers = decode(encode([float("nan"), None], torch.arange(2), "x"))
    assert numbers[0] != numbers[0] and numbers[1] is None


# ---------------------------------------------------------------- between processes


def moved_between_processes(world: World) -> bool:
    """From ranks 0 and 1 to ranks 1 to 3."""
    world.open({"a": (0, 1), "b": (1, 2, 3)})
    batch, before, after = batch_of([2, 0, 1, 3], [3, 1, 2, 0, 4, 1]), torch.tensor([0, 1, 0, 1]), [2, 0, 0, 1]
    source = world.channel("a") if world.rank in (0, 1) else None
    target = world.channel("b") if world.rank in (1, 2, 3) else None
    moved = move(
        part_of(batch, deal_of(batch, before, source.index)) if source is not None else {},
        {},
        axis=AXIS,
        source=source,
        target=target,
        union=world.channel("world"),
        deal=lambda ids, lengths: torch.tensor(after),
        known=same,
        root=no_root,
        what="move",
    )
    if target is None:
        return moved == {}
    for name, expected in part_of(batch, deal_of(batch, torch.tensor(after), target.index)).items():
        assert_same(moved[name], expected)
    return True


def test_rows_travel_between_processes(pool: Pool) -> None:
    assert pool.run(moved_between_processes) == [True] * 4
