"""What the cost model says of a measured row. What a row doesn't say is assumed, and listed with the prediction."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..cost import Constants, CostError, Generate, Lengths, saturated_rate
from .layouts import Assumed, engine_layout
from .rows import GenerateRow, Row, RowError, StepRow, TrainRow, degrees, model_of, phase_of, slice_of, target_of
from .steps import step_seconds
from .training import in_unit, training_run

GIB = 2**30
SLOTS = 2048
"""Sequences that an engine runs at once at most, where a row asks for as many as fit."""


@dataclass(frozen=True)
class Prediction:
    """One row: predicted and measured in the unit of what was measured.

    counted: whether it counts for the mean error; a row that leaves out what decides its time doesn't.
    memory: predicted and measured GiB on a device, where that was measured. parts: seconds by name.
    """

    id: str
    phase: str
    unit: str
    predicted: float
    measured: float
    counted: bool
    parts: Mapping[str, float]
    assumptions: tuple[str, ...]
    memory: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        """Relative to what was measured; above 0: predicted too much."""
        return self.predicted / self.measured - 1


def predict(row: Row, constants: Constants) -> Prediction:
    """The prediction for a row. Raises RowError, naming the row, where its degrees don't go with its devices."""
    try:
        match row:
            case TrainRow():
                return _train(row, constants)
            case GenerateRow():
                return _generate(row, constants)
        return _step(row, constants)
    except CostError as error:
        raise RowError(f"row `{row.id}`: {error}") from None


def _train(row: TrainRow, c: Constants) -> Prediction:
    assumed = Assumed()
    cost, tokens = training_run(row, c, assumed)
    memory = row.measured.get("memory_gib")
    return _predicted(
        row, in_unit(row, cost, tokens), cost.parts, assumed,
        counted=row.micro_batch is not None,
        memory=(cost.memory.total / GIB, memory) if memory else None,
    )  # fmt: skip


def _generate(row: GenerateRow, c: Constants) -> Prediction:
    assumed = Assumed()
    shape, said = model_of(row), degrees(row.parallel)
    layout = engine_layout(row, row.parallel, row.devices)
    slots = SLOTS if isinstance(row.batch, str) else max(1, row.batch // layout.data)
    if isinstance(row.batch, str):
        assumed(f"an engine runs as many sequences at once as its cache holds, at most {SLOTS}")
    if "tp" not in said:
        assumed("tp 1")
    work = Generate(slots, row.prompt, Lengths.fixed(row.response), slots=slots, dtype=row.dtype)
    rate, running = saturated_rate(shape, work, layout, slice_of(row, row.devices), c)
    if target_of(row)[0].endswith("_per_device"):
        rate /= row.devices
    return _predicted(row, rate, {"slots": float(running)}, assumed)


def _step(row: StepRow, c: Constants) -> Prediction:
    assumed = Assumed()
    parts = step_seconds(row, c, assumed)
    return _predicted(row, sum(parts.values()), parts, assumed, counted=row.mean_length is not None)


def _predicted(
    row: Row,
    predicted: float,
    parts: Mapping[str, float],
    assumed: Assumed,
    counted: bool = True,
    memory: tuple[float, float] | None = None,
) -> Prediction:
    unit, measured = target_of(row)
    said = (*assumed.said, *(f"`{name}` changes nothing" for name in row.unused))
    return Prediction(row.id, phase_of(row), unit, predicted, measured, counted, dict(parts), said, memory)
