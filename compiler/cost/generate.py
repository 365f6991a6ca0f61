"""Time and memory of sampling: prefill, and decode steps in which batch and cache change.

A decode step reads the weights and the cache of its sequences, multiplies, and reduces twice per layer over tp. The
terms are summed: on 70 published rows max(memory, compute) is 106 % off, the sum 16 %.
"""

import math
from dataclasses import dataclass

from ..cluster import Slice
from ..shapes import ModelShape
from . import counts
from .collectives import all_reduce, deal, group_of, send
from .constants import DEFAULT, Constants
from .memory import local_parameters
from .queue import decode_profile
from .result import Cost, Memory
from .work import Generate, Layout, element

GRAPHS = 3e9
"""Bytes of an engine beside weights and cache: its captured graphs and workspace."""
GRAPHED = 0.4
"""Of a kernel's own launch, what one in a captured graph takes: about 2 of 5 µs."""
CHUNK = 8192
"""Tokens that a prefill takes at once."""
HOST = 1e-3
"""Seconds of a decode step on the host whatever is in it: a turn of the scheduler's loop, launching a captured graph,
waiting for its tokens. An assumption, of the order of what engines in Python take."""
KV_ELEMENT = 2
"""Bytes of an element of the cache, whatever the weights are."""
LOGITS = 14
"""Bytes per logit that a sampler reads and writes: bf16, then fp32 through temperature, softmax and choice."""


@dataclass(frozen=True)
class Engine:
    """One copy of the weights on tp·pp devices, and what sequences cost on it."""

    shape: ModelShape
    layout: Layout
    devices: Slice
    c: Constants
    dtype: str = "bf16"

    @property
    def flops(self) -> float:
        faster = 2 if element(self.dtype) == 1 and self.devices.device.fp8 else 1
        return self.devices.device.flops * self.c.matmul * faster

    @property
    def bandwidth(self) -> float:
        return self.devices.device.bandwidth * self.c.memory

    @property
    def weights(self) -> float:
        """Bytes of weights on one device."""
        return local_parameters(self.shape, self.layout) * element(self.dtype)

    @property
    def kv_bytes(self) -> float:
        """Bytes of a token's cache on one device: key-value heads are cut by tp as far as there are any."""
        heads = 1 if self.shape.latent else self.shape.kv_heads
        return self.shape.kv_bytes(KV_ELEMENT) / min(self.layout.tp, heads) / self.layout.pp

    def capacity(self, share: float, reserved: float, slots: int) -> float:
        """Tokens that the cache holds."""
        buffers = GRAPHS + self.logits(slots)
        return max(0.0, self.devices.device.memory * share - reserved - self.weights - buffers) / self.kv_bytes

    def logits(self, sequences: float) -> float:
        """Bytes of the logits of a step, in fp32."""
        return sequences * self.shape.vocab * 4 / self.layout.tp

    def reading(self, tokens: float, cached: float) -> float:
        """Seconds in which a step of so many tokens reads weights and `cached` tokens of the cache."""
        touched = counts.touched(self.shape, tokens, self.layout.ep) + self.shape.embedding
        weights = touched * element(self.dtype) / self.layout.tp
        return (weights + cached * self.kv_bytes) / self.bandwidth

    def multiplying(self, tokens: float, heads: float, context: float) -> float:
        """Seconds of the FLOPs of `tokens`, `heads` of them through the head, in a context of so many tokens."""
        asked = counts.matmul_flops(self.shape) + self._padded(tokens) * counts.routed_flops(self.shape)
        products = tokens * asked + heads * counts.head_flops(self.shape, "logprobs")
        scores = tokens * self._attention(context)
        peak = self.devices.device.flops
        return (products / self.flops + scores / (peak * self.c.attention)) / self.layout.model

    def _padded(self, tokens: float) -> float:
        """What the busiest device's experts compute beyond the mean: its load, and rows that fill tiles; a share."""
        e, ep = self.shape.experts, self.layout.ep
        if e is None:
            return 0.0
        return e.busiest(ep) * counts.padding(self.shape, tokens, ep, engine=tokens < CHUNK) - 1

    def _attention(self, context: float) -> float:
        """FLOPs of a token; MLA's decode multiplies with what is cached (2405.04434, section 2.1.2)."""
        m = self.shape.latent
        if m is None:
            return counts.attention_flops(self.shape, context)
        return 2.0 * self.shape.layers * self.shape.heads * (2 * m.kv_rank + m.rope) * context

    def sampling(self, sequences: float) -> float:
        """Seconds of what is pointwise, with the sampler, in the bytes it moves."""
        moved = counts.pointwise_bytes(self.shape, True) / self.layout.pp + LOGITS * self.shape.vocab
        return sequences * moved / self.layout.tp / self.bandwidth

    def reducing(self, tokens: float) -> float:
        """Seconds of the all-reduces of a pass, two per layer."""
        group = group_of("tp", self.layout, self.devices)
        return 2 * self.shape.layers * all_reduce(tokens * 2 * self.shape.hidden, group, self.c)

    def dealing(self, tokens: float) -> float:
        """Seconds in which tokens go to the devices of their experts and come back."""
        e = self.shape.experts
        group = group_of("ep", self.layout, self.devices)
        if e is None or group.size == 1:
            return 0
        width = tokens * 2 * self.shape.hidden / self.layout.tp
        return 2 * self.shape.sparse_layers * deal(width, e.active, group, self.c) * e.busiest(group.size)

    def passing(self, tokens: float) -> float:
        """Seconds between stages."""
        group = group_of("pp", self.layout, self.devices)
        return self.layout.pp * send(tokens * 2 * self.shape.hidden / self.layout.tp, group, self.c)

    def launching(self, sequences: float) -> float:
        """Seconds of a decode step's kernels, and of the host's work: it schedules, prepares, reads out each sequence.

        Of vLLM 0.5.3's time, 29 % were scheduling (blog.vllm.ai, 2024-09-05).
        """
        kernels = counts.kernels(self.shape, compiled=True, engine=True) * self.c.kernel * GRAPHED
        return kernels + HOST + sequences * self.c.engine


