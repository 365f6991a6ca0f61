"""Constants fitted to rows: the least mean squared logarithm of predicted over measured, by Nelder and Mead's simplex.

In the logarithm a factor too much weighs as a factor too little. Each phase weighs the same, whatever its rows.
A pull towards what others measured of kernels, links and engines keeps constants that few rows don't decide.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..cost import Constants
from ..cost.constants import bounds
from .predict import Prediction, predict
from .report import PHASES
from .rows import Row, phase_of

ROUNDS = 300
PULL = 0.05
"""Weight of a constant's squared distance from where the fit starts, in shares of its range."""
PRIOR = Constants(
    matmul=0.68, attention=0.4, memory=0.83, network=0.8, exposed=0.15, kernel=5e-6, engine=1e-5, between=0.2
)
"""Where a fit starts. Products reach 66 to 78 % and reading weights 73 to 77 % of an A100 or H100 (vidur's profiles),
decoding 74 to 85 % of the bandwidth, NCCL 20 of 25 GB/s of an NVLink, FlashAttention 2 35 to 65 %; overlapped
communication slows computing by about 13 %."""
STEP = 0.08
"""Of a constant's range, the first simplex's size."""

Point = list[float]


def fitted(rows: Sequence[Row], start: Constants = PRIOR, rounds: int = ROUNDS) -> Constants:
    """The constants that predict these rows best, within their bounds."""
    names = list(bounds())
    origin = [_inside(n, getattr(start, n)) for n in names]

    def loss(point: Point) -> float:
        away = sum((a - b) ** 2 for a, b in zip(point, origin, strict=True))
        outside = sum(max(0.0, -x, x - 1) for x in point)
        return _misfit(rows, _constants(start, names, point)) + PULL * away + outside

    best = minimized(loss, origin, rounds)
    return _constants(start, names, [round(x, 4) for x in best])


def cross_validated(rows: Sequence[Row], key: Callable[[Row], str], rounds: int = ROUNDS) -> dict[str, float]:
    """By phase, the mean error over counted rows that are predicted with constants fitted to rows of other keys."""
    found: list[Prediction] = []
    for value in sorted({key(row) for row in rows}):
        constants = fitted([row for row in rows if key(row) != value], rounds=rounds)
        found += [predict(row, constants) for row in rows if key(row) == value]
    errors = {phase: [abs(p.error) for p in found if p.phase == phase and p.counted] for phase in PHASES}
    return {phase: sum(e) / len(e) for phase, e in errors.items() if e}


def _misfit(rows: Sequence[Row], constants: Constants) -> float:
    total = 0.0
    for phase in PHASES:
        predictions = [predict(row, constants) for row in rows if phase_of(row) == phase]
        errors = [math.log(p.predicted / p.measured) ** 2 * (1 if p.counted else 0.5) for p in predictions]
        total += sum(errors) / len(errors) if errors else 0
    return total


def _inside(name: str, value: float) -> float:
    """A constant as a share of its range."""
    least, most = bounds()[name]
    return (value - least) / (most - least)


def _constants(start: Constants, names: Sequence[str], point: Point) -> Constants:
    allowed = bounds()
    values = {}
    for name, share in zip(names, point, strict=True):
        least, most = allowed[name]
        values[name] = float(f"{least + min(1.0, max(0.0, share)) * (most - least):.4g}")
    return replace(start, **values)


def minimized(loss: Callable[[Point], float], start: Point, rounds: int) -> Point:
    """The best point after so many rounds of the simplex method of Nelder and Mead (1965)."""
    simplex = [start] + [[x + (STEP if i == j else 0) for j, x in enumerate(start)] for i in range(len(start))]
    scored = sorted((loss(p), p) for p in simplex)
    for _ in range(rounds):
        scored = _moved(loss, scored)
    return scored[0][1]


def _moved(loss: Callable[[Point], float], scored: list[tuple[float, Point]]) -> list[tuple[float, Point]]:
    """One round: the worst point is reflected, stretched or drawn in; else all shrink towards the best."""
    (best, _), (second, _), (worst, far) = scored[0], scored[-2], scored[-1]
    middle = [sum(column) / (len(scored) - 1) for column in zip(*(p for _, p in scored[:-1]), strict=True)]

    def along(times: float) -> tuple[float, Point]:
        point = [m + times * (m - f) for m, f in zip(middle, far, strict=True)]
        return loss(point), point

    tried = along(1)
    if tried[0] < best:
        tried = min(tried, along(2))
    elif tried[0] >= second:
        tried = min(tried, along(0.5 if tried[0] < worst else -0.5))
    if tried[0] < worst:
        return sorted([*scored[:-1], tried])
    near = scored[0][1]
    drawn = [[(a + b) / 2 for a, b in zip(p, near, strict=True)] for _, p in scored[1:]]
    return sorted([scored[0], *((loss(p), p) for p in drawn)])
