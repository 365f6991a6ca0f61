"""Deals: which rank of a mesh holds which rows of a root axis. Integers alone decide, so every rank finds the same.

A root row goes with everything under it, so that groups stay whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Deal:
    """Which rank of a mesh holds each row of a root axis, all rows in global order.

    ids: int64 [rows], draw numbers. owner: int64 [rows], index in the mesh. index: this rank's own index in the mesh.
    site: which mesh, and by which way of dealing, so that frames of one name at two places are told apart.
    A rank keeps its rows in global order, so its n-th local row is the n-th of `mine`.
    """

    ids: Tensor
    owner: Tensor
    index: int
    site: str = ""

    @property
    def rows(self) -> int:
        return len(self.ids)

    @property
    def is_whole(self) -> bool:
        """Whether all rows are here."""
        return bool((self.owner == self.index).all())

    def mine(self) -> Tensor:
        """[local rows]: the global positions of this rank's rows, ascending."""
        return torch.nonzero(self.owner == self.index)[:, 0]

    def local(self, positions: Tensor) -> Tensor:
        """Of global positions, the local row numbers of those that are this rank's, in that order."""
        is_mine = self.owner == self.index
        numbers = torch.cumsum(is_mine, 0) - 1
        return numbers[positions[is_mine[positions]]]

    def take(self, positions: Tensor) -> Deal:
        """The deal of the rows at global positions, in that order."""
        return Deal(self.ids[positions], self.owner[positions], self.index, self.site)

    def is_like(self, other: Deal) -> bool:
        """Whether the same rows lie on the same ranks."""
        pairs = ((self.ids, other.ids), (self.owner, other.owner))
        return (self.index, self.site) == (other.index, other.site) and all(
            a is b or torch.equal(a, b) for a, b in pairs
        )


def joined(deals: Sequence[Deal]) -> Deal:
    """The rows of several deals, one after another."""
    first = deals[0]
    return Deal(torch.cat([d.ids for d in deals]), torch.cat([d.owner for d in deals]), first.index, first.site)


# ---------------------------------------------------------------- ways to deal


def even(rows: int, size: int) -> Tensor:
    """Contiguous blocks, equal but for one row. Returns owner, int64 [rows]."""
    return torch.arange(rows) * size // max(rows, 1)


def by_length(lengths: Tensor, cells: Sequence[Tensor], size: int) -> Tensor:
    """Rows so that the ranks have about as many tokens each, in all rows that are computed together.

    lengths: int64 [rows], the tokens under each row. cells: the rows of one minibatch each, of any epoch and update,
    since the ranks wait for each other at the end of every one; rows of no cell make one more. size: of the mesh.
    Returns owner, int64 [rows].

    Longest rows first (Graham, "Bounds on multiprocessing timing anomalies", 1969), each to where it adds least to the
    sum over its cells of the squares of the ranks' tokens; then to where the fewest rows are; then to the first rank.
    """
    rows = len(lengths)
    member = _cells_of(rows, cells)
    costs = (lengths * (rows + 1)).tolist()  # counts of rows fit in between
    load: NDArray[np.int64] = np.zeros((len(cells) + 1, size), dtype=np.int64)
    count: NDArray[np.int64] = np.zeros(size, dtype=np.int64)
    owner = torch.zeros(rows, dtype=torch.long)
    for row in torch.argsort(lengths, descending=True, stable=True).tolist():
        # (load + length)^2 - load^2 is least where the load is: the length is the same everywhere.
        before = load[member[row][0]] if len(member[row]) == 1 else load[member[row]].sum(0)
        rank = int((before + count).argmin())
        load[member[row], rank] += costs[row]
        count[rank] += 1
        owner[row] = rank
    return owner


def _cells_of(rows: int, cells: Sequence[Tensor]) -> list[list[int]]:
    """The numbers of the cells that each row is in; of a row in none, the number after the last."""
    member: list[list[int]] = [[] for _ in range(rows)]
    for number, cell in enumerate(cells):
        for row in cell.tolist():
            member[row].append(number)
    return [numbers or [len(cells)] for numbers in member]
