"""FLOPs and bytes of a model's forward pass, per token and whole model, before anything is cut.

Per token: 2 FLOPs per parameter that multiplies it; attention 4·layers·heads·head_dim·context, where `context` is what
a token attends to in the mean (half of the sequence: causal). A backward pass is twice the products, 2.5 times the
attention (it computes its scores again: FlashAttention, 2205.14135).
"""

from ..shapes import ModelShape
from .work import Head

BACKWARD = 2.0
ATTENTION_BACKWARD = 2.5
KERNELS = {True: 12, False: 30}
"""Kernels of a layer's forward pass, by whether it is compiled."""
MIXTURE_KERNELS = {True: 6, False: 60}
"""More of them where tokens are dealt to experts: an engine's are fused; others count, sort, permute and wait for the
host to know how many go where."""

PASSES = {True: (4, 4, 4, 6, 4), False: (24, 30, 12, 10, 6)}
"""Bytes of bf16 pointwise work, by whether it is compiled: of a norm per element (a plain one computes in fp32, a
kernel per operation), of rotary embeddings per element of q and k, of a layer's two residual sums per element, of the
activation per inner element, gated and not."""
TILE = {True: 16, False: 128}
"""Rows of a tile of a grouped product, in an engine that generates (vLLM's fused kernel for few tokens) and else
(CUTLASS, DeepGEMM)."""
PERMUTED = 8
"""Bytes per element to deal tokens to experts and take them back: read and written twice."""


def matmul_flops(shape: ModelShape) -> float:
    """Of all layers."""
    return 2.0 * shape.active_matrices


def routed_flops(shape: ModelShape) -> float:
    """Of routed experts, in all layers."""
    return 2.0 * shape.sparse_layers * shape.experts.active * shape.expert if shape.experts else 0.0


def padding(shape: ModelShape, tokens: float, ep: int, engine: bool = False) -> float:
    """What grouped products of experts compute, as a multiple of what is asked for.

    Tiles have `TILE` rows: an expert's last one is half empty in the mean. tokens: of one device, of `ep` that share.
    """
    e = shape.experts
    if e is None:
        return 1.0
    each = tokens * ep * e.active / e.total
    met = 1 - (1 - e.active / e.total) ** max(1.0, tokens * ep)
    return float(1 + met * TILE[engine] / 2 / each)


def routed_bytes(shape: ModelShape) -> float:
    """Bytes per token of bf16 that the products of routed experts read and write beside weights, in all layers.

    Experts are narrow, so this is much for their FLOPs. Of large matrices it is in the share of the peak they reach.
    """
    e = shape.experts
    return 2.0 * shape.sparse_layers * e.active * (2 * shape.hidden + 3 * e.ffn) if e else 0.0


def head_flops(shape: ModelShape, head: Head) -> float:
    """Of the head: vocabulary for log-probabilities, one number for values and scores."""
    return 2.0 * (shape.embedding if head == "logprobs" else shape.hidden)


def attention_flops(shape: ModelShape, context: float) -> float:
    """Of all layers, where a token attends to `context` others."""
    m = shape.latent
    sizes = m.nope + m.rope + m.value if m else 2 * shape.head_dim
    return 2.0 * shape.layers * shape.heads * sizes * context


def pointwise_bytes(shape: ModelShape, compiled: bool) -> float:
    """Read and written by what is no product, in all layers."""
    norm, rotary, sums, gated, plain = PASSES[compiled]
    turned = (shape.heads + shape.kv_heads) * shape.head_dim
    act = gated if shape.gated else plain
    each = (shape.norms * norm + sums) * shape.hidden + rotary * turned
    e = shape.experts
    sparse = act * (e.active * e.ffn + e.shared) + PERMUTED * e.active * shape.hidden if e else 0
    dense = (shape.layers - shape.sparse_layers) * act * shape.ffn
    return float(shape.layers * each + dense + shape.sparse_layers * sparse)


def logits_bytes(shape: ModelShape, head: Head, compiled: bool, trains: bool) -> float:
    """Read and written by a log-softmax in fp32 and, where it trains, its gradient."""
    if head != "logprobs":
        return 0
    return shape.vocab * ((10.0 if compiled else 18.0) + (8.0 if trains else 0.0))


def kernels(shape: ModelShape, compiled: bool, engine: bool = False) -> float:
    """Of a forward pass of all layers. engine: one that generates."""
    return shape.layers * KERNELS[compiled] + shape.sparse_layers * MIXTURE_KERNELS[engine]


def touched(shape: ModelShape, tokens: float, ep: int = 1) -> float:
    """Parameters of the layers that a pass with so many tokens reads on one of `ep` devices that share the experts.

    Of the experts, those that a token goes to, its own or another device's: 1 - (1 - active/total)^tokens of them.
    """
    e = shape.experts
    if e is None:
        return shape.matrices
    share = 1 - (1 - e.active / e.total) ** max(1.0, tokens * ep)
    return float(shape.matrices - shape.routed + share * shape.routed / ep)
