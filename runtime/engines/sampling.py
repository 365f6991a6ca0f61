"""From logits to a token: temperature, filters, keyed noise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import noise

# Noise is drawn for several positions at once: few enough elements to stay in a core's cache, or to fill a GPU.
_BLOCK_ELEMENTS = {"cpu": 1 << 16}
_GPU_BLOCK_ELEMENTS = 1 << 23


@dataclass
class Sampler:
    """Chooses tokens for a batch of rows.

    keys: int64 [rows]. temperature: float64 [rows], 0 for the likeliest token. stops: ids that end a response, not
    allowed before `min_new_tokens`.
    """

    keys: Tensor
    temperature: Tensor
    stops: list[int]
    min_new_tokens: int
    top_k: int
    top_p: float

    def __post_init__(self) -> None:
        self._block, self._first = torch.empty(0), 0
        self._stop_ids = torch.tensor(self.stops, dtype=torch.long, device=self.keys.device)
        self._greedy = bool((self.temperature == 0).all())
        self._mixed = not self._greedy and bool((self.temperature == 0).any())
        self._plain = bool(((self.temperature == 1) | (self.temperature == 0)).all())
        # A greedy row is sampled without noise, and reports the plain distribution.
        self._weight = (self.temperature != 0).to(torch.float64)[:, None]
        self._scale = torch.where(self.temperature == 0, 1.0, self.temperature)[:, None]

    def choose(self, logits: Tensor, position: int) -> Tensor:
        """The next token of each row, int64 [rows].

        logits: [rows, vocab], changed in place to those of the distribution that is sampled from.
        """
        if position < self.min_new_tokens and self.stops:
            logits.index_fill_(1, self._stop_ids, -torch.inf)
        if not self._plain:
            logits /= self._scale.to(logits.dtype)
        if self.top_k or self.top_p < 1:
            self._filter(logits)
        if self._greedy:
            return logits.argmax(-1)
        gumbel = self._noise(position, logits.shape[-1])
        return (gumbel * self._weight if self._mixed else gumbel).add(logits).argmax(-1)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self.keys, self._scale, self._weight = self.keys[rows], self._scale[rows], self._weight[rows]
        self.temperature = self.temperature[rows]
        if self._block.numel():
            self._block = self._block[:, rows]

    def stop_table(self, vocab: int, device: torch.device) -> Tensor:
        """bool [vocab]: whether an id ends a response."""
        table = torch.zeros(vocab, dtype=torch.bool, device=device)
        table[self._stop_ids] = True
        return table

    def _noise(self, position: int, vocab: int) -> Tensor:
        if not self._first <= position < self._first + len(self._block):
            most = _BLOCK_ELEMENTS.get(self.keys.device.type, _GPU_BLOCK_ELEMENTS)
            count = max(1, most // (len(self.keys) * vocab))
            positions = torch.arange(position, position + count, device=self.keys.device)
            self._block, self._first = noise.gumbel(self.keys, positions, vocab), position
        return self._block[position - self._first]

    def _filter(self, logits: Tensor) -> None:
        """Keep the top_k likeliest tokens, of these the fewest whose probability reaches top_p; the likeliest always.

        Ties go to the lower id. Rows at temperature 0 stay whole: their likeliest token is no matter of filters.
        """
        ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
        if self.top_k:
            ordered[:, self.top_k :] = -torch.inf
        if self.top_p < 1:
            before = ordered.softmax(-1).cumsum(-1).roll(1, -1)
            before[:, 0] = 0
            ordered[before >= self.top_p] = -torch.inf
        filtered = torch.empty_like(logits).scatter_(-1, ids, ordered)
        torch.where(self._weight > 0, filtered, logits, out=logits)
