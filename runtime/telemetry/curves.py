"""The curves of a run as a picture: small multiples over steps, drawn from metrics.jsonl alone."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COLOURS = ("#2563a8", "#c8553d", "#3a8a5f", "#8a5ba6")
_INK = "#333333"
_GRID = "#e4e4e4"
_SMOOTHED_FROM = 30  # with fewer steps than this, the curve itself is clear enough
_MOST_OTHERS = 4


@dataclass(frozen=True)
class Curve:
    """The points of one curve; steps without a value are left out."""

    steps: list[float]
    values: list[float]


@dataclass(frozen=True)
class Panel:
    """One small picture: its title, what its y axis shows, and its curve."""

    title: str
    unit: str
    curve: Curve


def plot(metrics_path: Path, png_path: Path, title: str | None = None) -> bool:
    """Draw reward, KL, loss and length over steps, as far as they were recorded.

    Args:
        metrics_path: a metrics.jsonl; a last line that was cut off is passed over.
        png_path: the picture to write.
        title: a heading.

    Returns:
        Whether there was anything to draw; if not, no picture is written.
    """
    panels = _panels(_records(metrics_path))
    if panels:
        _draw(panels, png_path, title)
    return bool(panels)


def _records(path: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def _panels(records: Sequence[Mapping[str, Any]]) -> list[Panel]:
    names = list(dict.fromkeys(name for record in records for name in record))
    losses = [name for name in names if name == "loss" or name.startswith("loss.")]
    panels = [
        Panel("Reward", "mean reward", _curve(records, "reward")),
        Panel("KL divergence", "KL (nats)", _curve(records, "kl")),
        # A panel each: the losses of a policy and of its critic have nothing in common, their scale least of all.
        *(Panel(_loss_title(name, len(losses)), "loss", _curve(records, name)) for name in losses),
        Panel("Response length", "mean length (tokens)", _curve(records, "length")),
        *_evaluations(records, names),
    ]
    shown = [panel for panel in panels if panel.curve.steps]
    return shown or _others(records, names)


def _evaluations(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Panel]:
    """What only some steps measured, several times: the metrics of `every` blocks."""
    counts = {name: sum(isinstance(r.get(name), int | float) for r in records) for name in names}
    rare = [name for name in names if 2 <= counts[name] <= len(records) / 2 and "." not in name]
    return [Panel(name, name, _curve(records, name)) for name in rare[:_MOST_OTHERS]]


def _loss_title(name: str, count: int) -> str:
    return "Loss" if count == 1 else f"Loss of {name.removeprefix('loss.')}"


def _others(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Panel]:
    """Of a flow that names its values otherwise: the first few of its own metrics."""
    own = [name for name in names if name not in ("step", "seconds", "tokens_per_second")]
    panels = [Panel(name, name, _curve(records, name)) for name in own]
    return [panel for panel in panels if panel.curve.steps][:_MOST_OTHERS]


def _curve(records: Sequence[Mapping[str, Any]], name: str) -> Curve:
    points = [(r.get("step", i), r[name]) for i, r in enumerate(records) if isinstance(r.get(name), int | float)]
    return Curve([step for step, _ in points], [value for _, value in points])


def _draw(panels: Sequence[Panel], png_path: Path, title: str | None) -> None:
    # The figure is made without pyplot, which keeps global state and may choose a window system.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = 2 if len(panels) in (2, 4) else min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = Figure(
        figsize=(5.2 * columns, 3.1 * rows + (0.4 if title else 0)),
        dpi=150,
        layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1),
    )
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=13, fontweight="bold", color=_INK)
    for number, panel in enumerate(panels, 1):
        _draw_panel(figure.add_subplot(rows, columns, number), panel, _COLOURS[(number - 1) % len(_COLOURS)])
    figure.savefig(png_path)


def _draw_panel(axes: Any, panel: Panel, colour: str) -> None:
    _draw_curve(axes, panel.curve, colour)
    # y is fixed, or a panel with a power of ten above its axis would have a higher title than its neighbours
    axes.set_title(panel.title, fontsize=10.5, color=_INK, loc="left", fontweight="bold", y=1.06)
    axes.set_xlabel("step", fontsize=9, color=_INK)
    axes.set_ylabel(panel.unit, fontsize=9, color=_INK)
    _style(axes)


def _draw_curve(axes: Any, curve: Curve, colour: str) -> None:
    """The curve; of a long one faintly, under its running mean."""
    points = len(curve.values)
    if points < _SMOOTHED_FROM:
        axes.plot(curve.steps, curve.values, color=colour, linewidth=1.8, marker="o" if points <= 12 else None, ms=4)
        return
    axes.plot(curve.steps, curve.values, color=colour, linewidth=0.8, alpha=0.3)
    axes.plot(curve.steps, _smooth(curve.values), color=colour, linewidth=2.0)


def _smooth(values: Sequence[float]) -> list[float]:
    """A running mean over a tenth of the run, over as much of it as there is near the ends."""
    half = max(1, len(values) // 20)
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _style(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.ticklabel_format(axis="y", scilimits=(-2, 4), useMathText=True)
    axes.yaxis.get_offset_text().set(size=8, color=_INK)
    axes.grid(True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, colors=_INK, length=0)
    axes.margins(x=0.02, y=0.1)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
