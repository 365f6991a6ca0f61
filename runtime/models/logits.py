"""Log-probs and entropies of chosen tokens, without ever holding all of [tokens, vocab] at once."""

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

# Elements of [tokens, vocab] at once (16 MiB in float32), but never so few rows that the product starves.
_CHUNK_ELEMENTS = 1 << 22
_CHUNK_ROWS = 256


@dataclass(frozen=True)
class Wanted:
    """tokens: int64 [tokens]. temperature: a number or [tokens]. entropy: whether it is wanted beside the log-probs."""

    tokens: Tensor
    temperature: float | Tensor
    entropy: bool

    def rows(self, start: int, stop: int) -> "Wanted":
        scale = self.temperature
        return Wanted(self.tokens[start:stop], scale[start:stop] if isinstance(scale, Tensor) else scale, self.entropy)


def token_statistics(
    states: Tensor, head: nn.Module | None, wanted: Wanted, chunk_tokens: int | None = None
) -> tuple[Tensor, ...]:
    """(logprobs,) or (logprobs, entropies), each [tokens], of softmax(head(states) / temperature).

    states: [tokens, hidden], or the logits themselves [tokens, vocab] where `head` is None.
    Computed in float32 at least. With more than `chunk_tokens` rows the logits are made chunk by chunk, and again in
    the backward pass.
    """
    count = states.shape[0]
    size = chunk_tokens or _default_chunk(states, head)
    if count <= size:
        return _whole(states, head, wanted)
    if _is_plain_linear(head):
        weight, bias = cast(nn.Linear, head).weight, cast(nn.Linear, head).bias
        found = _ChunkedHead.apply(states, weight, bias, wanted, size)  # type: ignore[no-untyped-call]
        return cast(tuple[Tensor, ...], found)
    chunks = [(i, min(i + size, count)) for i in range(0, count, size)]
    parts = [_again(states[i:j], head, wanted.rows(i, j)) for i, j in chunks]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _default_chunk(states: Tensor, head: nn.Module | None) -> int:
    weight = getattr(head, "weight", None)
    vocab = weight.shape[0] if isinstance(weight, Tensor) else states.shape[-1]
    return max(_CHUNK_ROWS, _CHUNK_ELEMENTS // vocab)


def _is_plain_linear(head: nn.Module | None) -> bool:
    # A subclass, a sharded weight or a hook means that the head must be called, not taken apart.
    return type(head) is nn.Linear and type(head.weight) is nn.Parameter and not head._forward_pre_hooks


def _again(states: Tensor, head: nn.Module | None, wanted: Wanted) -> tuple[Tensor, ...]:
    if not torch.is_grad_enabled():
        return _whole(states, head, wanted)
    return cast(tuple[Tensor, ...], checkpoint(_whole, states, head, wanted, use_reentrant=False))


def _whole(states: Tensor, head: nn.Module | None, wanted: Wanted) -> tuple[Tensor, ...]:
    logits = _scaled(states if head is None else head(states), wanted)
    if not wanted.entropy:
        return (-F.cross_entropy(logits, wanted.tokens, reduction="none"),)
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(-1, wanted.tokens[:, None])[:, 0]
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


def _scaled(logits: Tensor, wanted: Wanted) -> Tensor:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scale = wanted.temperature
    if isinstance(scale, Tensor):
        return logits / scale[:, None].to(logits.dtype)
    return logits if scale == 1.0 else logits / scale


class _ChunkedHead(torch.autograd.Function):
    """`_whole` of a linear head, chunk by chunk, with its gradient by hand so that weights accumulate in place.

    With p = softmax(z), z = head(states) / T: d logp[y]/dz = onehot(y) - p, and dH/dz = -p * (log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, wanted: Wanted, size: int
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(states, weight, bias)
        ctx.wanted, ctx.size = wanted, size
        parts = []
        for start in range(0, states.shape[0], size):
            rows = wanted.rows(start, start + size)
            parts.append(_whole(F.linear(states[start : start + size], weight, bias), None, rows))
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias = ctx.saved_tensors
        d_states, d_weight = torch.empty_like(states), torch.zeros_like(weight)
        d_bias = None if bias is None else torch.zeros_like(bias)
        for start in range(0, states.shape[0], ctx.size):
            span = slice(start, start + ctx.size)
            x, wanted = states[span], ctx.wanted.rows(start, start + ctx.size)
            d_logits = _d_logits(F.linear(x, weight, bias), wanted, [g[span] for g in outer]).to(weight.dtype)
            torch.mm(d_logits, weight, out=d_states[span])
            d_weight.addmm_(d_logits.t(), x)
            if d_bias is not None:
                d_bias += d_logits.sum(0)
        return d_states, d_weight, d_bias, None, None


def _d_logits(logits: Tensor, wanted: Wanted, outer: list[Tensor]) -> Tensor:
    """The gradient of the outer sum with respect to the head's logits, [rows, vocab]."""
    logprobs = _scaled(logits, wanted).log_softmax(-1)
    probs = logprobs.exp()
    gradient = probs * -outer[0][:, None]
    gradient.scatter_add_(1, wanted.tokens[:, None], outer[0][:, None])
    if wanted.entropy:
        entropy = -(probs * logprobs).sum(-1, keepdim=True)
        gradient -= outer[1][:, None] * probs * (logprobs + entropy)
    scale = wanted.temperature
    return gradient / (scale[:, None].to(gradient.dtype) if isinstance(scale, Tensor) else scale)