def step_parts(engine: Engine, sequences: float, cached: float) -> dict[str, float]:
    """Seconds of one decode step of `sequences` that have `cached` tokens together."""
    return {
        "compute": engine.multiplying(sequences, sequences, cached / max(sequences, 1)),
        "memory": engine.reading(sequences, cached) + engine.sampling(sequences),
        "tp": engine.reducing(sequences),
        "ep": engine.dealing(sequences),
        "pp": engine.passing(sequences),
        "launch": engine.launching(sequences),
    }


def prefill_parts(engine: Engine, sequences: float, prompt: float) -> dict[str, float]:
    """Seconds of all prefills: chunks of prompts, each of which reads the weights."""
    tokens = sequences * prompt
    chunk = min(tokens, CHUNK)
    passes = tokens / chunk if chunk else 0
    moved = tokens * counts.pointwise_bytes(engine.shape, True) / engine.layout.model / engine.bandwidth
    return {
        "compute": engine.multiplying(tokens, sequences, prompt / 2),
        "memory": passes * engine.reading(chunk, 0) + moved,
        "tp": passes * engine.reducing(chunk),
        "ep": passes * engine.dealing(chunk),
        "pp": passes * engine.passing(chunk),
    }


def generation_cost(shape: ModelShape, work: Generate, layout: Layout, devices: Slice, c: Constants) -> Cost:
    """Seconds until the last sequence of the slowest engine is done, and bytes on one of its devices."""
    engine = Engine(shape, layout, devices, c, work.dtype)
    mine = math.ceil(work.sequences / layout.data)
    slots = running(engine, work, mine)
    parts = dict(prefill_parts(engine, mine / work.shared, work.prompt))
    cached = work.prompt + work.lengths.weighted / 2  # tokens a running sequence has, in the mean over steps
    for steps, alive in decode_profile(mine, slots, work.lengths, work.sequences):
        for name, seconds in step_parts(engine, alive, alive * cached).items():
            parts[name] = parts.get(name, 0.0) + steps * seconds
    return Cost(parts, _memory(engine, work, slots), slots)


def running(engine: Engine, work: Generate, sequences: int) -> int:
    """Sequences that an engine runs at once: what its cache holds, at most `slots`. At least one, if it fits or not."""
    most = min(work.slots, sequences)
    room = engine.capacity(work.share, work.reserved, most)
    return max(1, min(most, int(room / (work.prompt + work.lengths.weighted / 2))))


def saturated_rate(
    shape: ModelShape, work: Generate, layout: Layout, devices: Slice, c: Constants = DEFAULT
) -> tuple[float, int]:
    """Tokens per second of all engines while more sequences wait than fit, and the slots of one.

    Each sequence in a slot also takes its part of a prefill per token. work.sequences counts for nothing.
    """
    engine = Engine(shape, layout, devices, c, work.dtype)
    slots = running(engine, work, work.slots)
    cached = work.prompt + work.lengths.weighted / 2
    decode = sum(step_parts(engine, slots, slots * cached).values())
    prefill = sum(prefill_parts(engine, slots / work.shared, work.prompt).values())
    return layout.data * slots / (decode + prefill / work.lengths.mean), slots


def _memory(engine: Engine, work: Generate, slots: int) -> Memory:
    """The cache takes what its sequences need; an engine may hand it more."""
    needed = slots * (work.prompt + work.lengths.weighted / 2) * engine.kv_bytes
    return Memory(weights=engine.weights, kv_cache=needed, logits=engine.logits(slots), buffers=GRAPHS)
