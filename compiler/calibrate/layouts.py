"""How the weights of a measured run lay: its degrees, and what they leave over."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..cost import Layout
from .rows import Degrees, GenerateRow, RowError, StepRow, TrainRow, degrees


@dataclass
class Assumed:
    """What was assumed for one row, in words."""

    said: list[str] = field(default_factory=list)

    def __call__(self, text: str) -> None:
        self.said.append(text)


def training_layout(row: TrainRow | StepRow, given: Degrees, devices: int, assumed: Assumed) -> Layout:
    """Where training's weights lie: rows are dealt to what the degrees leave over."""
    said = degrees(given)
    model = said.get("tp", 1) * said.get("pp", 1) * said.get("cp", 1)
    data = said.get("dp", 1) * said.get("fsdp", 1)
    if devices % model or ("dp" in said and "fsdp" in said and model * data != devices) or devices % (model * data):
        raise RowError(f"row `{row.id}`: its degrees {dict(said)} don't go with {devices} devices")
    rest = devices // model // data
    if rest > 1:
        assumed(f"dp {rest * said.get('dp', 1)}: what the other degrees leave over")
    dp = said.get("dp", 1) * rest
    shared = dp > 1
    if shared:
        assumed("the optimizer is cut over dp")
    return Layout(
        tp=said.get("tp", 1),
        pp=said.get("pp", 1),
        cp=said.get("cp", 1),
        fsdp=said.get("fsdp", 1),
        dp=dp,
        ep=_experts(said, dp * said.get("fsdp", 1), assumed),
        chunks=said.get("chunks", 1),
        shared_optimizer=shared,
    )


def _experts(said: Mapping[str, int], data: int, assumed: Assumed) -> int:
    """Over how many data-parallel ranks experts are cut. Beyond them, ep spans tp, which cuts experts already."""
    wanted = said.get("ep", 1)
    within = math.gcd(wanted, data)
    if within < wanted:
        assumed(f"ep {wanted} spans tp too: {within} of it are data-parallel ranks")
    return within


def engine_layout(row: GenerateRow | StepRow, given: Degrees, devices: int) -> Layout:
    """Engines on all of these devices."""
    said = degrees(given)
    model = said.get("tp", 1) * said.get("pp", 1)
    if devices % model:
        raise RowError(f"row `{row.id}`: engines of {model} devices don't divide {devices} devices")
    copies = devices // model
    return Layout(tp=said.get("tp", 1), pp=said.get("pp", 1), dp=copies, ep=math.gcd(said.get("ep", 1), copies))
