"""Channels: the ranks among which an instruction communicates on the CPU, with a deadline on every wait.

gloo doesn't compare the sizes of two sides: a message that is longer than its buffer ends the receiver without an
exception, a shorter one is taken for whole. So nothing here is sent whose size the receiver hasn't learned before.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import RunError

_FEW = 8  # ranks that a message lists one by one
_OF_GLOO = ("/gloo/transport/", "Application timeout caused pair closure")


class PeerError(RunError):
    """Another rank didn't answer in time, or is gone: a consequence of what happened there.

    awaited: the ranks that are late and known to be somewhere else.
    """

    def __init__(self, text: str, awaited: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.awaited = tuple(awaited)


class Channel(ABC):
    """The ranks among which an instruction communicates, on the CPU. Every wait has a deadline and says what and whom.

    All ranks of a channel make the same calls in the same order. `what` names the instruction in errors.

    Attributes:
        name: how the plan calls the group.
        ranks: its ranks in the world, ascending.
        index: the own position among them.
    """

    name: str
    ranks: tuple[int, ...]
    index: int

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return len(self.ranks)

    @abstractmethod
    def gather(self, numbers: Tensor, what: str) -> Tensor:
        """All ranks' numbers, [k] -> [size, k]. k and the dtype are the same everywhere."""

    @abstractmethod
    def share(self, data: bytes, what: str, source: int = 0) -> bytes:
        """The bytes that the rank at index `source` gives; those of the others are ignored."""

    @abstractmethod
    def collect(self, data: bytes, what: str) -> list[bytes]:
        """All ranks' bytes, of any length, by index."""

    @abstractmethod
    def exchange(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int], what: str) -> dict[int, Tensor]:
        """Send uint8 tensors to some ranks and receive others, all at once.

        Args:
            outgoing: what each rank is sent, by index: uint8 [bytes]. It has as many bytes as that rank expects.
            incoming: how many bytes each rank sends, by index. What is for this rank itself is copied.

        Returns:
            What came, uint8 [bytes], for every index in `incoming`.
        """

    @abstractmethod
    def add(self, tensor: Tensor, what: str) -> None:
        """The sum over the ranks, in place; the same bits everywhere."""

    @abstractmethod
    def barrier(self, what: str) -> None:
        """Go on when all ranks are here."""


class Alone(Channel):
    """A channel of one rank: what one process has, so that a plan runs by the same code there."""

    def __init__(self, name: str = "world", rank: int = 0) -> None:
        self.name, self.ranks, self.index = name, (rank,), 0

    def gather(self, numbers: Tensor, what: str) -> Tensor:
        return numbers.unsqueeze(0).clone()

    def share(self, data: bytes, what: str, source: int = 0) -> bytes:
        return data

    def collect(self, data: bytes, what: str) -> list[bytes]:
        return [data]

    def exchange(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int], what: str) -> dict[int, Tensor]:
        return {index: _own(outgoing, index, size, what) for index, size in incoming.items()}

    def add(self, tensor: Tensor, what: str) -> None:
        pass

    def barrier(self, what: str) -> None:
        pass


