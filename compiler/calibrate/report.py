"""Predictions against measurements: the error by phase, as text and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..cost import Constants, described
from .predict import Prediction, predict
from .rows import MEASURED, Row

PHASES = tuple(MEASURED)


@dataclass(frozen=True)
class Report:
    """All predictions, and the constants they were made with."""

    constants: Constants
    predictions: tuple[Prediction, ...]

    def of(self, phase: str) -> list[Prediction]:
        return [p for p in self.predictions if p.phase == phase]

    def mape(self, phase: str, all: bool = False) -> float | None:
        """Mean absolute error relative to what was measured, over the counted rows of a phase; None without any."""
        errors = [abs(p.error) for p in self.of(phase) if p.counted or all]
        return sum(errors) / len(errors) if errors else None


def reported(rows: Sequence[Row], constants: Constants) -> Report:
    """Every row predicted. Raises RowError."""
    return Report(constants, tuple(predict(row, constants) for row in rows))


def report_json(report: Report) -> dict[str, Any]:
    """By phase: `mape` of the counted rows, `mape_all`, and the rows; then the constants."""
    phases = {
        phase: {
            "mape": report.mape(phase),
            "mape_all": report.mape(phase, all=True),
            "rows": [_row_json(p) for p in report.of(phase)],
        }
        for phase in PHASES
    }
    constants = {name: {"value": value, "meaning": doc} for name, value, doc in described(report.constants)}
    return {**phases, "constants": constants}


def _row_json(p: Prediction) -> dict[str, Any]:
    row = {
        "id": p.id, "unit": p.unit, "predicted": p.predicted, "measured": p.measured, "error": p.error,
        "counted": p.counted, "parts": dict(p.parts), "assumptions": list(p.assumptions),
    }  # fmt: skip
    if p.memory:
        predicted, measured = p.memory
        row["memory"] = {"predicted_gib": predicted, "measured_gib": measured, "error": predicted / measured - 1}
    return row


# ---------------------------------------------------------------- as text


def report_lines(report: Report) -> Iterator[str]:
    """A table per phase, with what was assumed, and the constants with their meaning."""
    for phase in PHASES:
        found = report.of(phase)
        if found:
            yield from _table(report, phase, found)
            yield ""
    yield "constants"
    yield from (f"  {name:<10} {value:<10.4g} {doc}" for name, value, doc in described(report.constants))


def _table(report: Report, phase: str, found: Sequence[Prediction]) -> Iterator[str]:
    error = report.mape(phase)
    counted = sum(p.counted for p in found)
    mean = "no row says enough to count" if error is None else f"mean error {error:.1%} over {counted} rows"
    yield f"{phase}: {mean}"
    width = max(len(p.id) for p in found)
    for p in found:
        mark = "" if p.counted else "  (not counted)"
        yield f"  {p.id:<{width}}  {p.predicted:>9.5g} for {p.measured:<9.5g} {p.error:>+7.1%}  {p.unit}{mark}"
        if p.memory:
            error = p.memory[0] / p.memory[1] - 1
            yield f"  {'':<{width}}  {p.memory[0]:>9.5g} for {p.memory[1]:<9.5g} {error:>+7.1%}  memory_gib"
        if p.assumptions:
            yield f"  {'':<{width}}  assumed: {'; '.join(p.assumptions)}"
