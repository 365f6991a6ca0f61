"""What a model's forward pass says about given responses: log-probs, entropies, values, scores.

Values travel packed: one number per response token, rows one after another.

The passes of a sharded role are collectives. Its ranks make the same number of them in the same order, whatever rows
they have: one that has none takes a tiny row along, whose results are empty but hang on the graph (see `idle`).
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .batches import Batch, Sequences, is_direct, make_batch
from .loading import ModelError, Role
from .logits import Wanted, token_statistics

# What may be wanted: of a causal LM, per response token; of a model with a scalar head, per response token or per row.
TOKEN_STATISTICS = ("logprobs", "entropy")
HEAD_VALUES = ("values", "score")

# What goes through a sharded model where there is nothing to go through it: every vocabulary has a token 0.
_TINY = Sequences([[0, 0]], [[0]])


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Rows in groups of similar length, so that rows * longest <= budget; a row longer than that stands alone.

    A pure function of its arguments: rows longest first, ties in row order.
    """
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if not groups or (len(groups[-1]) + 1) * lengths[groups[-1][0]] > budget:
            groups.append([])
        groups[-1].append(row)
    return groups


def forward(
    role: Role,
    seqs: Sequences,
    want: tuple[str, ...],
    temperature: float | Tensor = 1.0,
    chunk_tokens: int | None = None,
) -> dict[str, Tensor]:
    """One forward pass of these rows.

    want: `logprobs`, `entropy` (of softmax(logits / temperature), a temperature of 0 counting as 1), `values` (V of the
    state before each token), each [sum of response lengths]; `score` (at the last token), [rows].
    temperature: one number, or a tensor [rows].
    chunk_tokens: at most so many rows of [tokens, vocab] are held at once; recomputed in the backward pass.
    Gradients flow if they are enabled. Results are float32, or float64 of a float64 model.
    Raises ModelError where a model of this kind has no such value.
    """
    _check(role, want)
    if len(seqs):
        return role.run(lambda: _forward(role, seqs, want, temperature, chunk_tokens))
    if not role.is_sharded:
        return _nothing(role, want)
    return {name: value[:0] for name, value in forward(role, _TINY, want).items()}


def _forward(
    role: Role, seqs: Sequences, want: tuple[str, ...], temperature: float | Tensor, chunk_tokens: int | None
) -> dict[str, Tensor]:
    role.train(torch.is_grad_enabled())
    batch = make_batch(role, seqs, whole="score" in want)
    result: dict[str, Tensor] = {}
    tokens = tuple(name for name in TOKEN_STATISTICS if name in want)
    if tokens:
        wanted = Wanted(batch.tokens, batch.per_token(temperature), "entropy" in want)
        result = dict(zip(TOKEN_STATISTICS, _token_statistics(role, batch, wanted, chunk_tokens), strict=False))
    if any(name in want for name in HEAD_VALUES):
        result |= _head_values(role, batch, want)
    # FSDP2 waits for the gradients of these, and would miss that of a view.
    return {name: result[name].clone() if result[name]._is_view() else result[name] for name in want}


def _nothing(role: Role, want: tuple[str, ...]) -> dict[str, Tensor]:
    return {name: torch.zeros(0, dtype=_at_least_float32(role.dtype), device=role.device) for name in want}


def evaluate(
    role: Role,
    seqs: Sequences,
    want: tuple[str, ...],
    temperature: float | Tensor = 1.0,
    budget: int = 16384,
    passes: int | None = None,
) -> dict[str, Tensor]:
    """`forward` without gradients, in micro-batches of at most `budget` tokens, results in row order.

    passes: of a sharded role, the largest `count_passes` of its ranks.
    """
    groups = micro_batches(seqs.lengths, budget)
    order = [row for group in groups for row in group]
    parts: dict[str, list[Tensor]] = {name: [] for name in want}
    with torch.no_grad():
        for group in groups:
            scale = temperature[group] if isinstance(temperature, Tensor) else temperature
            for name, value in forward(role, seqs.select(group), want, scale).items():
                counts = [1] * len(group) if name == "score" else seqs.select(group).response_lengths
                parts[name].extend(torch.split(value, counts))
        for _ in range(len(groups), passes or 0):
            forward(role, Sequences([], []), want)
    if not groups:
        return _nothing(role, want)
    return {name: _in_row_order(pieces, order) for name, pieces in parts.items()}


def count_passes(seqs: Sequences, budget: int = 16384) -> int:
    """How many forward passes `evaluate` makes for these rows."""
    return len(micro_batches(seqs.lengths, budget))


def idle(role: Role, *wants: tuple[str, ...]) -> None:
    """The forward passes and the backward pass of a micro-batch without rows: it takes part, and changes no gradient.

    wants: of each forward pass what it is made for, as on the ranks that have rows.
    """
    if role.is_sharded:
        outputs = [value for want in wants for value in forward(role, Sequences([], []), want).values()]
        torch.autograd.backward(touch(tie(outputs)))


def tie(outputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of several forward passes, whose gradients go back together, whatever order a loss has for them.

    A sharded model's backward pass is a row of collectives, so it has to be in the same order on all ranks.
    """
    tied: tuple[Tensor, ...] = _Tie.apply(*outputs)  # type: ignore[no-untyped-call]
    return tied


class _Tie(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(output.view_as(output) for output in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, ...]:
        return outer  # zeros where there is none


def touch(outputs: Iterable[Tensor]) -> Tensor:
    """A zero that hangs on all of these outputs: added to a loss it drives the whole backward pass and changes nothing.

    Not even where an output is infinite or NaN: neither the zero nor the gradients, which are zeros, are computed.
    """
    reached: Tensor = _Touch.apply(*outputs)  # type: ignore[no-untyped-call]
    return reached


class _Touch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> Tensor:
        ctx.likes = [(output.shape, output.dtype, output.device) for output in outputs]
        return outputs[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.likes)


def _in_row_order(pieces: list[Tensor], order: list[int]) -> Tensor:
    return torch.cat([piece for _, piece in sorted(zip(order, pieces, strict=True), key=lambda pair: pair[0])])


def _check(role: Role, want: tuple[str, ...]) -> None:
    allowed = TOKEN_STATISTICS if role.kind == "causal_lm" else HEAD_VALUES
    for name in want:
        if name not in allowed:
            raise ModelError(f"{role.name} is a {role.kind}, which has no {name}; it has {' and '.join(allowed)}")


def _head_values(role: Role, batch: Batch, want: tuple[str, ...]) -> dict[str, Tensor]:
    head = getattr(role.module, "score", None)
    if not isinstance(head, nn.Module):
        raise ModelError(f"{role.name}: {type(role.module).__name__} has no scalar head named score")
    hidden = batch.states(role)
    chosen = {"values": batch.before_tokens, "score": batch.at_end}
    found = {name: head(chosen[name](hidden))[:, 0] for name in want}
    return {name: value.to(_at_least_float32(value.dtype)) for name, value in found.items()}


def _token_statistics(role: Role, batch: Batch, wanted: Wanted, chunk_tokens: int | None) -> tuple[Tensor, ...]:
    if not is_direct(role):
        return token_statistics(batch.before_tokens(batch.logits(role)), None, wanted, chunk_tokens)
    head = role.module.get_output_embeddings()  # type: ignore[operator]
    return token_statistics(batch.before_tokens(batch.states(role)), head, wanted, chunk_tokens)


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
