"""Clusters written as a short string: `16xH100`, `2x8xH100`, `h100`, `local`, sums of these, or a TOML file's name."""

import re
from collections.abc import Sequence
from pathlib import Path

from .build import LARGEST, cluster_of
from .data import Cluster, ClusterError, Node
from .files import read_cluster
from .local import local_cluster
from .presets import device_named

FORMS = (
    "`16xH100` (devices), `2x8xH100` (nodes × devices), a device such as `h100`, `local`, "
    "sums such as `16xH100+8xA100`, or a .toml file"
)


def parse_cluster(text: str, declared: Sequence[str] = ()) -> Cluster:
    """The cluster a string names. declared: what a flow's file calls clusters of its own, to be told of.

    `NxDEVICE` is N devices in nodes of the device's usual size (the last node may hold fewer), `NxMxDEVICE` N nodes of
    M devices, `DEVICE` one usual node. Raises ClusterError, and OSError for a file that can't be read.
    """
    plain = text.strip()
    if plain.endswith(".toml"):
        return read_cluster(Path(plain))
    if plain.lower() == "local":
        return local_cluster()
    parts = [_kind(text, part.strip(), declared) for part in plain.split("+")]
    return parts[0] if len(parts) == 1 else Cluster(plain, tuple(node for part in parts for node in part.nodes))


def _kind(text: str, plain: str, declared: Sequence[str]) -> Cluster:
    """Devices of one kind, of which the whole text may name more."""
    match = re.fullmatch(r"(?:(-?\d+)\s*[x×]\s*)?(?:(-?\d+)\s*[x×]\s*)?([A-Za-z].*)", plain)
    if match is None:
        raise ClusterError(f"`{text}` is no cluster: write {FORMS}")
    first, second, name = match.groups()
    counts = [_count(text, n) for n in (first, second) if n is not None]
    device = device_named(name, () if counts else declared)  # `2xlab` isn't a cluster, whatever `lab` is
    match counts:
        case [nodes, each]:
            return cluster_of(device.name, {"nodes": nodes, "devices": each}, plain)
        case [devices]:
            whole, rest = divmod(devices, device.per_node)
            nodes_of = (Node(device, device.per_node),) * whole + ((Node(device, rest),) if rest else ())
            return Cluster(plain, nodes_of)
    return cluster_of(device.name, {}, plain)


def _count(text: str, number: str) -> int:
    if not 1 <= int(number) <= LARGEST:
        raise ClusterError(f"`{text}`: {number} devices or nodes; it is a number from 1 to {LARGEST}")
    return int(number)
