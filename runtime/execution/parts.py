"""Micro-batches: which rows of a minibatch go through the model together.

A loss may read rows of several roots, such as rollouts and a data column. Rows of different roots are never joined, so
a micro-batch holds rows of one of them, and none of the others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models import micro_batches
from ..values import Any_, Frame, Selection


@dataclass(frozen=True)
class Part:
    """One micro-batch: for every root that the model reads, the rows of its uncut frame, and all that is under them."""

    selections: tuple[Selection, ...]

    def __call__(self, value: Any_) -> Any_:
        for selection in self.selections:
            value = selection(value)
        return value

    def rows(self, frame: Frame) -> Tensor:
        """Which rows of a frame of the minibatch are in it."""
        selection = next(s for s in self.selections if frame.is_under(s.base))
        return selection.of(frame)[1]


def parts_of(read: Sequence[tuple[Frame, Sequence[int]]], uncut: Sequence[str], budget: int) -> list[Part] | list[None]:
    """The micro-batches of a minibatch, each within a budget of tokens (a row over it stands alone); None: all rows.

    read: the frames whose rows the model reads, with the tokens of each row. uncut: the names of axes whose rows stay
    whole.
    """
    frames = uncut_frames(uncut, (frame for frame, _ in read))
    costs = {frame: torch.zeros(frame.size, dtype=torch.long) for frame in frames}
    for frame, lengths in read:
        above = next(f for f in frames if frame.is_under(f))
        costs[above].index_add_(0, frame.path(above), torch.tensor(lengths, dtype=torch.long))
    if len(micro_batches([n for cost in costs.values() for n in cost.tolist()], budget)) == 1:
        return [None]
    cut = [(f, sorted(rows)) for f, cost in costs.items() for rows in micro_batches(cost.tolist(), budget)]
    return [_part(frames, f, rows) for f, rows in cut]


def _part(frames: Iterable[Frame], chosen: Frame, rows: list[int]) -> Part:
    return Part(tuple(Selection(f, torch.tensor(rows if f is chosen else [], dtype=torch.long)) for f in frames))


def uncut_frames(names: Sequence[str], read: Iterable[Frame]) -> list[Frame]:
    """Of each root that the model reads rows under, the frame whose rows no micro-batch cuts."""
    found: dict[Frame, Frame] = {}
    for frame in read:
        root = frame.chain()[-1]
        cut = found.get(root) or next((f for f in frame.chain() if f.name in names), frame)
        while not frame.is_under(cut) and cut.parent is not None:
            cut = cut.parent
        found[root] = cut
    return list(found.values())
