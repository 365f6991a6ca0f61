"""A measured training run: its layout, its micro-batch, and its cost in the unit that was measured."""

from collections.abc import Iterator
from dataclasses import replace

from ..cost import Batch, Constants, Cost, Layout, Train, phase_cost
from ..cost.work import Recompute
from .layouts import Assumed, training_layout
from .rows import RowError, TrainRow, model_of, slice_of, target_of

SMALL_BUBBLE = 0.05
"""Of the time: a pipeline is assumed to be cut into chunks until its bubble is no larger."""


def training_run(row: TrainRow, c: Constants, assumed: Assumed) -> tuple[Cost, float]:
    """The cost of an optimizer step, and its tokens. Raises RowError, CostError."""
    layout = _said(row, training_layout(row, row.parallel, row.devices, assumed), assumed)
    batch = row.global_batch or (row.micro_batch or 1) * layout.data
    if row.global_batch is None:
        assumed("global batch: one micro-batch per data-parallel rank")
    found = {micro: _cost(row, _cut(row, layout, batch, micro), batch, c) for micro in _micros(row, batch, layout.data)}
    fitting = {m: cost for m, cost in found.items() if cost.memory.total <= slice_of(row, 1).device.memory}
    micro = min(fitting, key=lambda m: fitting[m].seconds) if fitting else min(found)
    if row.micro_batch is None:
        assumed(f"micro-batch {micro}, the fastest that fits")
    if layout.pp > 1 and row.parallel.chunks is None:
        assumed(f"an interleaved pipeline of {_cut(row, layout, batch, micro).chunks} chunks per stage")
    return found[micro], batch * row.sequence


def _said(row: TrainRow, layout: Layout, assumed: Assumed) -> Layout:
    """With what the row says of recomputing and compiling."""
    if row.compiled is None:
        assumed("compiled")
    if row.recompute is None:
        assumed("no recomputing")
    return replace(layout, recompute=_recompute(row), compiled=row.compiled is not False)


def _recompute(row: TrainRow) -> Recompute:
    match row.recompute or "none":
        case "none" | "selective" | "full" as known:
            return known
    raise RowError(f"row `{row.id}`: `recompute` is `{row.recompute}`; it is one of none, selective, full")


def _micros(row: TrainRow, batch: int, ranks: int) -> Iterator[int]:
    """Micro-batches to choose from: the row's own, else the powers of two that divide a rank's part of the batch."""
    if row.micro_batch is not None:
        yield row.micro_batch
        return
    micro = 1
    while micro == 1 or (batch % (ranks * micro) == 0 and micro <= batch // ranks):
        yield micro
        micro *= 2


def _cut(row: TrainRow, layout: Layout, batch: int, micro: int) -> Layout:
    """With a micro-batch of so many sequences, and the chunks of its pipeline."""
    chunks = layout.chunks
    if layout.pp > 1 and row.parallel.chunks is None:
        chunks = _chunks(model_of(row).layers // layout.pp, layout.pp, batch / layout.data / micro)
    return replace(layout, micro=micro * row.sequence, chunks=chunks)


def _chunks(layers: int, stages: int, count: float) -> int:
    """The fewest chunks of a stage that leave a small bubble; as many as there are, if none does."""
    divisors = [d for d in range(1, layers + 1) if layers % d == 0]
    return next((d for d in divisors if (stages - 1) / (d * max(1.0, count)) <= SMALL_BUBBLE), divisors[-1])


def _cost(row: TrainRow, layout: Layout, batch: int, c: Constants) -> Cost:
    work = Train(Batch.fixed(batch, row.sequence), dtype=row.dtype)
    return phase_cost(model_of(row), work, layout, slice_of(row, row.devices), c)


def in_unit(row: TrainRow, cost: Cost, tokens: float) -> float:
    """The cost of a step in the unit that was measured."""
    unit = target_of(row)[0]
    if unit == "step_seconds":
        return cost.seconds
    each = tokens / cost.seconds / row.devices
    return each if unit == "tokens_per_second_per_device" else each * _model_flops(row) / 1e12


def _model_flops(row: TrainRow) -> float:
    """FLOPs of a token as Megatron counts them (2104.04473, equation 3): no recomputing, attention not causal."""
    shape = model_of(row)
    attention = 4 * shape.layers * shape.heads * shape.head_dim * row.sequence
    return 3 * (2 * (shape.active_matrices + shape.embedding) + attention)
