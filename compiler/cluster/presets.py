"""Devices that are known by name.

Sources: NVIDIA's data sheets (dense bf16 FLOP/s, memory, its bandwidth, NVLink; half of NVLink's figure is one
direction); NICs as in the usual machines (DGX A100: 200 Gb/s per device, H100 and later 400 Gb/s); hop latencies of
NCCL's `src/graph/tuning.cc` (ring, LL128); host links PCIe 4 x16 25 GB/s, PCIe 5 x16 50 GB/s, NVLink-C2C as measured.
"""

import re
from collections.abc import Sequence

from ...dsl.diagnostics import suggest
from .data import ClusterError, Device

GB = 1e9
"""Bytes. Data sheets count bandwidth in powers of ten."""
GIB = 2.0**30
"""Bytes. Memory that is sold as 80 GB is 80 GiB, of which the driver shows a little less."""

H100_500W = (500 / 700) ** (2 / 3)
"""Of the 700 W part's FLOP/s, what 500 W sustain. Power grows with f·V²: with the cube of the clock where the voltage
follows it, in proportion where it doesn't. The 350 W part reaches about 0.63 of the 700 W one's matrix products."""


def _nvlink(
    name: str, tflops: float, memory: float, bandwidth: float, link: float, nic: float, host: float = 50, **more: int
) -> Device:
    """memory in GiB; bandwidth, link (both directions), nic and host in GB/s."""
    per_node, fp8, sequences = more.get("per_node", 8), bool(more.get("fp8", 1)), more.get("sequences", 1024)
    return Device(
        name,
        tflops * 1e12,
        memory * GIB,
        bandwidth * GB,
        link / 2 * GB,
        nic * GB,
        host * GB,
        per_node=per_node,
        fp8=fp8,
        sequences=sequences,
    )


FEW = 256
"""Sequences that vLLM runs at once on an A100, or on devices with less than 70 GiB, where nobody says how many
(`EngineArgs.get_batch_defaults`)."""

PRESETS = {
    device.name: device
    for device in (
        _nvlink("a100_40", 312, 40, 1555, 600, 25, 25, fp8=0, sequences=FEW),
        _nvlink("a100_80", 312, 80, 2039, 600, 25, 25, fp8=0, sequences=FEW),
        _nvlink("a800", 312, 80, 2039, 400, 25, 25, fp8=0, sequences=FEW),
        _nvlink("h100", 989.4, 80, 3350, 900, 50),
        _nvlink("h100_96", 989.4 * H100_500W, 96, 2400, 900, 50),  # 500 W
        _nvlink("h800", 989.4, 80, 3350, 400, 50),
        _nvlink("h200", 989.4, 141, 4800, 900, 50),
        _nvlink("h20", 148, 96, 4000, 900, 50),
        _nvlink("b200", 2250, 180, 8000, 1800, 50),
        _nvlink("gb200", 2500, 186, 8000, 1800, 50, 200, per_node=72),
        Device("l40s", 362.05e12, 45 * GIB, 864e9, 25e9, 12.5e9, link_latency=5.7e-6, fp8=True, sequences=FEW),
        Device("cpu", 50e9, 8 * GIB, 10 * GB, 5 * GB, 1.25 * GB, 5 * GB, 1e-5, 3e-5, per_node=1, sequences=FEW),
    )
}
"""By the name a flow calls them. `cpu` is one core of a usual server with its share of the memory."""

ALIASES = {
    "a100": "a100_80",
    "h100_80": "h100",
    "h20_96": "h20",
    "h200_141": "h200",
    "l40": "l40s",
    "gb200_186": "gb200",
}


def device_named(name: str, clusters: Sequence[str] = ()) -> Device:
    """The preset of a name, however it is spelled: `h100`, `H100-SXM`, `A100-80GB-SXM`, `H100-96GB-500W`.

    clusters: names that could have stood here as well. Raises ClusterError, with the nearest name.
    """
    plain = _plain(name)
    found = PRESETS.get(ALIASES.get(plain, plain))
    if found is None:
        known = [*PRESETS, "a100"]
        near = suggest(name, clusters) or suggest(plain, known)
        own = f", and the file's {_quoted(clusters)}" if clusters else ""
        what = "device or cluster" if clusters else "device"
        message = f"no {what} `{name}`; known are {', '.join(sorted(known))}{own}"
        raise ClusterError(f"{message}: {near}" if near else message)
    return found


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)


def _plain(name: str) -> str:
    parts = re.split(r"[-_ ]+", name.strip().lower())
    kept = [p.removesuffix("gb") for p in parts if not re.fullmatch(r"sxm\d?|nvidia|hgx|dgx|nvl\d*|hbm\d\w?|\d+w", p)]
    return "_".join(p for p in kept if p)
