"""The cost model: seconds and bytes of a phase from a model's shape, a layout and a cluster's figures.

Analytical, standard library only. Units: bytes, seconds, FLOP/s, tokens.
"""

from .constants import DEFAULT, Constants, CostError, described, read_profile, write_profile
from .generate import saturated_rate
from .lengths import SPREAD, Lengths
from .passes import dealt
from .phase import phase_cost
from .result import KINDS, Cost, Memory
from .transfer import Reshard, host_seconds, move_bytes, move_seconds, reshard_bytes, reshard_seconds
from .work import Batch, Forward, Generate, Layout, Train, Work

__all__ = [
    "DEFAULT",
    "KINDS",
    "SPREAD",
    "Batch",
    "Constants",
    "Cost",
    "CostError",
    "Forward",
    "Generate",
    "Layout",
    "Lengths",
    "Memory",
    "Reshard",
    "Train",
    "Work",
    "dealt",
    "described",
    "host_seconds",
    "move_bytes",
    "move_seconds",
    "phase_cost",
    "read_profile",
    "reshard_bytes",
    "reshard_seconds",
    "saturated_rate",
    "write_profile",
]
