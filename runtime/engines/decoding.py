"""The decoding loop that engines share: rows leave as they finish, log-probs are taken in blocks."""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from .sampling import Sampler

# Elements of [rows, vocab] kept until one softmax is taken over all of them (16 MiB in float32).
_LOG_ELEMENTS = 1 << 22

# Finished rows are computed along until they are this share of the batch: taking rows out copies the whole cache.
_WASTE = 0.15


class Session(ABC):
    """Rows in the middle of generation, in a batch that only shrinks."""

    rows: int
    vocab: int
    dtype: torch.dtype  # of the logits: float32 at least
    device: torch.device

    @abstractmethod
    def logits(self, out: Tensor) -> None:
        """Write the logits of the next token into `out` [rows, vocab]."""

    @abstractmethod
    def advance(self, tokens: Tensor) -> None:
        """Append one token, int64 [rows], to each row."""

    @abstractmethod
    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, int64 [kept]."""


def decode(session: Session, sampler: Sampler, limits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sample until every row has ended or reached its limit.

    limits: int64 [rows], the most tokens of a row. Returns tokens, logprobs, lengths and truncated as in `Generated`.
    """
    log, progress = _Log(session, int(limits.sum())), _Progress(session, sampler, limits)
    for position in range(int(limits.max())):
        logits = log.room(session.rows)
        session.logits(logits)
        tokens = sampler.choose(logits, position)
        log.add(tokens, progress.live)
        kept = progress.update(tokens, position + 1)
        if progress.over:
            break
        session.advance(tokens if kept is None else tokens[kept])
    return *log.packed(progress.lengths), progress.lengths, progress.truncated


class _Progress:
    """Which rows go on. Rows of the batch are a subset of all rows: `live` says which."""

    def __init__(self, session: Session, sampler: Sampler, limits: Tensor) -> None:
        self.session, self.sampler, self.limits = session, sampler, limits
        self.live = torch.arange(session.rows, device=session.device)
        self.alive = torch.ones(session.rows, dtype=torch.bool, device=session.device)
        self.lengths = torch.zeros_like(limits)
        self.truncated = torch.zeros_like(self.alive)
        self.stops = sampler.stop_table(session.vocab, session.device)
        # Up to here no row can end, and looking is not free.
        self.unending = min(int(limits.min()) - 1, sampler.min_new_tokens if sampler.stops else 1 << 60)
        self.over = False

    def update(self, tokens: Tensor, length: int) -> Tensor | None:
        """Take note of rows that ended with these tokens; the batch rows that were kept, if it shrank."""
        if length <= self.unending:
            return None
        stopped = self.stops[tokens]
        ended = stopped | (length >= self.limits)
        if not ended.any():
            return None
        newly = ended & self.alive
        self.lengths[self.live[newly]] = length
        self.truncated[self.live[newly]] = ~stopped[newly]
        self.alive &= ~ended
        return self._shrink()

    def _shrink(self) -> Tensor | None:
        count = int(self.alive.sum())
        self.over = count == 0
        if self.over or count > (1 - _WASTE) * self.session.rows:
            return None
        kept = self.alive.nonzero()[:, 0]
        self.session.keep(kept)
        self.sampler.keep(kept)
        self.live, self.limits, self.alive = self.live[kept], self.limits[kept], self.alive[kept]
        return kept


class _Log:
    """The tokens chosen, step after step, with logits kept until a block of them is full."""

    def __init__(self, session: Session, most: int) -> None:
        rows = max(session.rows, min(most, _LOG_ELEMENTS // session.vocab))
        self.buffer = torch.empty(rows, session.vocab, dtype=session.dtype, device=session.device)
        self.used = 0
        self.pending: list[Tensor] = []
        self.tokens: list[Tensor] = []
        self.rows: list[Tensor] = []
        self.logprobs: list[Tensor] = []

    def room(self, rows: int) -> Tensor:
        """Where the logits of the next step go."""
        if self.used + rows > self.buffer.shape[0]:
            self._settle()
        return self.buffer[self.used : self.used + rows]

    def add(self, tokens: Tensor, rows: Tensor) -> None:
        self.pending.append(tokens)
        self.rows.append(rows)
        self.used += len(rows)

    def packed(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and log-probs, row after row; what a finished row went on to produce is dropped."""
        self._settle()
        rows = torch.cat(self.rows)
        # Steps were appended in order, so a stable sort by row leaves each row's tokens in order.
        order = torch.argsort(rows, stable=True)
        counts = torch.bincount(rows, minlength=len(lengths))
        starts = counts.cumsum(0) - counts
        position = torch.arange(len(rows), device=rows.device) - starts.repeat_interleave(counts)
        order = order[position < lengths.repeat_interleave(counts)]
        return torch.cat(self.tokens)[order], torch.cat(self.logprobs)[order]

    def _settle(self) -> None:
        if not self.pending:
            return
        tokens = torch.cat(self.pending)
        self.logprobs.append(-F.cross_entropy(self.buffer[: self.used], tokens, reduction="none"))
        self.tokens.append(tokens)
        self.pending, self.used = [], 0
