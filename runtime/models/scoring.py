"""What a model's forward pass says about given responses: log-probs, entropies, values, scores.

Values travel packed: one number per response token, rows one after another. Padding exists only inside `forward`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from .layers import eager_layers, is_compiled
from .loading import ModelError, Role
from .logits import Wanted, token_statistics

# What may be wanted: of a causal LM, per response token; of a model with a scalar head, per response token or per row.
TOKEN_STATISTICS = ("logprobs", "entropy")
HEAD_VALUES = ("values", "score")


@dataclass(frozen=True)
class Sequences:
    """Rows of token ids: what was given, and what the policy chose. A context is never empty, a response may be."""

    context: list[list[int]]
    response: list[list[int]]

    def __post_init__(self) -> None:
        if len(self.context) != len(self.response):
            raise ValueError(f"{len(self.context)} contexts do not go with {len(self.response)} responses")
        for row, ids in enumerate(self.context):
            if not ids:
                raise ValueError(
                    f"row {row} has an empty context: a first token is predicted from at least one before it"
                )

    def __len__(self) -> int:
        return len(self.context)

    def select(self, rows: Iterable[int]) -> "Sequences":
        rows = list(rows)
        return Sequences([self.context[row] for row in rows], [self.response[row] for row in rows])

    @property
    def lengths(self) -> list[int]:
        """Tokens per row, context and response together."""
        return [len(c) + len(r) for c, r in zip(self.context, self.response, strict=True)]

    @property
    def response_lengths(self) -> list[int]:
        return [len(response) for response in self.response]


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
    """One padded forward pass of these rows.

    want: `logprobs`, `entropy` (of softmax(logits / temperature), a temperature of 0 counting as 1), `values` (V of the
    state before each token), each [sum of response lengths]; `score` (at the last token), [rows].
    temperature: one number, or a tensor [rows].
    chunk_tokens: at most so many rows of [tokens, vocab] are held at once; recomputed in the backward pass.
    Gradients flow if they are enabled. Results are float32, or float64 of a float64 model.
    Raises ModelError where a model of this kind has no such value.
    """
    _check(role, want)
    if not len(seqs):
        return {name: torch.zeros(0, dtype=_at_least_float32(role.dtype), device=role.device) for name in want}
    role.train(torch.is_grad_enabled())
    batch = _Padded(seqs, role, whole="score" in want)
    result: dict[str, Tensor] = {}
    tokens = tuple(name for name in TOKEN_STATISTICS if name in want)
    if tokens:
        wanted = Wanted(batch.tokens, batch.per_token(temperature), "entropy" in want)
        result = dict(zip(TOKEN_STATISTICS, _token_statistics(role, batch, wanted, chunk_tokens), strict=False))
    if any(name in want for name in HEAD_VALUES):
        result |= _head_values(role, batch, want)
    return {name: result[name] for name in want}


def evaluate(
    role: Role,
    seqs: Sequences,
    want: tuple[str, ...],
    temperature: float | Tensor = 1.0,
    budget: int = 16384,
) -> dict[str, Tensor]:
    """`forward` without gradients, in micro-batches of at most `budget` tokens, results in row order."""
    groups = micro_batches(seqs.lengths, budget)
    order = [row for group in groups for row in group]
    parts: dict[str, list[Tensor]] = {name: [] for name in want}
    with torch.no_grad():
        for group in groups:
            scale = temperature[group] if isinstance(temperature, Tensor) else temperature
            for name, value in forward(role, seqs.select(group), want, scale).items():
                counts = [1] * len(group) if name == "score" else seqs.select(group).response_lengths
                parts[name].extend(torch.split(value, counts))
    if not groups:
        return forward(role, seqs, want)
    return {name: _in_row_order(pieces, order) for name, pieces in parts.items()}


def _in_row_order(pieces: list[Tensor], order: list[int]) -> Tensor:
    return torch.cat([piece for _, piece in sorted(zip(order, pieces, strict=True), key=lambda pair: pair[0])])


class _Padded:
    """Rows padded on the right, and where their response tokens are.

    There is no attention mask: under causal attention a token never sees what stands to its right, so right padding
    changes nothing and the kernel's own causal path serves for all lengths.
    """

    def __init__(self, seqs: Sequences, role: Role, *, whole: bool) -> None:
        self.contexts = [len(c) for c in seqs.context]
        self.responses = seqs.response_lengths
        # The last token is only predicted, not read, unless a score is taken there.
        lengths = [n if whole else max(n - 1, 1) for n in seqs.lengths]
        rows, self.width = len(lengths), max(lengths)
        if is_compiled(role.module):
            rows, self.width = bucket(rows, 8), _bucketed_width(self.width, role)
        filled = [
            (c + r)[:n] + [0] * (self.width - n) for c, r, n in zip(seqs.context, seqs.response, lengths, strict=True)
        ]
        filled += [[0] * self.width] * (rows - len(filled))
        chosen = [i for response in seqs.response for i in response]
        self.ids = torch.tensor(filled, device=role.device)
        self.tokens = torch.tensor(chosen, dtype=torch.long, device=role.device)

    def before_tokens(self, hidden: Tensor) -> Tensor:
        """[rows, width, d] -> [tokens, d]: the states from which the response tokens are predicted."""
        first, count, rows = self.contexts[0] - 1, self.responses[0], len(self.contexts)
        if len(set(self.contexts)) == 1 and len(set(self.responses)) == 1:
            return hidden[:rows, first : first + count].flatten(0, 1)
        return hidden.flatten(0, 1).index_select(0, self._before)

    def at_end(self, hidden: Tensor) -> Tensor:
        """[rows, width, d] -> [rows, d]: the states after the last token."""
        last = [c + r - 1 for c, r in zip(self.contexts, self.responses, strict=True)]
        return hidden[torch.arange(len(last)), last]

    def per_token(self, temperature: float | Tensor) -> float | Tensor:
        if not isinstance(temperature, Tensor):
            return temperature or 1.0
        scale = torch.where(temperature == 0, 1.0, temperature).to(self.ids.device)
        return scale.repeat_interleave(torch.tensor(self.responses, device=scale.device))

    @cached_property
    def _before(self) -> Tensor:
        starts = (row * self.width + context - 1 for row, context in enumerate(self.contexts))
        spans = [range(start, start + count) for start, count in zip(starts, self.responses, strict=True)]
        return torch.tensor([i for span in spans for i in span], dtype=torch.long, device=self.ids.device)


def bucket(size: int, step: int) -> int:
    """The padded size for compiled layers: a power of two up to `step`, then multiples of `step`."""
    if size > step:
        return -(-size // step) * step
    return 1 << max(size - 1, 0).bit_length()


def _bucketed_width(width: int, role: Role) -> int:
    # Padding may not reach beyond the positions that a model has (GPT-2 has a table of them).
    most = getattr(role.config.get_text_config(), "max_position_embeddings", None) or width
    return max(width, min(bucket(width, 32), most))


def _check(role: Role, want: tuple[str, ...]) -> None:
    allowed = TOKEN_STATISTICS if role.kind == "causal_lm" else HEAD_VALUES
    for name in want:
        if name not in allowed:
            raise ModelError(f"{role.name} is a {role.kind}, which has no {name}; it has {' and '.join(allowed)}")


def _head_values(role: Role, batch: _Padded, want: tuple[str, ...]) -> dict[str, Tensor]:
    head = getattr(role.module, "score", None)
    if not isinstance(head, nn.Module):
        raise ModelError(f"{role.name}: {type(role.module).__name__} has no scalar head named score")
    hidden = _backbone(role, batch.ids)
    chosen = {"values": batch.before_tokens, "score": batch.at_end}
    found = {name: head(chosen[name](hidden))[:, 0] for name in want}
    return {name: value.to(_at_least_float32(value.dtype)) for name, value in found.items()}


def _token_statistics(role: Role, batch: _Padded, wanted: Wanted, chunk_tokens: int | None) -> tuple[Tensor, ...]:
    if not _is_direct(role):
        logits = role.module(batch.ids, use_cache=False).logits
        return token_statistics(batch.before_tokens(logits), None, wanted, chunk_tokens)
    head = role.module.get_output_embeddings()  # type: ignore[operator]
    return token_statistics(batch.before_tokens(_backbone(role, batch.ids)), head, wanted, chunk_tokens)


def _backbone(role: Role, ids: Tensor) -> Tensor:
    hidden: Tensor = role.module.base_model(ids, use_cache=False).last_hidden_state  # type: ignore[operator]
    return hidden


def _is_direct(role: Role) -> bool:
    """Whether the logits are just the head of the hidden states; some families cap or scale them on the way."""
    if role.direct is None:
        role.direct = _measure_direct(role)
    return role.direct


@torch.no_grad()
def _measure_direct(role: Role) -> bool:
    head = role.module.get_output_embeddings()  # type: ignore[operator]
    if head is None:
        return False
    training = role.module.training
    role.module.eval()
    ids = torch.arange(8, device=role.device).view(2, 4) % role.config.get_text_config().vocab_size
    with eager_layers(role.module):  # not worth a kernel of its own
        ours, theirs = head(_backbone(role, ids)), role.module(ids, use_cache=False).logits
    role.module.train(training)
    return torch.allclose(ours.float(), theirs.float(), rtol=1e-4, atol=1e-4)


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
