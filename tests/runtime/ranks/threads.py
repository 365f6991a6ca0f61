"""Ranks that are threads of this process: as fast to start as a function, for what doesn't depend on a transport."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from shardflow.runtime.ranks import Channel

T = TypeVar("T")
DEADLINE = 20.0


class Table:
    """Where the ranks of one channel lay down what the others take."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self.barrier = threading.Barrier(len(ranks), timeout=DEADLINE)
        self.items: dict[int, Any] = {}

    def lay(self, index: int, item: Any) -> dict[int, Any]:
        """What all ranks have laid down in this round."""
        self.items[index] = item
        self.barrier.wait()
        found = dict(self.items)
        self.barrier.wait()
        return found


class ThreadChannel(Channel):
    """A channel between threads. It counts the bytes that `exchange` sends to others, and refuses wrong sizes."""

    def __init__(self, table: Table, rank: int) -> None:
        self.name, self.ranks, self.index = "threads", table.ranks, table.ranks.index(rank)
        self.sent = 0
        self._table = table

    def gather(self, numbers: Tensor, what: str) -> Tensor:
        return torch.stack([x for _, x in sorted(self._table.lay(self.index, numbers.clone()).items())])

    def share(self, data: bytes, what: str, source: int = 0) -> bytes:
        return bytes(self._table.lay(self.index, data)[source])

    def collect(self, data: bytes, what: str) -> list[bytes]:
        return [x for _, x in sorted(self._table.lay(self.index, data).items())]

    def exchange(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int], what: str) -> dict[int, Tensor]:
        self.sent += sum(x.numel() for to, x in outgoing.items() if to != self.index)
        laid = self._table.lay(self.index, {to: x.clone() for to, x in outgoing.items()})
        expected = {i for i, messages in laid.items() if len(messages.get(self.index, ()))}
        arrived = {i: laid[i].get(self.index, torch.empty(0, dtype=torch.uint8)) for i in incoming}
        sizes = {i: x.numel() for i, x in arrived.items()}
        if not expected <= incoming.keys() or sizes != dict(incoming):
            raise RuntimeError(f"{what}: {sizes} bytes came from {expected}, not {dict(incoming)}")
        return arrived

    def add(self, tensor: Tensor, what: str) -> None:
        tensor.copy_(self.gather(tensor, what).sum(0))

    def barrier(self, what: str) -> None:
        self._table.lay(self.index, None)


def on_ranks(count: int, work: Callable[[int, Callable[..., ThreadChannel | None]], T]) -> list[T]:
    """What `work(rank, channel)` gives on each rank. `channel(*ranks)` is this rank's end, None if it isn't in it.

    The first error of any rank is raised; the others are released.
    """
    tables: dict[tuple[int, ...], Table] = {}
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    lock = threading.Lock()

    def run(rank: int) -> None:
        mine: dict[tuple[int, ...], ThreadChannel] = {}

        def channel(*ranks: int) -> ThreadChannel | None:
            with lock:
                table = tables.setdefault(ranks, Table(ranks))
            return mine.setdefault(ranks, ThreadChannel(table, rank)) if rank in ranks else None

        try:
            results[rank] = work(rank, channel)
        except BaseException as error:
            errors.append(error)
            for table in [*tables.values()]:
                table.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(count)]
