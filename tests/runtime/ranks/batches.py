"""Ragged values of every kind on one root, dealt to ranks, and what each rank should have of them."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from hypothesis import strategies as st
from torch import Tensor

from shardflow.runtime.deals import Deal
from shardflow.runtime.values import Any_, Frame, Record, Selection, Value, root

AXIS = "prompts.prompt"


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any_]:
    """0 to 6 prompts with 0 to 3 samples of 0 to 3 tokens: a record, and values on each axis."""
    samples = draw(st.lists(st.integers(0, 3), max_size=6))
    tokens = draw(st.lists(st.integers(0, 3), min_size=sum(samples), max_size=sum(samples)))
    return batch_of(samples, tokens)


def batch_of(samples: Sequence[int], tokens: Sequence[int]) -> dict[str, Any_]:
    """The same numbers in every process."""
    noise = torch.Generator().manual_seed(0)
    prompts = root(AXIS, len(samples), torch.arange(len(samples)) + 100)
    rows = prompts.child("rollout.sample", samples)
    rows.ids = torch.arange(rows.size)
    frame = rows.child("rollout.token", tokens)
    contexts = [[7] * n + [n, 2**40 * (n == 2)] for n in range(prompts.size)]
    fields: dict[str, Value] = {
        "text": Value([f"sämple {n}" * (n % 3) for n in range(rows.size)], rows),
        "tokens": Value(torch.arange(frame.size), frame),
        "logprobs": Value(torch.randn(frame.size, dtype=torch.float64, generator=noise), frame),
        "half": Value(torch.randn(frame.size, generator=noise).bfloat16(), frame),
        "last": Value(torch.arange(frame.size) % 2 == 0, frame),
    }
    hidden = {
        "context": Value([contexts[p] for p in rows.path(prompts).tolist()], rows),
        "response": Value([list(range(end - n, end)) for n, end in zip(tokens, accumulate(tokens), strict=True)], rows),
    }
    answers = [{"n": n, "x": [None, 0.5, float("inf")]} if n % 2 else None for n in range(prompts.size)]
    return {
        "rollout": Record("rollout", rows, fields, hidden, writer="policy"),
        "answer": Value(answers, prompts),
        "vector": Value(torch.randn(prompts.size, 2, generator=noise), prompts),
        "tokens": fields["tokens"],
    }


def root_frame(batch: dict[str, Any_]) -> Frame:
    frame = batch["vector"].frame
    assert frame is not None
    return frame


def deal_of(batch: dict[str, Any_], owner: Tensor, index: int, site: str = "") -> Deal:
    ids = root_frame(batch).ids
    assert ids is not None
    return Deal(ids, owner, index, site)


def part_of(batch: dict[str, Any_], deal: Deal) -> dict[str, Any_]:
    """What a rank has."""
    selection = Selection(root_frame(batch), deal.mine(), deal=deal)
    return {name: selection(value) for name, value in batch.items()}


@st.composite
def owners(draw: st.DrawFn, rows: int, size: int) -> Tensor:
    return torch.tensor(draw(st.lists(st.integers(0, size - 1), min_size=rows, max_size=rows)), dtype=torch.long)


# ---------------------------------------------------------------- comparing


def assert_same(ours: Any_, expected: Any_) -> None:
    assert type(ours) is type(expected)
    assert_same_frame(ours.frame, expected.frame)
    if isinstance(ours, Value) and isinstance(expected, Value):
        if isinstance(expected.data, Tensor) and len(expected.data):
            torch.testing.assert_close(ours.tensor, expected.tensor, rtol=0, atol=0)
        assert ours.rows == expected.rows
    if isinstance(ours, Record) and isinstance(expected, Record):
        assert (ours.kind, ours.writer) == (expected.kind, expected.writer)
        for part, other in ((ours.fields, expected.fields), (ours.hidden, expected.hidden)):
            assert [*part] == [*other]
            for key, value in part.items():
                assert_same(value, other[key])


def assert_same_frame(ours: Frame | None, expected: Frame | None) -> None:
    if ours is None or expected is None:
        assert ours is expected
        return
    assert (ours.name, ours.size) == (expected.name, expected.size)
    for a, b in ((ours.index, expected.index), (ours.ids, expected.ids)):
        assert (a.tolist() if a is not None else None) == (b.tolist() if b is not None else None)
    assert_same_frame(ours.parent, expected.parent)
