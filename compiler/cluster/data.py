"""The data of a cluster. Units: bytes, seconds, bytes/s, FLOP/s; bandwidths are of one device in one direction."""

from collections.abc import Mapping
from dataclasses import dataclass


class ClusterError(ValueError):
    """A cluster that can't be: the message names the value, what is allowed and what to write."""


@dataclass(frozen=True)
class Device:
    """What one device can do.

    flops: dense bf16 FLOP/s that its power lets it sustain, without sparsity. memory: bytes it can hold.
    bandwidth: bytes/s of that memory. link: bytes/s to the others of its node, in one direction. nic: bytes/s to other
    nodes, its share of its node's. host: bytes/s from and to the host's memory. *_latency: seconds of one hop.
    per_node: devices of a usual node, or of what one fast link joins. fp8: whether it computes fp8 at twice the rate.
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


@dataclass(frozen=True)
class Node:
    """A machine, or more exactly the devices that a fast link joins. devices: how many, all alike."""

    device: Device
    devices: int


@dataclass(frozen=True)
class Slice:
    """Some devices of a cluster, alike, `per_node` of them on each node they use. The cost model's view of a mesh."""

    device: Device
    devices: int
    per_node: int

    @property
    def nodes(self) -> int:
        """How many nodes it touches."""
        return -(-self.devices // self.per_node)


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
    def is_equal(self) -> bool:
        """Whether all nodes are alike."""
        return len(set(self.nodes)) <= 1

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

        Raises ClusterError for ranks that aren't there, and where the nodes they touch are unequal: the cost model
        takes devices of one kind, the same number on each node (the last may be used in part).
        """
        wanted = self.devices - first if devices is None else devices
        if wanted < 1 or first < 0 or first + wanted > self.devices:
            raise ClusterError(
                f"devices {first} to {first + wanted - 1} aren't in {self.name}: it has devices 0 to {self.devices - 1}"
            )
        used = self._used(first, wanted)
        each = list(used.values())
        kinds = {self.nodes[n].device for n in used}
        if len(kinds) > 1 or any(count != each[0] for count in each[1:-1]) or each[-1] > each[0]:
            shown = " + ".join(f"{count} {self.nodes[n].device.name}" for n, count in used.items())
            raise ClusterError(
                f"devices {first} to {first + wanted - 1} of {self.name} are {shown}: "
                "the cost model takes devices of one kind, the same number on each node"
            )
        return Slice(kinds.pop(), wanted, each[0])

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
