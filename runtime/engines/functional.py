"""Generation for small Llama-like models: the decoder written as plain products over preallocated caches.

At a hidden size of some hundreds a step's time goes into the calls, not the arithmetic, so there are few of them: fused
and folded projections (`folding`), one cache for all layers, no mask unless prompts differ in length.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.layers import eager_layers
from ..models.loading import Role
from .decoding import Session
from .engine import Engine, EngineError
from .folding import Decoder, Layer, fold

# Largest difference of logits from the model's own forward pass, as a share of the largest logit.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2}


class FunctionalEngine(Engine):
    """Holds its own folded copy of the weights, so a role may be trained on while its version still serves."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self._decoder: Decoder | None = None

    def _take_weights(self, role: Role) -> None:
        self._decoder = fold(role.module)

    def _drop_weights(self) -> None:
        self._decoder = None

    def _open(self, prompts: list[list[int]], samples: int, new_tokens: int) -> Session:
        if self._decoder is None:
            raise EngineError("this engine holds no weights: load_weights comes first")
        return _Rows(self._decoder, prompts, samples, new_tokens)


@torch.no_grad()
def mismatch(role: Role) -> str:
    """How the functional decoder differs from the model's own forward pass on ragged prompts; "" if it does not."""
    vocab = role.config.get_text_config().vocab_size
    rows = [[(7 * i + 3) % vocab for i in range(length)] for length in (5, 2, 3)]
    session = _Rows(fold(role.module), rows, 1, 4)
    ours = torch.empty(len(rows), session.vocab, dtype=session.dtype, device=session.device)
    role.train(False)
    for token in range(3):
        session.logits(ours)
        theirs = torch.stack([_plain_logits(role, row) for row in rows]).to(ours.dtype)
        share = float((ours - theirs).abs().max() / theirs.abs().max())
        if not share <= _TOLERANCE[role.dtype]:
            return f"the functional decoder's logits are off by {share:.1e} of the largest"
        session.advance(torch.full((len(rows),), token, device=session.device))
        rows = [[*row, token] for row in rows]
    return ""


def _plain_logits(role: Role, row: list[int]) -> Tensor:
    with eager_layers(role.module):
        logits: Tensor = role.module(torch.tensor([row], device=role.device), use_cache=False).logits
    return logits[0, -1]


@dataclass(frozen=True)
class _LayerCache:
    """Views of one layer's cache: for a step's write, and for its two products.

    tokens: [rows, 2 * kv_heads, room, width]. keys: [rows * kv_heads, width, room], values: [.., room, width].
    """

    tokens: Tensor
    keys: Tensor
    values: Tensor

    @classmethod
    def of(cls, cache: Tensor) -> "_LayerCache":
        pairs = cache.flatten(0, 1)
        return cls(cache.flatten(1, 2), pairs[:, 0].transpose(1, 2), pairs[:, 1])


