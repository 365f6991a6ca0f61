"""`local`: what this machine has, read from the operating system."""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

from .data import Cluster, ClusterError, Device, Node
from .presets import PRESETS, device_named

GPUS = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver lists its devices."""


def local_cluster(devices: int | None = None) -> Cluster:
    """One node: this machine's GPUs if it has known ones, else its cores and memory, split among `devices` (1)."""
    found = _gpus(GPUS)
    if found:
        wanted = devices or len(found)
        if wanted > len(found):
            raise ClusterError(f"this machine has {len(found)} GPUs, not {wanted}")
        return Cluster("local", (Node(found[0], wanted),))
    share = devices or 1
    core = PRESETS["cpu"]
    times = max(1, cores() / share)
    device = replace(
        core,
        name="local",
        flops=core.flops * times,
        memory=memory() / share,
        bandwidth=core.bandwidth * times,
        link=core.link * times,
        host=core.bandwidth * times,
    )
    return Cluster("local", (Node(device, share),))


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> float:
    """Bytes of memory this machine has, or this process's control group if that has less."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if hasattr(os, "sysconf") else 8e9
    return min([total, *_limits()])


def _limits() -> list[float]:
    files = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    texts = [f.read_text().strip() for f in files if f.is_file()]
    return [float(t) for t in texts if t.isdigit()]


@cache
def _gpus(folder: Path) -> tuple[Device, ...]:
    """The GPUs the driver lists, if all are alike and known."""
    files = sorted(folder.glob("*/information")) if folder.is_dir() else []
    lines = [line for f in files for line in f.read_text().splitlines() if line.startswith("Model:")]
    try:
        found = tuple(device_named(_model(line)) for line in lines)
    except ClusterError:
        return ()
    return found if len(set(found)) == 1 else ()


def _model(line: str) -> str:
    words = line.removeprefix("Model:").replace("-", " ").split()
    return " ".join(w for w in words if w.upper() not in ("NVIDIA", "HBM3", "HBM3E", "PCIE"))
