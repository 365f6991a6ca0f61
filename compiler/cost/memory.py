"""Bytes of a phase on its fullest device, by kind.

Weights, gradients, optimizer: ZeRO (1910.02054) and Megatron's mixed precision (18 bytes per parameter, or
6 + 12/dp): bf16 weights, fp32 gradients, fp32 master weights and Adam's two moments. Sharded weights (fsdp) are the
master weights. Activations: what a layer keeps for its backward pass, counted tensor by tensor as in Korthikanti et
al. (2205.05198), with FlashAttention, so without the s² term.
"""

import math

from ..shapes import ModelShape
from .result import Memory
from .work import Batch, Forward, Layout, Train, element

LOGITS = {True: 10, False: 12}
"""Bytes per logit that a loss holds at once: bf16, fp32 and its gradient (fewer copies where compiled)."""
READ_LOGITS = 6
"""The same without gradient."""
PREFETCHED = 2
"""Layers whose gathered weights fsdp holds at once."""


def local_parameters(shape: ModelShape, layout: Layout) -> float:
    """Parameters on the fullest device while they compute: its stage, its cut, its experts."""
    return sum(_local(shape, layout))


def _local(shape: ModelShape, layout: Layout) -> tuple[float, float]:
    """The same outside of routed experts, and in them."""
    stage = math.ceil(shape.layers / layout.pp) / shape.layers / layout.tp
    ends = shape.embedding / layout.tp * (1 if shape.tied or layout.pp > 1 else 2)
    return (shape.matrices - shape.routed) * stage + ends, shape.routed * stage / layout.ep


def _held(shape: ModelShape, layout: Layout, optimizer: bool = False) -> float:
    """Parameters that a device keeps between passes, or for the optimizer.

    fsdp cuts them; ep has cut the experts over some of the same ranks already. A shared optimizer is cut over all.
    """
    plain, routed = _local(shape, layout)
    if optimizer and layout.shared_optimizer:
        return plain / layout.data + routed * layout.ep / layout.data
    return plain / layout.fsdp + routed / (layout.fsdp // math.gcd(layout.ep, layout.fsdp))


def training_memory(shape: ModelShape, work: Train, layout: Layout, flight: Batch, count: int) -> Memory:
    """Of an update at its worse moment. flight: one micro-batch of one data-parallel rank; count: how many.

    Of a single micro-batch there are logits and all activations before there are gradients, and gradients when those
    are gone but for a layer's.
    """
    held = _held(shape, layout)
    wide = layout.fsdp > 1 or work.dtype == "fp32"
    tokens = flight.tokens / layout.cp
    gradients = held * 4
    activations = tokens * _kept(shape, layout)
    logits = tokens * _logits(shape, work.head) * LOGITS[layout.compiled] / layout.tp
    if count == 1:
        last = tokens * layer_bytes(shape, "none") / layout.tp
        before = activations + logits > gradients + last
        gradients, activations, logits = (0.0, activations, logits) if before else (gradients, last, 0.0)
    return Memory(
        weights=held * (4 if wide else 2),
        gradients=gradients,
        optimizer=_held(shape, layout, optimizer=True) * (8 if wide else 12),
        activations=activations,
        logits=logits,
        buffers=_gathered(shape, layout, work.dtype) + _between(shape, layout, tokens),
    )


def forward_memory(shape: ModelShape, work: Forward, layout: Layout, flight: Batch) -> Memory:
    """Of a pass without gradient, which keeps one layer's activations."""
    tokens = flight.tokens / layout.cp
    return Memory(
        weights=_held(shape, layout) * element(work.dtype),
        activations=tokens * layer_bytes(shape, "none") / layout.tp,
        logits=tokens * _logits(shape, work.head) * READ_LOGITS / layout.tp,
        buffers=_gathered(shape, layout, work.dtype) + _between(shape, layout, tokens),
    )


def layer_bytes(shape: ModelShape, recompute: str) -> float:
    """Bytes per token that a layer keeps in bf16.

    full: its input. selective: also the results of its products and of attention (q, k, v, attention's, the sum after
    it, the MLP's inner ones). none: also what is pointwise (norms, rotated q and k, the activation and its product).
    """
    h, inner = shape.hidden, shape.heads * shape.head_dim
    e = shape.experts
    ffn = shape.ffn if e is None else e.active * e.ffn + e.shared
    keys = shape.kv_heads * shape.head_dim
    if recompute == "full":
        return 2.0 * h
    widths = 2 if shape.gated else 1
    products = 2 * h + 2 * inner + 2 * keys + widths * ffn + (e.active * h if e else 0)
    if recompute == "selective":
        return 2.0 * products
    return 2.0 * (products + 2 * h + inner + keys + widths * ffn)


def _kept(shape: ModelShape, layout: Layout) -> float:
    """Bytes per token of a micro-batch on the first stage, which holds those of `pp` micro-batches.

    While a recomputed layer runs backward, all of that layer is there too. An interleaved pipeline holds
    1 + (pp-1)/(pp·chunks) times as much (2205.05198, section 4.2.3).
    """
    layers = math.ceil(shape.layers / layout.pp)
    flight = layout.pp * (1 + (layout.pp - 1) / (layout.pp * layout.chunks)) if layout.chunks > 1 else layout.pp
    kept = layers * flight * layer_bytes(shape, layout.recompute)
    again = layer_bytes(shape, "none") if layout.recompute != "none" else 0
    return (kept + again) / layout.tp


def _logits(shape: ModelShape, head: str) -> int:
    return shape.vocab if head == "logprobs" else 1


def _gathered(shape: ModelShape, layout: Layout, dtype: str) -> float:
    """Whole layers that fsdp holds while they compute, and the largest of embedding and head."""
    if layout.fsdp == 1:
        return 0
    layer = shape.matrices / shape.layers / layout.ep
    return element(dtype) * (PREFETCHED * layer + shape.embedding) / layout.tp


def _between(shape: ModelShape, layout: Layout, tokens: float) -> float:
    """Buffers that a stage receives into, and whole activations that tp gathers."""
    received = 2 * 2 * shape.hidden * tokens if layout.pp > 1 else 0
    gathered = 2 * 2 * shape.hidden * tokens if layout.tp > 1 else 0
    return float(received + gathered)
