"""Weights of a Llama-like decoder, fused and folded for generation.

The weight of an RMSNorm multiplies the input of the projection that follows it, and the scale of attention multiplies
queries: both are constants, so both move into the projection, whose parts (q, k, v; gate, up) become one product.
"""

from dataclasses import dataclass
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
    """qk_norm: [heads + kv_heads, head width], weights of the norms of queries and keys (Qwen3), or None."""

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
        head=_linear([model.lm_head], model.model.norm.weight),
        rotary=model.model.rotary_emb,
        heads=first.q_proj.out_features // first.head_dim,
        kv_heads=first.k_proj.out_features // first.head_dim,
        width=first.head_dim,
        eps=model.model.norm.variance_epsilon,
    )


def _fold_layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv = _linear([attention.q_proj, attention.k_proj, attention.v_proj], layer.input_layernorm.weight)
    queries = attention.q_proj.out_features
    qk_norm = None
    if hasattr(attention, "q_norm"):
        counts = [part.out_features // attention.head_dim for part in (attention.q_proj, attention.k_proj)]
        scaled = attention.q_norm.weight.detach() * attention.scaling
        qk_norm = torch.stack([scaled] * counts[0] + [attention.k_norm.weight.detach()] * counts[1])
    else:
        qkv.weight[:, :queries] *= attention.scaling
        if qkv.bias is not None:
            qkv.bias[:queries] *= attention.scaling
    gate_up = _linear([mlp.gate_proj, mlp.up_proj], layer.post_attention_layernorm.weight)
    return Layer(qkv, qk_norm, _linear([attention.o_proj]), gate_up, _linear([mlp.down_proj]))


def _linear(parts: list[Any], norm: Tensor | None = None) -> Linear:
    """The parts side by side, behind a norm's weight. Products are taken in float32 at least, and rounded once."""
    weight = torch.cat([part.weight for part in parts])
    if norm is not None:
        wide = torch.promote_types(weight.dtype, torch.float32)
        weight = (weight.to(wide) * norm.to(wide)).to(weight.dtype)
    biases = [part.bias for part in parts if part.bias is not None]
    return Linear(weight.t().contiguous(), torch.cat(biases).detach() if biases else None)


def _slides(config: Any) -> bool:
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None) or ["sliding_attention"]
    return window is not None and "sliding_attention" in layers and window < config.max_position_embeddings
