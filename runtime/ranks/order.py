"""--check-order: before ranks communicate they compare what each is about to do.

Ranks run one program, so they can only differ where something depended on the rank by mistake. Without the check such
a run hangs until its deadline, or mixes up numbers that happen to be of one size.
"""

from collections.abc import Mapping
from hashlib import blake2b

import torch
from torch import Tensor

from ..errors import RunError
from .channel import Channel


class Ordered(Channel):
    """A channel whose ranks tell each other, before each call, its number and what it is for.

    A call raises RunError on all ranks if they don't agree.
    """

    def __init__(self, channel: Channel) -> None:
        self.name, self.ranks, self.index = channel.name, channel.ranks, channel.index
        self._channel = channel
        self._calls = 0

    def gather(self, numbers: Tensor, what: str) -> Tensor:
        self._compare(f"gather of {list(numbers.shape)} {numbers.dtype}", what)
        return self._channel.gather(numbers, what)

    def share(self, data: bytes, what: str, source: int = 0) -> bytes:
        self._compare(f"share from rank {self.ranks[source]}", what)
        return self._channel.share(data, what, source)

    def collect(self, data: bytes, what: str) -> list[bytes]:
        self._compare("collect", what)
        return self._channel.collect(data, what)

    def exchange(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int], what: str) -> dict[int, Tensor]:
        self._compare("exchange", what)
        self._compare_sizes(outgoing, incoming, what)
        return self._channel.exchange(outgoing, incoming, what)

    def add(self, tensor: Tensor, what: str) -> None:
        self._compare(f"sum of {list(tensor.shape)} {tensor.dtype}", what)
        self._channel.add(tensor, what)

    def barrier(self, what: str) -> None:
        self._compare("barrier", what)
        self._channel.barrier(what)

    def _compare(self, call: str, what: str) -> None:
        self._calls += 1
        own = f"call {self._calls} ({what}: {call})"
        digest = int.from_bytes(blake2b(own.encode(), digest_size=7).digest())
        if len(set(self._channel.gather(torch.tensor([digest]), own).flatten().tolist())) > 1:
            told = self._channel.collect(own.encode(), own)
            calls = [f"rank {rank} is at {text.decode()}" for rank, text in zip(self.ranks, told, strict=True)]
            raise RunError(f"the ranks of `{self.name}` don't do the same: {'; '.join(calls)}")

    def _compare_sizes(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int], what: str) -> None:
        """A message that is longer than its buffer would end the receiver without a word."""
        sent = [outgoing[i].numel() if i in outgoing else 0 for i in range(self.size)]
        due = [incoming.get(i, 0) for i in range(self.size)]
        every = self._channel.gather(torch.tensor([sent, due]), what)
        for source, target in (every[:, 0] != every[:, 1].T).nonzero().tolist():
            raise RunError(
                f"{what}: rank {self.ranks[source]} sends {int(every[source, 0, target])} bytes to rank "
                f"{self.ranks[target]}, which expects {int(every[target, 1, source])}"
            )
