"""Where slots may be: runs of nodes that are alike, and spans across them, where all wait for the slowest."""

from collections.abc import Iterable, Sequence

from ..cluster import Cluster
from .instance import Area, Request, common, is_within

USABLE = 0.95
"""Of a device's memory, what phases may take together: the rest is the driver's and fragmentation."""

SIXTEENTHS = 16
FEW_NODES = 8


def areas_of(cluster: Cluster, memory: float | None = None) -> tuple[Area, ...]:
    """A cluster's runs of nodes that are alike. memory: bytes that a device may use, else a share of what it has."""
    return tuple(Area(x.first, x.devices, x.per_node, memory or USABLE * x.device.memory) for x in cluster.pools)


def spans_of(cluster: Cluster, areas: Sequence[Area], requests: Iterable[Request]) -> tuple[Area, ...]:
    """Ranks across areas that one slot may take: the whole cluster, and those that lines name."""
    whole = range(cluster.devices)
    named = (r.ranks for r in requests if r.ranks is not None and r.ranks.stop <= whole.stop)
    across = (x for x in dict.fromkeys((whole, *named)) if not any(is_within(x, area.ranks) for area in areas))
    return tuple(_span(cluster, ranks, areas) for ranks in across)


def _span(cluster: Cluster, ranks: range, areas: Sequence[Area]) -> Area:
    memory = min(a.memory for a in areas if common(ranks, a.ranks))
    return Area(ranks.start, len(ranks), cluster.slice(len(ranks), ranks.start).per_node, memory)


def slot_sizes(area: Area) -> tuple[int, ...]:
    """Sizes that a slot may have: parts of a node that divide each other, few nodes, sixteenths of the area.

    Sixteenths are rounded to what many degrees divide; powers of two are among them, however many nodes there are.
    """
    each, nodes = area.unit, -(-area.devices // area.unit)
    parts = [s for s in _chain(each) if s <= area.devices]
    step = 1 << max(0, (nodes // SIXTEENTHS).bit_length() - 1)
    sixteenths = (nodes * k // SIXTEENTHS // step * step for k in range(1, SIXTEENTHS + 1))
    powers = (1 << k for k in range(nodes.bit_length()))
    counts = {*range(1, min(nodes, FEW_NODES) + 1), *sixteenths, *powers, nodes}
    whole = [n * each for n in counts if 0 < n * each <= area.devices]
    return tuple(sorted({*parts, *whole, area.devices}))


def _chain(devices: int) -> list[int]:
    """Divisors of a node, each dividing the next: halves as long as they are whole, then 1."""
    found = [devices]
    while found[-1] % 2 == 0:
        found.append(found[-1] // 2)
    return [*found, 1]
