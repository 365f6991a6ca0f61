"""Clusters of equal nodes from a device's name and options, as a `cluster` statement or a file gives them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...dsl.diagnostics import suggest
from ...dsl.vocabulary import CLUSTER_OPTIONS
from .data import Cluster, ClusterError, Device, Node
from .local import local_cluster
from .presets import device_named

LARGEST = 1_000_000
"""Nodes of a cluster, and devices of a node: a slip of the finger is beyond it."""


@dataclass(frozen=True)
class Override:
    """An option that replaces a figure of the device. scale: its unit in bytes, seconds, bytes/s or FLOP/s."""

    field: str
    scale: float


OVERRIDES = {
    "memory_gb": Override("memory", 1e9),
    "tflops": Override("flops", 1e12),
    "bandwidth_gb_per_s": Override("bandwidth", 1e9),
    "link_gb_per_s": Override("link", 1e9),
    "nic_gb_per_s": Override("nic", 1e9),
    "host_gb_per_s": Override("host", 1e9),
    "link_latency_us": Override("link_latency", 1e-6),
    "nic_latency_us": Override("nic_latency", 1e-6),
    "engine_sequences": Override("sequences", 1),
}
"""What a cluster may say of its devices, beside `nodes` and `devices` (per node); the vocabulary says what each is."""


def cluster_of(device: str, options: Mapping[str, object] | None = None, name: str | None = None) -> Cluster:
    """`nodes` × `devices` of a preset, with the figures that `options` replace.

    Without `devices`, a node has the preset's. Raises ClusterError.
    """
    options = options or {}
    check_names(options, ("nodes", "devices"), f"cluster `{name or device}`")
    if device == "local":
        return Cluster(name or "local", _local_nodes(options))
    made = overridden(device_named(device), options)
    nodes, each = _count(options, "nodes", 1), _count(options, "devices", made.per_node)
    return Cluster(name or f"{nodes}x{each}x{device}", (Node(made, each),) * nodes)


def _local_nodes(options: Mapping[str, object]) -> tuple[Node, ...]:
    """This machine's devices, dealt to as many nodes as were asked for."""
    nodes = _count(options, "nodes", 1)
    is_whole = nodes == 1 and "devices" not in options
    (whole,) = local_cluster(None if is_whole else nodes * _count(options, "devices", 1)).nodes
    return (Node(overridden(whole.device, options), whole.devices // nodes),) * nodes


def check_names(options: Mapping[str, object], more: tuple[str, ...], where: str) -> None:
    """Refuse an option that no cluster has."""
    known = [*more, *OVERRIDES]
    for name in options:
        if name not in known:
            near = suggest(name, known) or f"known are {', '.join(known)}"
            raise ClusterError(f"{where} has no option `{name}`: {near}")


def overridden(device: Device, options: Mapping[str, object]) -> Device:
    """The device with the figures that `options` replace."""
    given = {OVERRIDES[n].field: _positive(n, v) * OVERRIDES[n].scale for n, v in options.items() if n in OVERRIDES}
    return replace(device, **given) if given else device  # type: ignore[arg-type]


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ClusterError(f"`{name} = {value}`: it is a number above 0 ({CLUSTER_OPTIONS[name].doc})")
    return float(value)


def _count(options: Mapping[str, object], name: str, default: int) -> int:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise ClusterError(f"`{name} = {value}`: it is a whole number from 1 to {LARGEST}")
    return value
