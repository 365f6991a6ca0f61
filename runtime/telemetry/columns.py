"""What the console shows of a step: columns, their headings, and numbers in four digits."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 10  # the widest number, -0.002484, and a gap
_NAMES = {"reward": "reward", "kl": "kl", "loss": "loss", "length": "length", "tokens_per_second": "tokens/s"}


def columns_of(record: Mapping[str, Any], known: Sequence[str] = ()) -> list[str]:
    """The names to show, in the console's order: those known already and those this record adds."""
    names = dict.fromkeys([*known, *record])
    losses = [name for name in names if name.startswith("loss.")]
    shown = ["reward", "kl", "loss", *losses, "length", "tokens_per_second", "seconds"]
    return [name for name in shown if name in names]


def headings(names: Sequence[str]) -> list[str]:
    """The heading of each column; a single model's loss is just `loss`."""
    losses = [name for name in names if name.startswith("loss")]
    return [_heading(name, len(losses) == 1) for name in names]


def _heading(name: str, only_loss: bool) -> str:
    return "loss" if only_loss and name.startswith("loss.") else _NAMES.get(name, name)


def cells(record: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """A record's numbers as text, a dash where it has none."""
    return [short(record.get(name)) for name in names]


def short(value: float | int | None) -> str:
    """A number in four significant digits: 0.1250, 512.0, 12.35k, 1.2e-05."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (9999.5, "k")):
        if size >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):#.4g}".rstrip(".") + unit
    if isinstance(value, int):
        return str(value)
    return f"{value:.1e}" if 0 < size < 1e-3 else f"{value:#.4g}".rstrip(".")


def widths(titles: Sequence[str]) -> list[int]:
    """How wide each column is, its gap included."""
    return [max(WIDTH, len(title) + 2) for title in titles]


def duration(seconds: float) -> str:
    """A length of time as people say it: 0.84 s, 42 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    minutes, whole = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{whole} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {whole:02d} s"
