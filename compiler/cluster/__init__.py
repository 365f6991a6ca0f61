"""Clusters: what devices can do, how many there are, and how they are joined."""

from .build import OVERRIDES, cluster_of
from .data import Cluster, ClusterError, Device, Node, Pool, Slice, slowest
from .files import read_cluster
from .local import local_cluster
from .parse import parse_cluster
from .presets import PRESETS, device_named

__all__ = [
    "OVERRIDES",
    "PRESETS",
    "Cluster",
    "ClusterError",
    "Device",
    "Node",
    "Pool",
    "Slice",
    "cluster_of",
    "device_named",
    "local_cluster",
    "parse_cluster",
    "read_cluster",
    "slowest",
]
