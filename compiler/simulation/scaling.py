"""The scaling curve: one simulation for each number of nodes, each with a decision of its own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..search.decision import Decision
from .result import Result

PICTURES = (".png", ".svg")
ROOM = 2**0.2
"""By how much an axis of nodes is longer at each end, as a factor: markers aren't cut."""
DECADES = 4
"""Powers of ten up to which an axis of rates has ticks between them."""

_INK, _GRID, _BLUE, _RED = "#333333", "#e4e4e4", "#2563a8", "#c8553d"


@dataclass(frozen=True)
class Point:
    """A number of nodes. decision, result: None where nothing fits; why: then, in words."""

    nodes: int
    decision: Decision | None
    result: Result | None
    why: str = ""

    @property
    def rate(self) -> float:
        """Steps per hour."""
        return 3600 / self.result.mean if self.result else 0.0


def efficiency(points: Sequence[Point]) -> list[float]:
    """Steps per hour and node relative to the first point that has any."""
    first = next((p for p in points if p.rate), None)
    return [p.rate / p.nodes / (first.rate / first.nodes) if first else 0.0 for p in points]


def scaling_text(points: Sequence[Point]) -> str:
    """The curve as a table."""
    lines = ["nodes  devices     step      p95  decided  steps/h  efficiency  utilisation"]
    for p, part in zip(points, efficiency(points), strict=True):
        if p.result is None or p.decision is None:
            lines.append(f"{p.nodes:5}        –  {p.why}")
            continue
        used = _utilisation(p.result)
        lines.append(
            f"{p.nodes:5}  {p.decision.devices:7}  {p.result.mean:7.4g}  {p.result.p95:7.4g}  {p.decision.period:7.4g}"
            f"  {p.rate:7.4g}  {100 * part:9.1f}%  {100 * used:10.1f}%"
        )
    return "\n".join(lines) + "\n"


def _utilisation(result: Result) -> float:
    devices = sum(u.devices for u in result.usage)
    return sum(u.utilisation * u.devices for u in result.usage) / devices


def scaling_json(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The curve as data, times in seconds."""
    return [
        {
            "nodes": p.nodes,
            "devices": p.decision.devices if p.decision else None,
            "step": {"mean": p.result.mean, "p95": p.result.p95} if p.result else None,
            "decided": p.decision.period if p.decision else None,
            "steps_per_hour": p.rate,
            "efficiency": part,
            "why": p.why,
        }
        for p, part in zip(points, efficiency(points), strict=True)
    ]


def draw_scaling(points: Sequence[Point], path: Path, title: str) -> None:
    """The curve as a picture, PNG or SVG by the name's end. Points without a result are left out."""
    shown = [p for p in points if p.result]
    if not shown:
        return
    # The figure is made without pyplot, which keeps global state and may choose a window system.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(9.6, 3.8), dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12, fontweight="bold", color=_INK)
    _draw_rate(figure.add_subplot(1, 2, 1), shown)
    _draw_time(figure.add_subplot(1, 2, 2), shown)
    figure.savefig(path)


def _draw_rate(axes: Any, points: Sequence[Point]) -> None:
    nodes = [p.nodes for p in points]
    ideal = [points[0].rate * n / nodes[0] for n in nodes]
    axes.plot(nodes, ideal, color=_RED, linestyle="--", linewidth=1, label="ideal")
    axes.plot(nodes, [p.rate for p in points], color=_BLUE, marker="o", label="simulated")
    _dress(axes, nodes, "steps per hour")
    axes.set_yscale("log", base=2)
    ticks = rate_ticks([*ideal, *(p.rate for p in points)])
    axes.set_yticks(ticks, labels=list(map(rate_label, ticks)))
    axes.set_ylim(ticks[0], ticks[-1])
    axes.legend(frameon=False, labelcolor=_INK)


def rate_ticks(rates: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten, from below the lowest rate to above the highest; of many, powers of ten alone."""
    lowest, highest = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)))
    steps = (1, 2, 5) if highest - lowest <= DECADES else (1,)
    every = [s * 10.0**d for d in range(lowest, highest + 2) for s in steps]
    first = max(t for t in every if t <= min(rates))
    last = min(t for t in every if t > max(rates))
    return [t for t in every if first <= t <= last]


def rate_label(rate: float) -> str:
    """A rate at its tick, never as a power of ten."""
    return f"{rate:,.0f}" if rate >= 1 else f"{rate:.10f}".rstrip("0")


def _draw_time(axes: Any, points: Sequence[Point]) -> None:
    nodes = [p.nodes for p in points]
    found = [p.result for p in points if p.result]
    axes.fill_between(
        nodes, [r.mean for r in found], [r.p95 for r in found], color=_BLUE, alpha=0.2, label="mean to p95"
    )
    axes.plot(nodes, [r.mean for r in found], color=_BLUE, marker="o", label="mean")
    decided = [p.decision.period for p in points if p.decision]
    axes.plot(nodes, decided, color=_RED, linestyle=":", linewidth=1.5, label="decided")
    _dress(axes, nodes, "seconds per step")
    axes.set_ylim(0, 1.08 * max(*(r.p95 for r in found), *decided))
    axes.legend(frameon=False, labelcolor=_INK)


def _dress(axes: Any, nodes: Sequence[int], title: str) -> None:
    axes.set_title(title, fontsize=10, color=_INK)
    axes.set_xscale("log", base=2)
    axes.set_xticks(nodes, labels=[str(n) for n in nodes])
    axes.minorticks_off()
    axes.set_xlim(nodes[0] / ROOM, nodes[-1] * ROOM)
    axes.set_xlabel("nodes", color=_INK)
    axes.grid(color=_GRID)
    axes.tick_params(colors=_INK)
    axes.spines[["top", "right"]].set_visible(False)
