"""Rows as a model's forward takes them: packed into one sequence where that saves work, else padded."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .layers import eager_layers, is_compiled
from .loading import Role
from .packing import bucket, disable_packing, enable_packing, pack, packed_states

_LEAST_SAVING = 0.05
"""Packing gathers queries, keys and values in every layer: it has to save more than this share of the tokens."""

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2}


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


class Batch(ABC):
    """Rows of one forward pass: how they enter the model, and where the response tokens are in what comes out."""

    def __init__(self, seqs: Sequences, role: Role) -> None:
        self.contexts = [len(c) for c in seqs.context]
        self.responses = seqs.response_lengths
        chosen = [i for response in seqs.response for i in response]
        self.tokens = torch.tensor(chosen, dtype=torch.long, device=role.device)

    @abstractmethod
    def states(self, role: Role) -> Tensor:
        """The last hidden states of the backbone, in this batch's layout."""

    @abstractmethod
    def logits(self, role: Role) -> Tensor:
        """The model's own logits, in the same layout; for models whose logits are more than a head's product."""

    @abstractmethod
    def before_tokens(self, states: Tensor) -> Tensor:
        """[tokens, d]: the states from which the response tokens are predicted."""

    @abstractmethod
    def at_end(self, states: Tensor) -> Tensor:
        """[rows, d]: the states after the last token."""

    def per_token(self, temperature: float | Tensor) -> float | Tensor:
        if not isinstance(temperature, Tensor):
            return temperature or 1.0
        scale = torch.where(temperature == 0, 1.0, temperature).to(self.tokens.device)
        return scale.repeat_interleave(torch.tensor(self.responses, device=scale.device))


class PaddedBatch(Batch):
    """Rows padded on the right, and where their response tokens are.

    There is no attention mask: under causal attention a token never sees what stands to its right, so right padding
    changes nothing and the kernel's own causal path serves for all lengths.
    """

    def __init__(self, seqs: Sequences, role: Role, *, whole: bool) -> None:
        super().__init__(seqs, role)
        # The last token is only predicted, not read, unless a score is taken there.
        lengths = [n if whole else max(n - 1, 1) for n in seqs.lengths]
        rows, self.width = len(lengths), max(lengths)
        if is_compiled(role.module):
            rows, self.width = bucket(rows, 8), _bucketed_width(self.width, role)
        filled = [
            (c + r)[:n] + [0] * (self.width - n) for c, r, n in zip(seqs.context, seqs.response, lengths, strict=True)
        ]
        filled += [[0] * self.width] * (rows - len(filled))
        self.ids = torch.tensor(filled, device=role.device)

    def states(self, role: Role) -> Tensor:
        return backbone_states(role, self.ids)

    def logits(self, role: Role) -> Tensor:
        logits: Tensor = role.module(self.ids, use_cache=False).logits
        return logits

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

    @cached_property
    def _before(self) -> Tensor:
        starts = (row * self.width + context - 1 for row, context in enumerate(self.contexts))
        spans = [range(start, start + count) for start, count in zip(starts, self.responses, strict=True)]
        return torch.tensor([i for span in spans for i in span], dtype=torch.long, device=self.ids.device)


class PackedBatch(Batch):
    """Rows one after another, a context that several share only once (see `packing`)."""

    def __init__(self, seqs: Sequences, role: Role, *, whole: bool) -> None:
        super().__init__(seqs, role)
        bucketed = is_compiled(role.module)
        self.packing = pack(seqs.context, seqs.response, whole=whole, device=role.device, bucketed=bucketed)

    def states(self, role: Role) -> Tensor:
        return packed_states(role.module, self.packing)

    def logits(self, role: Role) -> Tensor:
        raise NotImplementedError("only models whose logits are their head's product are packed")

    def before_tokens(self, states: Tensor) -> Tensor:
        return states.index_select(0, self.packing.before)

    def at_end(self, states: Tensor) -> Tensor:
        return states.index_select(0, self.packing.ends)


def make_batch(role: Role, seqs: Sequences, *, whole: bool) -> Batch:
    """The rows packed if the model can and enough is saved, else padded. whole: the last tokens are read too."""
    if packs(role):
        batch = PackedBatch(seqs, role, whole=whole)
        if batch.packing.saving >= _LEAST_SAVING or is_compiled(role.module):
            return batch
    return PaddedBatch(seqs, role, whole=whole)


def _bucketed_width(width: int, role: Role) -> int:
    # Padding may not reach beyond the positions that a model has (GPT-2 has a table of them).
    most = getattr(role.config.get_text_config(), "max_position_embeddings", None) or width
    return max(width, min(bucket(width, 32), most))


# ---------------------------------------------------------------- what a model can


def backbone_states(role: Role, ids: Tensor) -> Tensor:
    """[rows, width] token ids -> [rows, width, hidden]"""
    hidden: Tensor = role.module.base_model(ids, use_cache=False).last_hidden_state  # type: ignore[operator]
    return hidden


def is_direct(role: Role) -> bool:
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
        ours, theirs = head(backbone_states(role, ids)), role.module(ids, use_cache=False).logits
    role.module.train(training)
    return torch.allclose(ours.float(), theirs.float(), rtol=1e-4, atol=1e-4)


def packs(role: Role) -> bool:
    """Whether the model's layers attend over packed rows, and to the same result as over padded ones."""
    if role.kind == "causal_lm" and not is_direct(role):
        return False
    if role.packs is None:
        role.packs = _measure_packs(role)
    return role.packs


@torch.no_grad()
def _measure_packs(role: Role) -> bool:
    vocab = role.config.get_text_config().vocab_size
    contexts = [[i % vocab for i in row] for row in ([5, 3, 8], [5, 3, 8], [2])]
    responses = [[i % vocab for i in row] for row in ([1, 4], [7, 6, 9, 1], [3, 3])]
    seqs = Sequences(contexts, responses)
    training = role.module.training
    role.module.eval()
    enable_packing(role.module)
    try:
        with eager_layers(role.module):
            batches = [kind(seqs, role, whole=False) for kind in (PackedBatch, PaddedBatch)]
            ours, theirs = (b.before_tokens(b.states(role)) for b in batches)
    except (NotImplementedError, TypeError, ValueError):  # a family whose layers know nothing of the interface
        ours, theirs = torch.ones(1), torch.zeros(1)
    role.module.train(training)
    scale = float(theirs.abs().max())
    same = scale > 0 and float((ours - theirs).abs().max()) <= _TOLERANCE[role.dtype] * scale
    if not same:
        disable_packing(role.module)
    return same
