"""A whole step of a measured run: generation, log-probabilities, update, and what moves between them."""

from dataclasses import dataclass, replace

from ..cluster import Slice
from ..cost import (
    Batch,
    Constants,
    Forward,
    Generate,
    Layout,
    Lengths,
    Train,
    host_seconds,
    phase_cost,
)
from ..cost.work import Recompute
from ..shapes import ModelShape
from .layouts import Assumed, engine_layout, training_layout
from .rows import RowError, StepRow, model_of, slice_of

PROMPT = 200
"""Tokens of a prompt, where a row doesn't say."""
SHARE, MEAN = 0.4, 2048
"""The mean response, where a row doesn't say: a share of the longest, at most so many tokens."""


@dataclass(frozen=True)
class _Run:
    """What a row says, with what was assumed. together: generation and training take turns on the same devices."""

    shape: ModelShape
    prompt: float
    lengths: Lengths
    rollouts: int
    steps: int
    training: Slice
    generating: Slice
    trained: Layout
    engine: Layout
    together: bool
    dtype: str


def step_seconds(row: StepRow, c: Constants, assumed: Assumed) -> dict[str, float]:
    """Seconds of a step by part. Raises RowError, CostError.

    One after the other where they share devices or nothing runs ahead; else as long as the slower of generating and
    training, with the weights' way between them. `between` is what frameworks add.
    """
    run = _run(row, assumed)
    parts = _phases(run, c, assumed)
    parts["weights"] = _broadcast(run, c)
    if run.together:
        parts["sleep and wake"] = _switching(run, c)
    if row.staleness and not run.together:
        hidden = min(parts["generate"], sum(v for k, v in parts.items() if k not in ("generate", "weights")))
        parts["at the same time"] = -hidden
    parts["between"] = c.between * sum(parts.values())
    return parts


def _phases(run: _Run, c: Constants, assumed: Assumed) -> dict[str, float]:
    batch = Batch.of(run.rollouts, run.prompt, run.lengths)
    sampled = Generate(run.rollouts, run.prompt, run.lengths, dtype=run.dtype)
    layout = _fitting(run, batch, c, assumed)
    forward = phase_cost(run.shape, Forward(batch), layout, run.training, c).seconds
    assumed("log-probabilities of the policy and of a reference are computed before the update")
    return {
        "generate": phase_cost(run.shape, sampled, run.engine, run.generating, c).seconds,
        "logprobs": forward,
        "reference": forward,
        "train": phase_cost(run.shape, Train(batch, run.steps), layout, run.training, c).seconds,
    }


def _fitting(run: _Run, batch: Batch, c: Constants, assumed: Assumed) -> Layout:
    """The layout with the least recomputing that fits; with all of it, if none does."""
    levels: tuple[Recompute, ...] = ("none", "selective", "full")
    for level in levels:
        layout = replace(run.trained, recompute=level)
        needed = phase_cost(run.shape, Train(batch, run.steps), layout, run.training, c).memory.total
        if needed <= run.training.device.memory or level == "full":
            break
    assumed(f"recomputing: {level}, the least that fits")
    return layout


def _broadcast(run: _Run, c: Constants) -> float:
    """Seconds in which engines take new weights: the frameworks that were measured gather whole tensors, one after the
    other, on every device, where a planned reshard sends a shard's missing part (HybridFlow, Table 2).
    """
    d = run.training.device
    alone = run.training.nodes == run.generating.nodes == 1 and run.together
    return 2 * run.shape.parameters / ((d.link if alone else d.nic) * c.network)


def _switching(run: _Run, c: Constants) -> float:
    """Seconds in which the optimizer leaves the devices for generation and comes back, over the hosts' links."""
    state = 12 * run.shape.parameters / run.training.devices
    return 2 * host_seconds(state, run.training, c)


def _run(row: StepRow, assumed: Assumed) -> _Run:
    generating, training = _split(row, assumed)
    lengths = _lengths(row, assumed)
    if row.prompt is None:
        assumed(f"prompts of {PROMPT} tokens")
    prompt = row.prompt or PROMPT
    micro = int(prompt + row.max_response)
    assumed(f"micro-batches of {micro} packed tokens, the longest sequence")
    layout = replace(training_layout(row, row.train, training, assumed), micro=micro)
    assumed("training isn't compiled")
    if row.train_batch is None:
        assumed("one optimizer step")
    steps = max(1, round(row.rollouts_per_step / row.train_batch)) if row.train_batch else 1
    together = not row.staleness and generating == training == row.devices
    return _Run(
        model_of(row), prompt, lengths, row.rollouts_per_step, steps,
        slice_of(row, training), slice_of(row, generating),
        layout, engine_layout(row, row.generate, generating), together, row.dtype,
    )  # fmt: skip


def _lengths(row: StepRow, assumed: Assumed) -> Lengths:
    mean = row.mean_length
    if mean is None:
        mean = min(MEAN, SHARE * row.max_response)
        assumed(f"responses of {mean:.0f} tokens in the mean")
    if mean > row.max_response:
        raise RowError(f"row `{row.id}`: `mean_length` {mean} is more than `max_response` {row.max_response}")
    lengths = Lengths(mean, row.max_response)
    assumed(f"log-normal lengths of spread {lengths.spread}, cut off at {row.max_response}")
    return lengths


def _split(row: StepRow, assumed: Assumed) -> tuple[int, int]:
    """Devices that generate, and that train. Raises RowError."""
    given: object = row.split
    if isinstance(given, str):
        given = [int(part) if part.strip().isdigit() else 0 for part in given.split(":")]
    if isinstance(given, dict):
        given = [given.get("generate", 0), given.get("train", 0)]
    if given is None:
        if not row.staleness:
            return row.devices, row.devices
        assumed("half of the devices generate, half train")
        return row.devices // 2, row.devices - row.devices // 2
    if not isinstance(given, list) or len(given) != 2 or min(given) < 1 or row.devices % sum(given):
        raise RowError(
            f"row `{row.id}`: `split` is {row.split}; it is devices or parts of {row.devices}, such as "
            '{"generate": 8, "train": 8} or "3:1"'
        )
    unit = row.devices // sum(given)
    return given[0] * unit, given[1] * unit
