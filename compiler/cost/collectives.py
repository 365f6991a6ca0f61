"""Time of collectives: latency + bytes / bandwidth, by ring or tree, inside a node and between nodes.

Formulas and latencies as in NCCL's `src/graph/tuning.cc`. bytes: the whole buffer, on every rank (all-reduce) or of all
ranks together (all-gather, reduce-scatter, all-to-all).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from ..cluster import Device, Slice
from .constants import Constants
from .work import Layout

BASE = 6.6e-6
"""Seconds of a collective before its first hop (NCCL's ring)."""
NARROW = 0.4
"""Of the bandwidth, what the protocol of small messages reaches; its hops take `QUICK` of the others' latency."""
QUICK = 0.32
TREE = 0.92
"""Of a ring's bandwidth, a tree's."""


@dataclass(frozen=True)
class Group:
    """Ranks that communicate: `size` of them, `per_node` on each node."""

    size: int
    per_node: int
    device: Device

    @property
    def nodes(self) -> int:
        return -(-self.size // self.per_node)

    @property
    def bandwidth(self) -> float:
        """Bytes/s of one ring through all of them: its links, or what their NICs carry out of a node together."""
        if self.nodes == 1:
            return self.device.link
        return min(self.device.link, self.device.nic * self.per_node)


STRIDES = ("tp", "cp", "fsdp", "dp", "pp")
"""Axes in the order of ranks, innermost first."""


@lru_cache(4096)
def group_of(axis: str, layout: Layout, devices: Slice) -> Group:
    """The groups of an axis. `data` is dp and fsdp together; `ep` the first of it."""
    inner = STRIDES[: STRIDES.index({"data": "fsdp", "ep": "fsdp"}.get(axis, axis))]
    stride = math.prod(getattr(layout, a) for a in inner)
    size = getattr(layout, axis)
    return Group(size, max(1, min(size, devices.per_node // stride)), devices.device)


def all_reduce(size: float, group: Group, c: Constants) -> float:
    """Seconds. The faster of ring and tree."""
    if group.size == 1:
        return 0
    n = group.size
    ring = _best(2 * (n - 1), 2 * (group.nodes - 1), 2 * (n - 1) / n * size, group, c)
    if group.nodes == 1:
        return ring
    depth = math.ceil(math.log2(group.nodes))
    return min(ring, _best(2 * (group.per_node - 1 + depth), 2 * depth, 2 * size / TREE, group, c))


def all_gather(size: float, group: Group, c: Constants) -> float:
    """Seconds. size: bytes of the gathered buffer. A reduce-scatter takes the same."""
    n = group.size
    return _best(n - 1, group.nodes - 1, (n - 1) / n * size, group, c) if n > 1 else 0


def all_to_all(size: float, group: Group, c: Constants) -> float:
    """Seconds. size: bytes that each rank holds, spread evenly over all ranks."""
    n = group.size
    if n == 1:
        return 0
    inside = (group.per_node - 1) / n * size / (group.device.link * c.network)
    outside = (n - group.per_node) / n * size / (group.device.nic * c.network)
    latency = group.device.link_latency if group.nodes == 1 else group.device.nic_latency
    return BASE + latency * math.log2(n) + inside + outside


def deal(size: float, copies: int, group: Group, c: Constants) -> float:
    """Seconds in which each rank sends its tokens to `copies` experts, spread at random over the group; as long back.

    size: bytes of one rank's tokens, each once. To a node a token goes once over the NIC, to a device once over links,
    whatever number of its experts is there; both go on at once (DeepSeek-V3, 2412.19437, section 3.2.2; DeepEP).
    """
    if group.size == 1:
        return 0
    inside = size * _distinct(group.size, copies) * (group.per_node - 1) / group.per_node / group.device.link
    outside = size * _distinct(group.nodes, copies) * (group.nodes - 1) / group.nodes / group.device.nic
    latency = group.device.link_latency if group.nodes == 1 else group.device.nic_latency
    return BASE + latency * math.log2(group.size) + max(inside, outside) / c.network


def _distinct(places: int, draws: int) -> float:
    """How many of so many places are drawn, in the mean."""
    return places * (1 - (1 - 1 / places) ** draws)


def send(size: float, group: Group, c: Constants) -> float:
    """Seconds from one rank of a group to the next."""
    if group.size == 1:
        return 0
    d = group.device
    bandwidth, latency = (d.link, d.link_latency) if group.per_node > 1 else (d.nic, d.nic_latency)
    return BASE + latency + size / (bandwidth * c.network)


def _best(hops: int, between: int, size: float, group: Group, c: Constants) -> float:
    """The faster of the protocols for small and for large messages. between: hops of these that leave a node."""
    d = group.device
    latency = (hops - between) * d.link_latency + between * d.nic_latency
    seconds = size / (group.bandwidth * c.network)
    return BASE + min(QUICK * latency + seconds / NARROW, latency + seconds)
