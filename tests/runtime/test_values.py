"""Frames, and taking and joining their rows."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardflow.runtime import Axes, algebra
from shardflow.runtime.execution.phases import draw_numbers
from shardflow.runtime.execution.queue import Packer, Unpacker
from shardflow.runtime.values import (
    AxisError,
    Concatenation,
    Frame,
    Record,
    Selection,
    Value,
    innermost,
    keep_rows,
    root,
)

from .workshop import record_in

Tree = list[tuple[int, list[list[int]]]]
"""Prompts as (id, samples), a sample as the numbers of its tokens: what a record holds, as Python sees it."""


@st.composite
def records(draw: st.DrawFn) -> Record:
    """A rollout of 0 to 4 prompts with 0 to 3 samples of 0 to 3 tokens; every element is another number."""
    samples = draw(st.lists(st.integers(0, 3), max_size=4))
    tokens = draw(st.lists(st.integers(0, 3), min_size=sum(samples), max_size=sum(samples)))
    return record_of(samples, tokens)


def record_of(samples: list[int], tokens: list[int], first: int = 0) -> Record:
    prompts = root("prompts.prompt", len(samples), torch.arange(first, first + len(samples)))
    numbers = [i for count in samples for i in range(count)]
    rows = Frame("rollout.sample", sum(samples), prompts, prompts.child("", samples).index, torch.tensor(numbers))
    frame = rows.child("rollout.token", tokens)
    fields = {
        "of prompt": Value(torch.arange(first, first + len(samples)), prompts),
        "text": Value([f"sample {first}.{n}" for n in range(rows.size)], rows),
        "tokens": Value(torch.arange(frame.size) + 1000 * first, frame),
    }
    return Record("rollout", rows, fields, {"context": Value([[n] for n in range(rows.size)], rows)})


def tree(record: Record) -> Tree:
    """The record as nested lists, by walking down from the prompts."""
    prompts, tokens = record.fields["of prompt"], record.fields["tokens"]
    assert tokens.frame is not None and prompts.frame is not None
    out: Tree = [(number, []) for number in prompts.rows]
    owners = record.frame.path(prompts.frame).tolist()
    for row, owner in enumerate(owners):
        under = [t for t, of in zip(tokens.rows, tokens.frame.path(record.frame).tolist(), strict=True) if of == row]
        out[owner][1].append(under)
    return out


# ---------------------------------------------------------------- frames


def test_paths_lead_up() -> None:
    axes = Axes([2, 1], [1, 0, 2])
    assert axes.tokens is not None
    assert axes.tokens.path(axes.samples).tolist() == [0, 2, 2]
    assert axes.tokens.path(axes.prompts).tolist() == [0, 1, 1]
    assert axes.tokens.path(None).tolist() == [0, 0, 0]
    assert axes.samples.lengths.tolist() == [2, 1]
    with pytest.raises(AxisError, match="not above"):
        axes.samples.path(axes.tokens)


def test_values_go_down_and_never_up() -> None:
    axes = Axes([2, 0, 1])
    x = axes.prompt([1.0, 2.0, 3.0])
    assert x.on(axes.samples).rows == [1.0, 1.0, 3.0]
    assert Value(torch.tensor(7)).on(axes.prompts).rows == [7, 7, 7]
    with pytest.raises(AxisError, match="does not broadcast"):
        axes.sample([1.0, 2.0, 3.0]).on(axes.prompts)


def test_the_innermost_frame_is_under_all_others() -> None:
    axes, other = Axes([1], [1]), Axes([1])
    assert innermost([None, axes.prompts, axes.tokens, axes.samples]) is axes.tokens
    assert innermost([None]) is None
    with pytest.raises(AxisError, match="strangers"):
        innermost([axes.prompts, other.samples])


def test_a_short_name_finds_the_innermost() -> None:
    axes = Axes([1], [1])
    assert axes.tokens is not None
    assert axes.tokens.find("sample") is axes.samples and axes.tokens.find("batch.prompt") is axes.prompts
    with pytest.raises(AxisError, match="no `turn` axis"):
        axes.tokens.find("turn")


# ---------------------------------------------------------------- selections


@given(records(), st.data())
@settings(deadline=None)
def test_a_selection_takes_rows_with_all_that_is_under_them(record: Record, data: st.DataObject) -> None:
    prompts = record.frame.parent
    assert prompts is not None
    rows = data.draw(
        st.permutations(range(prompts.size)).flatmap(lambda p: st.integers(0, len(p)).map(lambda n: p[:n]))
    )
    selection = Selection(prompts, torch.tensor(rows, dtype=torch.long))
    chosen = record_in(selection(record))
    assert tree(chosen) == [tree(record)[r] for r in rows]
    assert chosen.frame.parent is selection.frame
    assert chosen.hidden["context"].frame is chosen.frame and chosen.fields["text"].frame is chosen.frame


@given(records(), st.data())
@settings(deadline=None)
def test_a_selection_of_a_selection_is_a_selection(record: Record, data: st.DataObject) -> None:
    prompts = record.frame.parent
    assert prompts is not None
    first = data.draw(st.permutations(range(prompts.size)))
    second = data.draw(st.permutations(range(prompts.size)))[: prompts.size // 2]
    one = Selection(prompts, torch.tensor(first, dtype=torch.long))
    two = Selection(one.frame, torch.tensor(second, dtype=torch.long))
    both = Selection(prompts, torch.tensor([first[i] for i in second], dtype=torch.long))
    assert tree(record_in(two(one(record)))) == tree(record_in(both(record)))


def test_a_selection_of_samples_keeps_their_prompts() -> None:
    record = record_of([2, 2], [1, 2, 1, 1])
    chosen = record_in(Selection(record.frame, torch.tensor([3, 1]))(record))
    assert chosen.frame.parent is record.frame.parent
    assert chosen.frame.index is not None and chosen.frame.index.tolist() == [1, 0]
    assert chosen.fields["of prompt"] is record.fields["of prompt"]
    assert chosen.fields["tokens"].rows == [4, 1, 2]


def test_values_of_other_hierarchies_stay() -> None:
    record, other = record_of([1, 1], [1, 1]), Axes([3])
    assert record.frame.parent is not None
    selection = Selection(record.frame.parent, torch.tensor([1]))
    x, scalar = other.sample([1.0, 2.0, 3.0]), Value(torch.tensor(1))
    assert selection(x) is x and selection(scalar) is scalar


# ---------------------------------------------------------------- keep


@given(records(), st.data())
@settings(deadline=None)
def test_keep_opens_an_axis_of_none_or_one(record: Record, data: st.DataObject) -> None:
    size = record.frame.size
    kept = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    best = keep_rows(record_without_prompts(record), "best.sample", torch.tensor(kept, dtype=torch.bool), "best.token")
    assert best.frame.parent is record.frame and best.frame.name == "best.sample"
    assert best.frame.lengths.tolist() == [int(k) for k in kept]
    assert best.fields["text"].rows == [t for t, k in zip(record.fields["text"].rows, kept, strict=True) if k]
    tokens = best.fields["tokens"].frame
    assert tokens is not None and tokens.name == "best.token" and tokens.parent is best.frame
    # What belonged to a kept row comes down to it; what belongs to a kept row goes up as a sum over nothing or itself.
    x = Value(torch.arange(size, dtype=torch.float64), record.frame)
    assert x.on(best.frame).rows == [n for n in range(size) if kept[n]]
    ones = Value(torch.ones(best.frame.size), best.frame)
    assert algebra.reduce("sum", ones, record.frame).rows == [float(k) for k in kept]


def record_without_prompts(record: Record) -> Record:
    fields = {name: v for name, v in record.fields.items() if name != "of prompt"}
    return Record(record.kind, record.frame, fields, record.hidden)


# ---------------------------------------------------------------- concatenations


@given(st.lists(records(), min_size=1, max_size=4))
@settings(deadline=None)
def test_joined_rounds_are_one_after_another(parts: list[Record]) -> None:
    join = Concatenation()
    whole = record_in(join(parts))
    assert tree(whole) == [prompt for part in parts for prompt in tree(part)]
    assert whole.fields["text"].rows == [t for part in parts for t in part.fields["text"].rows]
    # Another value on the same frames lands on the same joined frame.
    again = join([p.fields["text"] for p in parts])
    assert isinstance(again, Value) and again.frame is whole.frame


@given(records(), records(), st.data())
@settings(deadline=None)
def test_selecting_then_joining_is_joining_then_selecting(a: Record, b: Record, data: st.DataObject) -> None:
    frames = [r.frame.parent for r in (a, b) if r.frame.parent is not None]
    kept = [sorted(data.draw(st.sets(st.integers(0, f.size - 1)) if f.size else st.just(set()))) for f in frames]
    parts = [
        record_in(Selection(f, torch.tensor(k, dtype=torch.long))(r))
        for f, k, r in zip(frames, kept, (a, b), strict=True)
    ]
    first = record_in(Concatenation()(parts))
    whole = record_in(Concatenation()([a, b]))
    rows = kept[0] + [frames[0].size + k for k in kept[1]]
    assert whole.frame.parent is not None
    second = record_in(Selection(whole.frame.parent, torch.tensor(rows, dtype=torch.long))(whole))
    assert tree(first) == tree(second)
    assert first.fields["text"].rows == second.fields["text"].rows


def test_joined_rows_keep_their_draw_numbers() -> None:
    whole = record_in(Concatenation()([record_of([1, 2], [1, 1, 1]), record_of([2], [1, 1], first=8)]))
    assert whole.frame.parent is not None and whole.frame.parent.ids is not None and whole.frame.ids is not None
    assert whole.frame.parent.ids.tolist() == [0, 1, 8]
    assert whole.frame.ids.tolist() == [0, 0, 1, 0, 1]


# ---------------------------------------------------------------- draw numbers


@given(records(), st.data())
@settings(deadline=None)
def test_draw_numbers_are_distinct_and_go_with_the_row(record: Record, data: st.DataObject) -> None:
    prompts, tokens = record.frame.parent, record.fields["tokens"].frame
    assert prompts is not None and tokens is not None
    order = data.draw(st.permutations(range(prompts.size)))
    selection = Selection(prompts, torch.tensor(order, dtype=torch.long))
    for frame in (prompts, record.frame, tokens):
        numbers = draw_numbers(frame)
        assert len(set(numbers.tolist())) == frame.size
        moved, rows = selection.of(frame)
        assert draw_numbers(moved).equal(numbers[rows])


# ---------------------------------------------------------------- queues


@given(records())
@settings(deadline=None)
def test_what_waits_in_a_commit_comes_back(record: Record) -> None:
    packer = Packer("queue")
    extra = Value(torch.arange(record.frame.size), record.frame)
    packed = json.loads(json.dumps([packer.pack(record), packer.pack(extra), packer.pack(Value(torch.tensor(2.5)))]))
    unpacker = Unpacker(packer.frames, packer.tensors)
    again, value, scalar = (unpacker.unpack(p) for p in packed)
    assert tree(record_in(again)) == tree(record)
    assert record_in(again).hidden["context"].rows == record.hidden["context"].rows
    assert isinstance(value, Value) and value.frame is record_in(again).frame
    assert isinstance(scalar, Value) and scalar.tensor.item() == 2.5 and scalar.frame is None
