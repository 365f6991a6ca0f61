"""Time of an update and of a pass without gradient: micro-batches through stages, with what they communicate."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..cluster import Slice
from ..shapes import ModelShape
from . import counts
from .collectives import all_gather, all_reduce, deal, group_of, send
from .constants import Constants
from .memory import forward_memory, local_parameters, training_memory
from .result import Cost
from .work import Batch, Forward, Head, Layout, Train, element

GRADIENT = 4
"""Bytes of a gradient that is reduced: fp32."""
OPTIMIZER = {True: 28, False: 30}
"""Bytes per parameter that an Adam step reads and writes (weights, gradient, two moments), by whether sharded."""


@dataclass(frozen=True)
class _Pass:
    """One phase on one device. flight: a micro-batch of a data-parallel rank. count: how many of them per step."""

    shape: ModelShape
    layout: Layout
    devices: Slice
    c: Constants
    head: Head
    dtype: str
    trains: bool
    flight: Batch
    count: int

    @property
    def tokens(self) -> float:
        """Of a micro-batch on one device of its cp group."""
        return self.flight.tokens / self.layout.cp

    @property
    def layers(self) -> float:
        """The share of the layers on the fullest stage."""
        return math.ceil(self.shape.layers / self.layout.pp) / self.shape.layers

    @property
    def again(self) -> bool:
        """Whether layers run forward twice."""
        return self.trains and self.layout.recompute == "full"

    @property
    def flops(self) -> float:
        """FLOP/s of matrix products."""
        faster = 2 if element(self.dtype) == 1 and self.devices.device.fp8 else 1
        return self.devices.device.flops * self.c.matmul * faster

    @property
    def bandwidth(self) -> float:
        return self.devices.device.bandwidth * self.c.memory


def training_cost(shape: ModelShape, work: Train, layout: Layout, devices: Slice, c: Constants) -> Cost:
    """Seconds and bytes of an update: all its optimizer steps."""
    p = _pass(shape, work, layout, devices, c, work.steps)
    times = {k: v * work.steps * work.epochs for k, v in {**_piped(p), **_step(p)}.items()}
    return Cost(times, training_memory(shape, work, layout, p.flight, p.count))


def forward_cost(shape: ModelShape, work: Forward, layout: Layout, devices: Slice, c: Constants) -> Cost:
    """Seconds and bytes of a pass without gradient."""
    p = _pass(shape, work, layout, devices, c, 1)
    return Cost(_piped(p), forward_memory(shape, work, layout, p.flight))


def _pass(shape: ModelShape, work: Train | Forward, layout: Layout, devices: Slice, c: Constants, steps: int) -> _Pass:
    """The micro-batches of one optimizer step, all alike: a rank's share of the tokens in the fewest that fit."""
    batch = work.batch
    ranks, _, count = dealt(batch, steps, layout)
    parts = steps * ranks * count
    flight = Batch(batch.sequences / parts, batch.tokens / parts, batch.squares / parts)
    return _Pass(shape, layout, devices, c, work.head, work.dtype, isinstance(work, Train), flight, count)


def dealt(batch: Batch, steps: int, layout: Layout) -> tuple[float, float, int]:
    """Of one of so many optimizer steps: the data-parallel ranks that have rows, a rank's tokens, its micro-batches."""
    ranks = min(layout.data, max(1.0, batch.sequences / steps))
    share = batch.tokens / steps / ranks
    return ranks, share, max(1, math.ceil(share / layout.micro - 1e-9))


# ---------------------------------------------------------------- micro-batches


def _piped(p: _Pass) -> dict[str, float]:
    """Seconds of all micro-batches: the fullest stage for each, and the first ones' way through the others."""
    one = {**_computing(p), **_cutting(p)}
    behind = _gathering(p)
    one["fsdp"] = _hidden(behind, sum(one.values()), p.c)
    stage = sum(one.values())
    total = {k: v * p.count for k, v in one.items()}
    waits = (p.layout.pp - 1) / p.layout.chunks
    return {**total, "bubble": waits * stage, "pp": _sending(p, stage)}


def _hidden(communication: float, computing: float, c: Constants) -> float:
    """What remains of communication that may go on behind computing: it takes some of its time all the same."""
    return c.exposed * min(communication, computing) + max(0.0, communication - computing)


def _computing(p: _Pass) -> dict[str, float]:
    """Seconds of one micro-batch on the fullest stage."""
    shape, cut = p.shape, p.layout.tp
    forward = 2 if p.again else 1
    products = forward + (counts.BACKWARD if p.trains else 0)
    scores = (2 if p.again else 1) + (counts.ATTENTION_BACKWARD if p.trains else 0)
    context = p.flight.context
    matmul = p.layers * products * _multiplied(p) + _head_passes(p) * counts.head_flops(shape, p.head)
    attention = p.layers * scores * counts.attention_flops(shape, context) / (p.devices.device.flops * p.c.attention)
    operands = p.layers * products * counts.routed_bytes(shape)
    return {
        "compute": p.tokens / cut * (matmul / p.flops + attention),
        "memory": (p.tokens * (_traffic(p) + operands) / cut + _weights(p, products)) / p.bandwidth,
        "launch": p.layers * products * counts.kernels(shape, p.layout.compiled) * p.c.kernel,
    }


