"""Rows packed into one sequence for a model's forward: no padding outside attention, and shared prompts only once.

The layers of a model see tokens one by one, but for attention. So all rows of a forward pass go through them as one
sequence of tokens [1, tokens], in which the context that several rows share (the samples of a prompt) stands once, and
only attention gathers queries, keys and values into padded rows. The model stays the library's own: the attention
function is registered with it (`AttentionInterface`) and finds the layout among the keyword arguments.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "shardflow_packed"

# Up to this width plain products beat the fused kernel, whose blocks are then mostly empty (measured on a CPU).
_NARROW = 64


@dataclass(frozen=True)
class Packing:
    """Where the tokens of rows stand.

    ids, positions: [tokens]. gather: [rows, width], the token at each place of the padded rows (any token behind a
    row's end: under causal attention nobody looks there). scatter: [tokens], a place of each token in the flattened
    padded rows. before: [response tokens], the token that each is predicted from. ends: [rows], each row's last token.
    """

    ids: Tensor
    positions: Tensor
    gather: Tensor
    scatter: Tensor
    before: Tensor
    ends: Tensor

    @property
    def saving(self) -> float:
        """The share of the padded rows that isn't computed."""
        return 1 - len(self.ids) / self.gather.numel()


def pack(
    contexts: list[list[int]], responses: list[list[int]], *, whole: bool, device: torch.device, bucketed: bool = False
) -> Packing:
    """The packing of rows.

    whole: read the last token of each row too, not only predict it. bucketed: fill up tokens, rows and width to a few
    sizes, for layers that are compiled for fixed shapes.
    """
    read = [r if whole else r[:-1] for r in responses]
    width = max(len(c) + len(r) for c, r in zip(contexts, read, strict=True))
    width = bucket(width, 32) if bucketed else width
    ids: list[int] = []
    positions: list[int] = []
    places: list[int] = []
    rows: list[list[int]] = []
    starts: dict[tuple[int, ...], int] = {}

    def add(tokens: list[int], row: int, column: int) -> range:
        begin = len(ids)
        ids.extend(tokens)
        positions.extend(range(column, column + len(tokens)))
        places.extend(range(row * width + column, row * width + column + len(tokens)))
        return range(begin, len(ids))

    for row, (context, response) in enumerate(zip(contexts, read, strict=True)):
        shared = tuple(context)
        if shared not in starts:
            starts[shared] = add(context, row, 0).start
        prefix = range(starts[shared], starts[shared] + len(context))
        rows.append([*prefix, *add(response, row, len(context))])

    before = [i for row, c, r in zip(rows, contexts, responses, strict=True) for i in row[len(c) - 1 :][: len(r)]]
    ends = [row[-1] for row in rows]
    if bucketed:
        filling = token_bucket(len(ids)) - len(ids)
        for column in (ids, positions, places):
            column.extend([0] * filling)
        rows += [[0]] * (bucket(len(rows), 8) - len(rows))
    padded = [row + [0] * (width - len(row)) for row in rows]
    tensors = (torch.tensor(x, dtype=torch.long, device=device) for x in (ids, positions, padded, places, before, ends))
    return Packing(*tensors)


def bucket(size: int, step: int) -> int:
    """The filled-up size for compiled layers: a power of two up to `step`, then multiples of `step`."""
    if size > step:
        return -(-size // step) * step
    return 1 << max(size - 1, 0).bit_length()


def token_bucket(tokens: int) -> int:
    """The filled-up number of tokens: eight sizes per power of two, so that at most an eighth is filling."""
    return bucket(tokens, max(32, 1 << max(tokens - 1, 1).bit_length() >> 4))


def packed_states(module: nn.Module, packing: Packing) -> Tensor:
    """[tokens, hidden]: the last hidden states of the backbone of `module`."""
    backbone: Any = module.base_model
    like = next(module.parameters())
    done = torch.zeros((1, 1, 1, 1), dtype=like.dtype, device=like.device)  # a finished mask: the library makes none
    out = backbone(
        packing.ids[None], attention_mask=done, position_ids=packing.positions[None], use_cache=False, packing=packing
    )
    states: Tensor = out.last_hidden_state
    return states[0]  # the filling of a bucket is behind everything that is read


def enable_packing(module: nn.Module) -> None:
    """Let the layers of a model find a packing; without one they attend as before."""
    if getattr(module.config, "_attn_implementation", None) == "sdpa":
        module.set_attn_implementation(NAME)  # type: ignore[operator]


def disable_packing(module: nn.Module) -> None:
    """Undo `enable_packing`."""
    if getattr(module.config, "_attn_implementation", None) == NAME:
        module.set_attn_implementation("sdpa")  # type: ignore[operator]


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packing: Packing | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function of a layer. query: [1, heads, tokens, width] where there is a packing."""
    if packing is None and _is_narrow(query, key, attention_mask, dropout, kwargs):
        return _products(query, key, value, _scale(query, scaling)).transpose(1, 2), None
    if packing is None:
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    _refuse(kwargs, packing)
    q, k, v = (_rows(x, packing) for x in (query, key, value))
    scale = _scale(query, scaling)
    narrow = packing.gather.shape[1] <= _NARROW and not dropout
    out = _products(q, k, v, scale) if narrow else _fused(q, k, v, scale, dropout)
    return out.transpose(1, 2).flatten(0, 1).index_select(0, packing.scatter)[None], None


def _scale(query: Tensor, scaling: float | None) -> float:
    return float(query.shape[-1] ** -0.5 if scaling is None else scaling)


def _is_narrow(query: Tensor, key: Tensor, mask: Tensor | None, dropout: float, kwargs: dict[str, Any]) -> bool:
    """Whether these are whole short rows under plain causal attention."""
    length = query.shape[2]
    plain = mask is None and not dropout and not any(kwargs.get(name) is not None for name in _ODD)
    return plain and 1 < length <= _NARROW and length == key.shape[2] and kwargs.get("sliding_window") is None


_ODD = ("softcap", "s_aux", "position_bias")
"""What some families add to attention, and packed rows don't know."""


def _refuse(kwargs: dict[str, Any], packing: Packing) -> None:
    """What a packed row can't do; a model that asks for it runs unpacked."""
    window = kwargs.get("sliding_window")
    if window is not None and window < packing.gather.shape[1]:
        raise NotImplementedError("attention slides over fewer tokens than the rows have")
    odd = [name for name in _ODD if kwargs.get(name) is not None]
    if odd:
        raise NotImplementedError(f"attention takes {', '.join(odd)}")


def _rows(x: Tensor, packing: Packing) -> Tensor:
    """[1, heads, tokens, width] -> [rows, heads, length, width]"""
    tokens = x[0].transpose(0, 1)
    rows, length = packing.gather.shape
    return tokens.index_select(0, packing.gather.flatten()).view(rows, length, *tokens.shape[1:]).transpose(1, 2)


def _fused(q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, dropout_p=dropout, enable_gqa=True)


def _products(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention as two products; the query heads of a kv head go together."""
    rows, heads, length, width = q.shape
    groups = rows * k.shape[1]
    k, v = k.reshape(groups, length, width), v.reshape(groups, length, width)
    weights = torch.bmm((q * scale).reshape(groups, -1, width), k.transpose(1, 2)).view(groups, -1, length, length)
    future = torch.full((length, length), -torch.inf, dtype=q.dtype, device=q.device).triu_(1)
    shares = (weights + future).softmax(-1).view(groups, -1, length)
    return torch.bmm(shares, v).view(rows, heads, length, width)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
