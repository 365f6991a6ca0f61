"""Clusters in TOML files.

    device = "h100"          # the preset to start from
    nodes = 4
    devices = 8              # per node
    nic_gb_per_s = 3.1       # figures that differ, see `build.OVERRIDES`

or, where nodes differ, one `[[node]]` table per kind with the same options and `nodes` of them. A device that is no
preset needs `tflops`, `memory_gb`, `bandwidth_gb_per_s`, `link_gb_per_s` and `nic_gb_per_s`.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from .build import OVERRIDES, check_names, cluster_of
from .data import Cluster, ClusterError, Device, Node
from .presets import PRESETS, device_named

OWN = ("device", "nodes", "devices")
NEEDED = ("tflops", "memory_gb", "bandwidth_gb_per_s", "link_gb_per_s", "nic_gb_per_s")


def read_cluster(path: Path) -> Cluster:
    """The cluster of a TOML file. Raises ClusterError naming the file and the entry; OSError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ClusterError(f"{path.name} is no TOML: {error}") from None
    try:
        return Cluster(path.stem, _nodes(document))
    except ClusterError as error:
        raise ClusterError(f"{path.name}: {error}") from None


def _nodes(document: Mapping[str, object]) -> tuple[Node, ...]:
    if "node" not in document:
        return _table(document, "the cluster")
    tables = document["node"]
    if len(document) > 1 or not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise ClusterError("with `[[node]]` tables, everything else stands in them")
    return tuple(node for number, table in enumerate(tables) for node in _table(table, f"node table {number}"))


def _table(table: Mapping[str, object], where: str) -> tuple[Node, ...]:
    check_names(table, OWN, where)
    options = {k: v for k, v in table.items() if k != "device"}
    name = table.get("device", "")
    if not isinstance(name, str):
        raise ClusterError(f"{where}: `device = {name}`: it is a text, the name of a preset or your own")
    if name and not set(NEEDED) <= set(table):
        device_named(name)
        return cluster_of(name, options).nodes
    missing = [n for n in NEEDED if n not in table]
    if missing:
        raise ClusterError(
            f"{where} names no `device`, so it must say {', '.join(f'`{m}`' for m in missing)} "
            f"(presets are {', '.join(PRESETS)})"
        )
    shell = cluster_of("h100", options).nodes
    device = _renamed(shell[0].device, name or "device", options)
    return tuple(Node(device, node.devices) for node in shell)


def _renamed(device: Device, name: str, options: Mapping[str, object]) -> Device:
    """A device of its own: what the file doesn't say is that of a slow one."""
    given = {o.field for n, o in OVERRIDES.items() if n in options}
    host = device.host if "host" in given else 25e9
    return Device(
        name,
        device.flops,
        device.memory,
        device.bandwidth,
        device.link,
        device.nic,
        host,
        device.link_latency,
        device.nic_latency,
        sequences=device.sequences,
    )