def _multiplied(p: _Pass) -> float:
    """FLOPs per token of a forward pass of all layers on the device whose experts are the busiest."""
    e, ep = p.shape.experts, p.layout.ep
    more = (e.busiest(ep) if e else 1.0) * counts.padding(p.shape, p.tokens, ep) - 1
    return counts.matmul_flops(p.shape) + more * counts.routed_flops(p.shape)


def _head_passes(p: _Pass) -> float:
    return 1 + (counts.BACKWARD if p.trains else 0)


def _traffic(p: _Pass) -> float:
    """Bytes per token of what is pointwise: once forward, twice backward, once more where it is recomputed."""
    times = 1.0
    if p.trains:
        times = 3 if p.layout.recompute == "none" else 4
    pointwise = p.layers * times * counts.pointwise_bytes(p.shape, p.layout.compiled)
    return pointwise + counts.logits_bytes(p.shape, p.head, p.layout.compiled, p.trains)


def _weights(p: _Pass, passes: float) -> float:
    """Bytes of weights that the products of a micro-batch read; a backward pass writes gradients too."""
    own = local_parameters(p.shape, p.layout)
    return own * (element(p.dtype) * passes + (2 * GRADIENT if p.trains else 0))


# ---------------------------------------------------------------- communication


def _cutting(p: _Pass) -> dict[str, float]:
    """Seconds of what stands between a layer's products: of tp, cp and ep, for one micro-batch."""
    layers = p.layers * p.shape.layers
    times = 1 + int(p.trains) + int(p.again)
    width = 2 * p.shape.hidden * p.tokens
    tp = 4 * all_gather(width, group_of("tp", p.layout, p.devices), p.c)  # two all-reduces, each in its halves
    kv = 2 * p.flight.tokens * p.shape.kv_width / p.layout.tp
    cp = all_gather(kv, group_of("cp", p.layout, p.devices), p.c)
    sparse = p.layers * p.shape.sparse_layers
    e = p.shape.experts
    group = group_of("ep", p.layout, p.devices)
    ep = 2 * deal(width / p.layout.tp, e.active, group, p.c) * e.busiest(group.size) if e else 0
    return {"tp": layers * times * tp, "cp": layers * times * cp, "ep": sparse * times * ep}


def _gathering(p: _Pass) -> float:
    """Seconds in which fsdp gathers weights for a micro-batch, forward and backward, and reduces its gradients."""
    group = group_of("fsdp", p.layout, p.devices)
    own = local_parameters(p.shape, p.layout)
    gathers = (2 if p.trains else 1) * all_gather(own * element(p.dtype), group, p.c)
    return gathers + (all_gather(own * GRADIENT, group, p.c) if p.trains else 0)


def _sending(p: _Pass, stage: float) -> float:
    """Seconds between stages: exposed for the first micro-batch, behind computing for the others."""
    one = _between_stages(p)
    return (p.layout.pp - 1) * one / p.layout.chunks + p.count * _hidden(one, stage, p.c)


def _between_stages(p: _Pass) -> float:
    """Seconds in which one micro-batch goes from a stage to the next, forward and backward, in all its chunks."""
    group = group_of("pp", p.layout, p.devices)
    return (1 + int(p.trains)) * p.layout.chunks * send(2 * p.shape.hidden * p.tokens / p.layout.tp, group, p.c)


def _step(p: _Pass) -> Mapping[str, float]:
    """Seconds per optimizer step: gradients over the copies, and the optimizer.

    Gradients are reduced behind the last micro-batch's backward pass, new weights gathered behind the first's forward,
    where nothing else communicates.
    """
    own = local_parameters(p.shape, p.layout) / p.layout.fsdp
    group = group_of("dp", p.layout, p.devices)
    if p.layout.shared_optimizer:
        reduced = all_gather(own * GRADIENT, group, p.c) + all_gather(own * element(p.dtype), group, p.c)
    else:
        reduced = all_reduce(own * GRADIENT, group, p.c)
    copies = p.layout.dp if p.layout.shared_optimizer else 1
    optimizer = own / copies * OPTIMIZER[p.layout.fsdp > 1] / p.bandwidth
    free = max(0.0, sum(_computing(p).values()) - _gathering(p) - _between_stages(p))
    return {"dp": _hidden(reduced, free, p.c), "optimizer": optimizer}
