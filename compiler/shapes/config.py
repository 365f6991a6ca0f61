"""The shape a Hugging Face config.json describes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .data import Experts, Latent, ModelShape, ShapeError

NEEDED = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head"),
    "vocab": ("vocab_size",),
}
FFN = ("intermediate_size", "n_inner", "ffn_dim")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
TIED_BY_DEFAULT = ("gpt2", "gemma", "gemma2", "gemma3", "gemma3_text", "opt")
UNGATED = ("gpt2", "gpt_neox", "opt", "phi", "starcoder2")
FOUR_NORMS = ("gemma2", "gemma3", "gemma3_text")
HEAD_NORMS = ("qwen3", "qwen3_moe", "gemma3", "gemma3_text")
QKV_BIAS = ("qwen2", "qwen2_moe")


def shape_of_config(config: Mapping[str, Any] | Path, name: str = "") -> ModelShape:
    """The shape of a parsed config.json, or of a model directory or such a file.

    Raises ShapeError naming the entry that is missing or can't be; OSError.
    """
    if isinstance(config, Path):
        return _of_file(config, name)
    text = config.get("text_config")
    if isinstance(text, Mapping):  # of a model that sees pictures too
        config = {**{k: v for k, v in config.items() if k == "model_type"}, **text}
    sizes = {field: _needed(config, name, *entries) for field, entries in NEEDED.items()}
    kind = str(config.get("model_type", ""))
    heads, hidden = sizes["heads"], sizes["hidden"]
    return ModelShape(
        name or kind,
        sizes["layers"],
        hidden,
        heads,
        _whole(config, "num_key_value_heads") or heads,
        _whole(config, "head_dim") or hidden // heads,
        _whole(config, *FFN) or 4 * hidden,
        sizes["vocab"],
        tied=bool(config.get("tie_word_embeddings", kind in TIED_BY_DEFAULT)),
        gated=kind not in UNGATED,
        qkv_bias=bool(config.get("attention_bias")) or kind in QKV_BIAS,
        head_norms=kind in HEAD_NORMS,
        norms=4 if kind in FOUR_NORMS else 2,
        experts=_experts(config),
        latent=_latent(config),
    )


def _of_file(path: Path, name: str) -> ModelShape:
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ShapeError(f"`{file}` is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise ShapeError(f"`{file}` holds no object")
    return shape_of_config(config, name or file.parent.name)


def _experts(config: Mapping[str, Any]) -> Experts | None:
    total = _whole(config, *EXPERTS)
    if not total:
        return None
    ffn = _whole(config, "moe_intermediate_size", "intermediate_size") or 0
    shared = _whole(config, "shared_expert_intermediate_size") or ffn * (_whole(config, "n_shared_experts") or 0)
    active = _whole(config, "num_experts_per_tok", "num_experts_per_token") or 1
    dense = _whole(config, "first_k_dense_replace") or 0
    return Experts(total, min(active, total), ffn, shared, dense, bias=config.get("topk_method") == "noaux_tc")


def _latent(config: Mapping[str, Any]) -> Latent | None:
    rank = _whole(config, "kv_lora_rank")
    if not rank:
        return None
    sizes = [_whole(config, n) or 0 for n in ("q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")]
    query, rope, nope, value = sizes
    return Latent(query, rank, rope, nope, value)


def _needed(config: Mapping[str, Any], name: str, *entries: str) -> int:
    value = _whole(config, *entries)
    if value is None:
        given = next((f"`{e}` is `{config[e]}`" for e in entries if e in config), f"`{entries[0]}` is missing")
        raise ShapeError(f"the config.json of `{name}` gives no shape: {given}; it is a whole number above 0")
    return value


def _whole(config: Mapping[str, Any], *names: str) -> int | None:
    """The first of these entries that is a whole number above 0."""
    found = (config.get(n) for n in names)
    return next((v for v in found if isinstance(v, int) and not isinstance(v, bool) and v > 0), None)