class GlooChannel(Channel):
    """A channel over a gloo process group, whose timeout is the deadline of every wait.

    Args:
        name: how the plan calls the group.
        ranks: its ranks in the world, ascending.
        rank: the own rank in the world.
        group: the process group of these ranks.
        timeout: the group's timeout.
        where: what a rank was last seen doing, None if that isn't known.
    """

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        group: dist.ProcessGroup,
        timeout: timedelta,
        where: Callable[[int], str | None],
    ) -> None:
        self.name, self.ranks, self.index = name, tuple(ranks), list(ranks).index(rank)
        self._group, self._timeout, self._where = group, timeout, where

    def gather(self, numbers: Tensor, what: str) -> Tensor:
        out = numbers.new_empty((self.size, *numbers.shape))
        with self._waiting(what):
            dist.all_gather(list(out), numbers.contiguous(), group=self._group)
        return out

    def share(self, data: bytes, what: str, source: int = 0) -> bytes:
        length = torch.tensor([len(data)])
        with self._waiting(what, [source]):
            dist.broadcast(length, group=self._group, group_src=source)
            if self.index == source:
                buffer = as_bytes(data)
            else:
                buffer = torch.empty(int(length), dtype=torch.uint8)
            if buffer.numel():
                dist.broadcast(buffer, group=self._group, group_src=source)
        return data if self.index == source else buffer.numpy().tobytes()

    def collect(self, data: bytes, what: str) -> list[bytes]:
        lengths = self.gather(torch.tensor([len(data)]), what).flatten().tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(data)] = as_bytes(data)
        if not padded.numel():
            return [b""] * self.size
        rows = self.gather(padded, what)
        return [row[:length].numpy().tobytes() for row, length in zip(rows, lengths, strict=True)]

    def exchange(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int], what: str) -> dict[int, Tensor]:
        arrived = {i: torch.empty(size, dtype=torch.uint8) for i, size in incoming.items() if i != self.index}
        waits: list[tuple[int, dist.Work]] = []
        with self._waiting(what):
            for i, buffer in arrived.items():
                if buffer.numel():
                    waits.append((i, _posted(dist.irecv(buffer, group=self._group, group_src=i))))
            sent = {i: x.contiguous() for i, x in outgoing.items() if i != self.index and x.numel()}
            for i, buffer in sent.items():  # `sent` keeps the buffers alive until they have left
                waits.append((i, _posted(dist.isend(buffer, group=self._group, group_dst=i))))
        for i, work in waits:
            with self._waiting(what, [i]):
                work.wait(self._timeout)
        if self.index in incoming:
            arrived[self.index] = _own(outgoing, self.index, incoming[self.index], what)
        return {i: arrived[i] for i in incoming}

    def add(self, tensor: Tensor, what: str) -> None:
        with self._waiting(what):
            if tensor.is_contiguous():
                dist.all_reduce(tensor, group=self._group)
            else:
                whole = tensor.contiguous()
                dist.all_reduce(whole, group=self._group)
                tensor.copy_(whole)

    def barrier(self, what: str) -> None:
        with self._waiting(what):
            dist.barrier(group=self._group)

    # ------------------------------------------------------------ what is said when it fails

    @contextmanager
    def _waiting(self, what: str, indices: Sequence[int] | None = None) -> Iterator[None]:
        """Turn gloo's errors into PeerErrors. indices: whom it waits for; None: any rank of the channel."""
        try:
            yield
        except RuntimeError as error:
            awaited = range(self.size) if indices is None else indices
            others = [self.ranks[i] for i in awaited if i != self.index] or [r for r in self.ranks if r != self._own]
            raise self._error(what, others, str(error)) from error

    @property
    def _own(self) -> int:
        return self.ranks[self.index]

    def _error(self, what: str, others: Sequence[int], cause: str) -> PeerError:
        late = "timed out" in cause.lower() or "timeout" in cause.lower()
        behind = self._elsewhere(others) if late else {}
        if behind:
            return PeerError(self._behind(what, behind), list(behind))
        return PeerError(self._told(what, others, cause, late))

    def _elsewhere(self, others: Sequence[int]) -> dict[int, str]:
        """Where those others are that aren't where this rank is, as far as they have said so."""
        own = self._where(self._own)
        return {rank: place for rank in others if (place := self._where(rank)) and place != own}

    def _behind(self, what: str, places: Mapping[int, str]) -> str:
        """Who is waited for comes first: who waits has done nothing wrong."""
        late = "; ".join(f"rank {rank} is still at {place}" for rank, place in list(places.items())[:_FEW])
        seconds, them = self._timeout.total_seconds(), "it" if len(places) == 1 else "them"
        return f"{late} after {seconds:g} s; rank {self._own} waits for {them} at {what} (--timeout)"

    def _told(self, what: str, others: Sequence[int], cause: str, late: bool) -> str:
        if late:
            head = f"waited {self._timeout.total_seconds():g} s for {ranks_text(others)} (--timeout)"
        else:
            head = f"lost the connection to {ranks_text(others)} ({_first_line(cause)})"
        return "; ".join([f"{what}: rank {self._own} {head}", *self._places(others)])

    def _places(self, others: Sequence[int]) -> list[str]:
        """Where others are, as far as they have said so; of many, those that aren't where this rank is."""
        places = {rank: place for rank in others if (place := self._where(rank))}
        if len(places) > _FEW:
            own = self._where(self._own)
            places = {rank: place for rank, place in places.items() if place != own}
        return [f"rank {rank} is at {place}" for rank, place in list(places.items())[:_FEW]]


def as_peer_error(error: BaseException, rank: int) -> BaseException:
    """A PeerError for what torch raises where a collective of a model lost a rank; other errors as they are."""
    text = str(error)
    by_gloo = isinstance(error, RuntimeError) and any(mark in text for mark in _OF_GLOO)
    if not by_gloo and not isinstance(error, dist.DistError):
        return error
    late = "timed out" in text.lower()
    head = "waited in vain for other ranks" if late else "lost the connection to other ranks"
    return PeerError(f"rank {rank} {head} ({_first_line(text)})")


def as_bytes(data: bytes) -> Tensor:
    """The bytes as uint8 [bytes]."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 2 and 3`, `ranks 0, 1, … and 63`."""
    names = [str(rank) for rank in ranks]
    if len(names) > _FEW:
        names = [*names[:2], "…", names[-1]]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def _own(outgoing: Mapping[int, Tensor], index: int, size: int, what: str) -> Tensor:
    own = outgoing.get(index, torch.empty(0, dtype=torch.uint8))
    if own.numel() != size:
        raise RuntimeError(f"{what}: {own.numel()} bytes for this rank itself, which expects {size}")
    return own.clone()


def _posted(work: dist.Work | None) -> dist.Work:
    if work is None:
        raise RuntimeError("this rank isn't in the process group")
    return work


def _first_line(text: str) -> str:
    """The first sentence of gloo's message, without the place in its source."""
    line = text.strip().splitlines()[0] if text.strip() else "no reason given"
    return (line.rpartition("] ")[2] if line.startswith("[") else line).split(". ")[0]
