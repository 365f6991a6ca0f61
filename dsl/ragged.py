"""What a Python operator with the hint `Ragged` or `PerSequence` sees: packed values, and the sequences' lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Ragged:
    """The hint for all sequences in scope: the step's, or inside an update the minibatch's.

    values: [token], all sequences one after another; lengths: [sequence], int64.
    """

    values: Tensor
    lengths: Tensor

    def padded(self) -> Tensor:
        """The values as [sequence, longest], zeros after each sequence's end."""
        import torch

        longest = max(1, int(self.lengths.max())) if len(self.lengths) else 1
        out = torch.zeros((len(self.lengths), longest), dtype=self.values.dtype, device=self.values.device)
        return out.masked_scatter(self._mask(longest), self.values)

    def like(self, padded: Tensor) -> Self:
        """Packed values from [sequence, longest] of the same lengths."""
        return type(self)(padded[self._mask(padded.shape[1])], self.lengths)

    def _mask(self, longest: int) -> Tensor:
        import torch

        return torch.arange(longest, device=self.values.device)[None, :] < self.lengths[:, None]


class PerSequence(Ragged):
    """The hint of a function that works on packed values, but on each sequence by itself, such as a recurrence.

    Which other sequences a call holds makes no difference to it, so that a micro-batch may call it for some of them.
    """


class Group(list[T]):
    """The hint for the rows under one parent, such as the samples of a prompt."""


class Batch(list[T]):
    """The hint for all rows in scope: the step's batch, or inside an update the minibatch."""
