"""The order in which a `read` hands out rows: epoch after epoch, each a permutation of its own."""

import hashlib
import json
from collections.abc import Sized

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Reader:
    """Which rows of a table the draws of one read are; a pure function of (seed, key, position).

    Args:
        table: what is read; only its length matters here.
        key: names the read, so that two reads of a flow shuffle apart and equal ones together.
        seed: the run's seed.
        shuffle: whether each epoch has an order of its own; else rows come as in the file.
    """

    def __init__(self, table: Sized, *, key: str, seed: int, shuffle: bool) -> None:
        if len(table) == 0:
            raise ValueError("a table without rows can't be read")
        self._length = len(table)
        self._key = key
        self._seed = seed
        self._shuffle = shuffle
        self._cached: tuple[int, NDArray[np.int64]] | None = None

    def indices(self, position: int, count: int) -> list[int]:
        """Row numbers of the draws `position .. position + count - 1`; they may straddle epochs.

        Raises:
            ValueError: a negative position or count.
        """
        if position < 0 or count < 0:
            raise ValueError(f"position and count can't be negative: {position}, {count}")
        rows: list[int] = []
        while len(rows) < count:
            epoch, start = divmod(position + len(rows), self._length)
            rows += self._order(epoch)[start : start + count - len(rows)].tolist()
        return rows

    def epochs_done(self, position: int) -> float:
        """How many times the table was gone through when `position` rows were handed out."""
        return position / self._length

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if not self._shuffle:
            epoch = 0
        if self._cached is None or self._cached[0] != epoch:
            order = self._shuffled(epoch) if self._shuffle else np.arange(self._length)
            self._cached = epoch, order
        return self._cached[1]

    def _shuffled(self, epoch: int) -> NDArray[np.int64]:
        return epoch_order(self._length, seed=self._seed, key=self._key, epoch=epoch)


def epoch_order(length: int, *, seed: int, key: str, epoch: int) -> NDArray[np.int64]:
    """A permutation of `range(length)` that depends on the arguments alone.

    Rows are sorted by a 64-bit counter hash (splitmix64, Steele et al. 2014) started from BLAKE2b of the key. The
    shuffles of `random`, numpy and torch may change with a version, and with them every resumed run.
    """
    text = json.dumps(["shardflow.epoch", seed, key, epoch])
    start = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    counters = np.arange(1, length + 1, dtype=np.uint64) * _GOLDEN + np.uint64(start)
    return np.argsort(_mix(counters), kind="stable")


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64, a bijection of 64-bit words (arrays wrap around silently)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
