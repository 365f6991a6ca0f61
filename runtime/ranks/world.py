"""The world: all ranks of a run, and the groups in which they communicate."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from .channel import Alone, Channel, GlooChannel
from .order import Ordered
from .rollcall import Presence, call_roll, connect, environment

TIMEOUT = timedelta(seconds=600)
JOIN_TIMEOUT = timedelta(seconds=120)


@dataclass(eq=False)
class World:
    """The ranks of a run as one of them sees them; without arguments a world of one, without torch.distributed.

    Attributes:
        rank: the own number, from 0.
        size: how many ranks there are.
        local_rank: the own number on this node.
        store: the ranks' common store; None in a world of one.
        timeout: the deadline of every wait.
        peers: the machine and the process of each rank.
        check_order: whether ranks compare what they are about to do whenever they communicate.
        place: what this rank is doing ("step 3, `reward`"); the watch tells it to the others once it has changed.
        is_ending: whether the watch is about to end this rank.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    store: Store | None = None
    timeout: timedelta = TIMEOUT
    peers: Sequence[Presence] = ()
    check_order: bool = False
    place: str = "the start"
    is_ending: bool = False
    _channels: dict[str, Channel] = field(default_factory=dict)
    _groups: dict[tuple[int, ...], dist.ProcessGroup | None] = field(default_factory=dict)

    @classmethod
    def join(
        cls,
        *,
        rank: int | None = None,
        size: int | None = None,
        store: Store | None = None,
        timeout: timedelta = TIMEOUT,
        join_timeout: timedelta = JOIN_TIMEOUT,
        check_order: bool = False,
    ) -> "World":
        """Find the other ranks and initialise torch.distributed. After `close`, another world can be joined.

        Args:
            rank: the own number; None takes it, the size and the local rank from torchrun's environment.
            size: how many ranks there are.
            store: a store common to these ranks alone; None connects to the one that torchrun's environment names.
            timeout: the deadline of every wait from now on.
            join_timeout: how long to wait for the others to be there.
            check_order: compare what the ranks are about to do whenever they communicate.

        Raises:
            RunError: the environment says nothing of ranks, the store isn't where it says, or ranks are missing.
        """
        if rank is None or size is None:
            rank, size, local = environment(("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        else:
            local = rank
        store = connect(rank, join_timeout) if store is None else store
        peers = call_roll(store, rank, size, join_timeout)
        on_node = sum(p.node == peers[rank].node for p in peers)
        dist.init_process_group(
            _backends(on_node), store=PrefixStore("torch", store), rank=rank, world_size=size, timeout=timeout
        )
        world = cls(rank, size, local, store, timeout, peers, check_order)
        world.open({"world": range(size)})
        return world

    def open(self, names: Mapping[str, Sequence[int]]) -> None:
        """Create the groups of these names: all ranks call this alike, with the groups of others too.

        Names of the same ranks are one group: gloo's connections are made once for them.
        """
        for name, given in names.items():
            ranks = tuple(sorted(given))
            if len(ranks) > 1 and ranks not in self._groups:
                self._groups[ranks] = self._new_group(ranks)
            if self.rank in ranks:
                self._channels[name] = self._new_channel(name, ranks)

    def channel(self, name: str) -> Channel:
        """The channel of a group that this rank is in."""
        return self._channels[name]

    def where(self, rank: int) -> str | None:
        """What a rank was last known to be doing; None if it hasn't said."""
        if rank == self.rank:
            return self.place
        if self.store is None:
            return None
        with suppress(RuntimeError):  # the store is gone with its host: that is told elsewhere
            if self.store.check([place_key(rank)]):
                return str(self.store.get(place_key(rank)), "utf-8")
        return None

    def close(self) -> None:
        """Leave the groups. The other ranks don't have to be alive."""
        self._channels.clear()
        self._groups.clear()
        if self.store is not None and dist.is_initialized():
            dist.destroy_process_group()

    # ------------------------------------------------------------ groups

    def _new_group(self, ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
        made = dist.new_group(list(ranks), timeout=self.timeout, backend="gloo")
        return made if isinstance(made, dist.ProcessGroup) else None  # for ranks outside it is a mark

    def _new_channel(self, name: str, ranks: tuple[int, ...]) -> Channel:
        group = self._groups.get(ranks)
        if group is None:
            return Alone(name, self.rank)
        channel = GlooChannel(name, ranks, self.rank, group, self.timeout, self.where)
        return Ordered(channel) if self.check_order else channel


def place_key(rank: int) -> str:
    """The store's key for what a rank is doing."""
    return f"at/{rank}"


def _backends(on_node: int) -> str:
    """torch's backends: gloo for the CPU; NCCL where every rank of this node has a GPU of its own."""
    if not torch.cuda.is_available():
        return "gloo"
    return "cpu:gloo,cuda:nccl" if on_node <= torch.cuda.device_count() else "cpu:gloo,cuda:gloo"


def _alone() -> World:
    world = World()
    world.open({"world": (0,)})
    return world


ALONE = _alone()
