"""The data of a cluster. Units: bytes, seconds, bytes/s, FLOP/s; bandwidths are of one device in one direction."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import groupby


class ClusterError(ValueError):
    """A cluster that can't be: the message names the value, what is allowed and what to write."""


@dataclass(frozen=True)
class Device:
    """What one device can do.

    flops: dense bf16 FLOP/s that its power lets it sustain, without sparsity. memory: bytes it can hold.
    bandwidth: bytes/s of that memory. link: bytes/s to the others of its node, in one direction. nic: bytes/s to other
    nodes, its share of its node's. host: bytes/s from and to the host's memory. *_latency: seconds of one hop.
    per_node: devices of a usual node, or of what one fast link joins. fp8: whether it computes fp8 at twice the rate.
    sequences: that an engine runs at once at most; vLLM's `max_num_seqs` where nobody sets it.
    """

    name: str
    flops: float
    memory: float
    bandwidth: float
    link: float
    nic: float
    host: float = 25e9
    link_latency: float = 1.9e-6
    nic_latency: float = 4e-6
    per_node: int = 8
    fp8: bool = False
    sequences: float = 1024


@dataclass(frozen=True)
class Node:
    """A machine, or more exactly the devices that a fast link joins. devices: how many, all alike."""

    device: Device
    devices: int


@dataclass(frozen=True)
class Slice:
    """Some devices of a cluster, `per_node` of them on each node they use. The cost model's view of a mesh.

    device: what each of them does at least: of unequal ones, all wait for the slowest.
    """

    device: Device
    devices: int
    per_node: int

    @property
    def nodes(self) -> int:
        """How many nodes it touches."""
        return -(-self.devices // self.per_node)


@dataclass(frozen=True)
class Pool:
    """Neighbouring nodes that are alike: `devices` ranks from `first` on, `per_node` of them on each but the last."""

    first: int
    devices: int
    per_node: int
    device: Device

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.devices)


@dataclass(frozen=True)
class Cluster:
    """Nodes in order; device numbers (ranks) count through them. Nodes may be unequal."""

    name: str
    nodes: tuple[Node, ...]

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return sum(node.devices for node in self.nodes)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The cluster as runs of nodes of one device, the same number on each; the last of a run may have fewer."""
        found: list[Pool] = []
        first = 0
        for node, run in groupby(self.nodes):
            count = len(list(run))
            last = found[-1] if found else None
            if last is not None and count == 1 and _ends(last, node):
                found[-1] = replace(last, devices=last.devices + node.devices)
            else:
                found.append(Pool(first, count * node.devices, node.devices, node.device))
            first += count * node.devices
        return tuple(found)

    @property
    def memory(self) -> float:
        """Bytes of all devices together."""
        return sum(node.devices * node.device.memory for node in self.nodes)

    def node_of(self, rank: int) -> int:
        """The number of the node that holds a rank. Raises ClusterError for a rank that isn't there."""
        left = rank
        for number, node in enumerate(self.nodes):
            if 0 <= left < node.devices:
                return number
            left -= node.devices
        raise ClusterError(f"device {rank} isn't in {self.name}: it has devices 0 to {self.devices - 1}")

    def slice(self, devices: int | None = None, first: int = 0) -> Slice:
        """`devices` ranks from `first` on (None: all that follow).

        Of unequal nodes: a device that is as slow and small as the worst in each figure, and as many on each node as
        divide what every node has. Raises ClusterError for ranks that aren't there.
        """
        wanted = self.devices - first if devices is None else devices
        if wanted < 1 or first < 0 or first + wanted > self.devices:
            raise ClusterError(
                f"devices {first} to {first + wanted - 1} aren't in {self.name}: it has devices 0 to {self.devices - 1}"
            )
        used = self._used(first, wanted)
        each = list(used.values())
        is_even = all(count == each[0] for count in each[:-1]) and each[-1] <= each[0]
        return Slice(slowest({self.nodes[n].device for n in used}), wanted, each[0] if is_even else math.gcd(*each))

    def _used(self, first: int, wanted: int) -> Mapping[int, int]:
        """How many of these ranks each node holds, by its number."""
        used: dict[int, int] = {}
        start = 0
        for number, node in enumerate(self.nodes):
            count = min(first + wanted, start + node.devices) - max(first, start)
            if count > 0:
                used[number] = count
            start += node.devices
        return used


def _ends(pool: Pool, node: Node) -> bool:
    """Whether a node is the last of a pool, with fewer devices than its others."""
    return node.device == pool.device and node.devices < pool.per_node and pool.devices % pool.per_node == 0


SLOW = ("link_latency", "nic_latency")
"""Figures of a device that are worse where they are larger."""


def slowest(devices: Iterable[Device]) -> Device:
    """A device that does in each figure what the worst of some does: all wait for it where they work together."""
    found = sorted(set(devices), key=lambda d: (d.flops, d.name))
    if len(found) == 1:
        return found[0]
    figures = [f.name for f in fields(Device) if f.name != "name"]
    worst = {n: (max if n in SLOW else min)(getattr(d, n) for d in found) for n in figures}
    return Device(" + ".join(dict.fromkeys(d.name for d in found)), **worst)