class _Rows(Session):
    """Prompts are read once each and shared by their samples; shorter ones are padded on the left.

    cache: [layers, rows, kv_heads, 2, room, width], the key and the value of each token, stored by one write.
    """

    def __init__(self, decoder: Decoder, prompts: list[list[int]], samples: int, new_tokens: int) -> None:
        self.decoder = decoder
        self.vocab, self.device = decoder.vocab, decoder.embedding.device
        self.dtype = torch.promote_types(decoder.embedding.dtype, torch.float32)
        self.used = max(len(prompt) for prompt in prompts)
        self.room = self.used + new_tokens - 1  # the last token is never read
        self.cos, self.sin = _rotary_tables(decoder, self.room)
        self.eps = decoder.embedding.new_full((1, 1), decoder.eps)
        self.is_value = torch.zeros(decoder.heads + 2 * decoder.kv_heads, 1, dtype=torch.bool, device=self.device)
        self.is_value[decoder.heads + 1 :: 2] = True
        # In bfloat16 the mean itself has to be taken in float32.
        narrow = decoder.embedding.dtype == torch.bfloat16
        self.mean = None if narrow else decoder.embedding.new_full((decoder.hidden, 1), 1 / decoder.hidden)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        self.padding = self.used - lengths
        self.ragged = bool((self.padding > 0).any())
        self.rows = len(prompts)
        self._allocate(len(prompts) * samples)
        self._read(prompts, samples)

    def logits(self, out: Tensor) -> None:
        normed, head = self._norm(self.state), self.decoder.head
        if out.dtype == normed.dtype and head.bias is None:
            torch.mm(normed, head.weight, out=out)
        else:
            out.copy_(head(normed))

    def advance(self, tokens: Tensor) -> None:
        x = F.embedding(tokens, self.decoder.embedding)
        position = self.used - self.padding if self.ragged else self.used
        cos, sin = self._rotation(position)
        self.used += 1
        bias = self.bias[:, :, : self.used] if self.ragged else None
        for layer, cache in zip(self.decoder.layers, self.layer_caches, strict=True):
            heads = self._heads(layer, x, cos, sin)
            cache.tokens[:, :, self.used - 1] = heads[:, self.decoder.heads :]
            keys, values = cache.keys[:, :, : self.used], cache.values[:, : self.used]
            layer.out.add_to(x, self._attend(heads[:, : self.decoder.heads], keys, values, bias))
            self._feed_forward(layer, x)
        self.state = x

    def keep(self, rows: Tensor) -> None:
        old, used = self.cache, self.used
        self._allocate(len(rows))
        self.cache[..., :used, :] = old[..., :used, :].index_select(1, rows)
        self.state, self.padding = self.state[rows], self.padding[rows]
        self.rows = len(rows)
        self._mask_padding()

    def _allocate(self, rows: int) -> None:
        d = self.decoder
        self.cache = d.embedding.new_empty(len(d.layers), rows, d.kv_heads, 2, self.room, d.width)
        self.layer_caches = [_LayerCache.of(layer) for layer in self.cache]

    def _mask_padding(self) -> None:
        """What is added to attention scores, [rows * kv_heads, 1, room]: minus infinity on padding."""
        if self.ragged:
            columns = torch.arange(self.room, device=self.device)
            bias = torch.zeros(self.rows, self.room, dtype=self.cache.dtype, device=self.device)
            bias.masked_fill_(columns < self.padding[:, None], -torch.inf)
            self.bias = bias.repeat_interleave(self.decoder.kv_heads, 0)[:, None]

    def _read(self, prompts: list[list[int]], samples: int) -> None:
        """All prompts through all layers, [prompts * used, hidden], then each one's cache to its samples."""
        rows, width, d = len(prompts), self.used, self.decoder
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=self.device)
        x = F.embedding(ids.flatten(), d.embedding)
        positions = (torch.arange(width, device=self.device) - self.padding[:, None]).clamp(min=0).flatten()
        (cos, sin), mask = self._rotation(positions), self._prompt_mask(width)
        for layer, cache in zip(d.layers, self.layer_caches, strict=True):
            heads = self._heads(layer, x, cos, sin).view(rows, width, -1, d.width).transpose(1, 2)
            q, kv = heads[:, : d.heads], heads[:, d.heads :]
            cache.tokens.view(rows, samples, *cache.tokens.shape[1:])[..., :width, :] = kv[:, None]
            seen = F.scaled_dot_product_attention(
                q, kv[:, ::2], kv[:, 1::2], attn_mask=mask, is_causal=mask is None, scale=1.0, enable_gqa=True
            )
            layer.out.add_to(x, seen.transpose(1, 2).reshape(rows * width, -1))
            self._feed_forward(layer, x)
        self.state = x.view(rows, width, -1)[:, -1].repeat_interleave(samples, 0)
        self.padding, self.rows = self.padding.repeat_interleave(samples), rows * samples
        self._mask_padding()

    def _prompt_mask(self, width: int) -> Tensor | None:
        """bool [prompts, 1, query, key], or None where plain causal attention does."""
        if not self.ragged:
            return None
        columns = torch.arange(width, device=self.device)
        real = columns >= self.padding[:, None]
        # Padding may look at padding: a row that looks at nothing would be NaN, and NaN times 0 is NaN.
        visible = real[:, None, :] | ~real[:, :, None]
        return (visible & (columns[:, None] >= columns))[:, None]

    def _rotation(self, position: int | Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of one position, [all heads, width], or of several, [positions, ...]; 1 and 0 for values."""
        cos, sin = self.cos[position], self.sin[position]
        return torch.where(self.is_value, 1.0, cos), torch.where(self.is_value, 0.0, sin)

    def _heads(self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotated queries, keys and values: [tokens, hidden] -> [tokens, heads + 2 * kv_heads, width]."""
        d = self.decoder
        heads = layer.qkv(self._norm(x)).view(len(x), -1, d.width)
        if layer.qk_norm is not None:
            normed = F.rms_norm(heads, (d.width,), None, d.eps) * layer.qk_norm
            heads = torch.where(self.is_value, heads, normed)
        return torch.addcmul(heads * cos, heads.roll(d.width // 2, -1), sin)

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """One query per head: [rows, heads, width] over [rows * kv_heads, ...] -> [rows, heads * width]."""
        d = self.decoder
        q = q.reshape(-1, d.heads // d.kv_heads, d.width)
        scores = torch.bmm(q, keys) if bias is None else torch.baddbmm(bias, q, keys)
        return torch.bmm(scores.softmax(-1), values).view(self.rows, -1)

    def _feed_forward(self, layer: Layer, x: Tensor) -> None:
        gate, up = layer.gate_up(self._norm(x)).chunk(2, -1)
        layer.down.add_to(x, F.silu(gate).mul_(up))

    def _norm(self, x: Tensor) -> Tensor:
        """x / sqrt(mean(x^2) + eps); the mean as a product with 1/hidden takes three calls instead of seven."""
        if self.mean is None:
            return F.rms_norm(x, (self.decoder.hidden,), None, self.decoder.eps)
        return x * torch.addmm(self.eps, x.square(), self.mean).rsqrt_()


def _rotary_tables(decoder: Decoder, room: int) -> tuple[Tensor, Tensor]:
    """cos and sin, each [room, 1, width], from the model's own module (which knows its scaling).

    rotate(x) * sin with rotate(x) = (-x2, x1) is (x2, x1) * (-sin1, sin2), and (x2, x1) is one roll.
    """
    like = decoder.embedding[:1]
    cos, sin = (table[0, :, None] for table in decoder.rotary(like, torch.arange(room, device=like.device)[None]))
    half = decoder.width // 2
    return cos, torch.cat([-sin[..., :half], sin[..., half:]], -1)
