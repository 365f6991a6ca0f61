"""Weights of a Llama-like decoder, fused and folded for generation.

The weight of an RMSNorm multiplies the input of the projection that follows it, and the scale of attention multiplies
queries: both are constants, so both move into the projection, whose parts (q, k, v; gate, up) become one product.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ..models.loading import Role

FAMILIES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")

# Types of rotary embedding whose table does not depend on how long the sequence has become.
_FIXED_ROPES = ("default", "linear", "llama3", "yarn")

# The folded weights are a second copy: worth it only while it is small.
_MOST_BYTES = 512 << 20


@dataclass(frozen=True)
class Linear:
    """`x @ weight + bias`. weight: [in, out], so that no transposition is left for each step. bias: [out] or None."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """Add the product to the residual stream, in place."""
        total.addmm_(x, self.weight)
        if self.bias is not None:
            total.add_(self.bias)


@dataclass(frozen=True)
class Layer:
    """qkv: to the queries, then key and value of each kv head in turn, so that one write stores both.

    qk_norm: [heads + 2 * kv_heads, head width], weights of the norms of queries and keys (Qwen3; values 1); or None.
    """

    qkv: Linear
    qk_norm: Tensor | None
    out: Linear
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Decoder:
    """embedding: [vocab, hidden]. head: hidden to vocab, the last norm folded in. rotary: the model's own module."""

    embedding: Tensor
    layers: list[Layer]
    head: Linear
    rotary: nn.Module
    heads: int
    kv_heads: int
    width: int
    eps: float

    @property
    def hidden(self) -> int:
        return self.embedding.shape[1]

    @property
    def vocab(self) -> int:
        return self.head.weight.shape[1]


def unsupported(role: Role) -> str:
    """Why the weights of a role cannot or should not be folded; "" if they can."""
    family, config = type(role.module).__name__, role.config
    if family not in FAMILIES:
        return f"{family} is not one of {', '.join(FAMILIES)}"
    if config.hidden_act != "silu":
        return f"hidden_act is {config.hidden_act}, not silu"
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope not in _FIXED_ROPES:
        return f"rope_type is {rope}, not one of {', '.join(_FIXED_ROPES)}"
    if _slides(config):
        return f"attention slides over {config.sliding_window} tokens"
    size = sum(parameter.numel() * parameter.element_size() for parameter in role.parameters())
    if size > _MOST_BYTES:
        return f"a second copy of {size >> 20} MiB of weights is more than {_MOST_BYTES >> 20} MiB"
    return ""


@torch.no_grad()
def fold(module: nn.Module) -> Decoder:
    """Fused and folded copies of the weights of a supported model."""
    model: Any = module
    first = model.model.layers[0].self_attn
    return Decoder(
        embedding=model.model.embed_tokens.weight.detach().clone(),
        layers=[_fold_layer(layer) for layer in model.model.layers],
        head=_linear([_whole(model.lm_head)], model.model.norm.weight),
        rotary=model.model.rotary_emb,
        heads=first.q_proj.out_features // first.head_dim,
        kv_heads=first.k_proj.out_features // first.head_dim,
        width=first.head_dim,
        eps=model.model.norm.variance_epsilon,
    )


def _fold_layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    pairs = zip(_heads(attention.k_proj, attention), _heads(attention.v_proj, attention), strict=True)
    qkv = _linear([_whole(attention.q_proj), *chain.from_iterable(pairs)], layer.input_layernorm.weight)
    queries = attention.q_proj.out_features
    qk_norm = _fold_qk_norm(attention) if hasattr(attention, "q_norm") else None
    if qk_norm is None:
        qkv.weight[:, :queries] *= attention.scaling
        if qkv.bias is not None:
            qkv.bias[:queries] *= attention.scaling
    gate_up = _linear([_whole(mlp.gate_proj), _whole(mlp.up_proj)], layer.post_attention_layernorm.weight)
    return Layer(qkv, qk_norm, _linear([_whole(attention.o_proj)]), gate_up, _linear([_whole(mlp.down_proj)]))


def _fold_qk_norm(attention: Any) -> Tensor:
    """A norm stands between projection and rotation here: it takes the scale of attention instead."""
    query, key = attention.q_norm.weight * attention.scaling, attention.k_norm.weight
    heads, kv_heads = (part.out_features // attention.head_dim for part in (attention.q_proj, attention.k_proj))
    return torch.stack([query] * heads + [key, torch.ones_like(key)] * kv_heads)


# Rows of a projection: its weight [out, in] and bias [out].
_Part = tuple[Tensor, Tensor | None]


def _whole(projection: Any) -> _Part:
    return projection.weight, projection.bias


def _heads(projection: Any, attention: Any) -> list[_Part]:
    weights = projection.weight.split(attention.head_dim)
    biases = [None] * len(weights) if projection.bias is None else projection.bias.split(attention.head_dim)
    return list(zip(weights, biases, strict=True))


def _linear(parts: list[_Part], norm: Tensor | None = None) -> Linear:
    """The parts side by side, behind a norm's weight (which multiplies what goes in)."""
    weights = [weight.t() for weight, _ in parts]
    folded = weights[0].new_empty(weights[0].shape[0], sum(weight.shape[1] for weight in weights))
    for weight, place in zip(weights, torch.split(folded, [weight.shape[1] for weight in weights], 1), strict=True):
        place.copy_(weight) if norm is None else torch.mul(weight, norm[:, None], out=place)
    biases = [bias for _, bias in parts if bias is not None]
    return Linear(folded, torch.cat(biases) if biases else None)


def _slides(config: Any) -> bool:
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None) or ["sliding_attention"]
    return window is not None and "sliding_attention" in layers and window < config.max_position_embeddings
