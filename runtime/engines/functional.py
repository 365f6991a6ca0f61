"""Generation for small Llama-like models: the decoder written as plain products over preallocated caches.

At a hidden size of some hundreds a step's time goes into the calls, not the arithmetic, so there are few of them: fused
and folded projections (`folding`), one cache for all layers, no mask unless prompts differ in length.
"""

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


class _Rows(Session):
    """Prompts are read once each and shared by their samples; shorter ones are padded on the left.

    keys: [layers, rows, kv_heads, width, room]; values: [layers, rows, kv_heads, room, width]: the layouts in which both
    products of a step read memory in order.
    """

    def __init__(self, decoder: Decoder, prompts: list[list[int]], samples: int, new_tokens: int) -> None:
        self.decoder = decoder
        self.vocab, self.device = decoder.vocab, decoder.embedding.device
        self.dtype = torch.promote_types(decoder.embedding.dtype, torch.float32)
        self.used = max(len(prompt) for prompt in prompts)
        self.room = self.used + new_tokens - 1  # the last token is never read
        self.cos, self.sin = _rotary_tables(decoder, self.room)
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
        cos, sin = self.cos[position], self.sin[position]
        self.used += 1
        bias = self.bias[:, :, : self.used] if self.ragged else None
        for layer, keys, values in zip(self.decoder.layers, self.layer_keys, self.layer_values, strict=True):
            q, k, v = self._heads(layer, x, cos, sin)
            keys[:, :, self.used - 1] = k.reshape(-1, self.decoder.width)
            values[:, self.used - 1] = v.reshape(-1, self.decoder.width)
            seen = self._attend(q, keys[:, :, : self.used], values[:, : self.used], bias)
            layer.out.add_to(x, seen)
            self._feed_forward(layer, x)
        self.state = x

    def keep(self, rows: Tensor) -> None:
        keys, values, used = self.keys, self.values, self.used
        self._allocate(len(rows))
        self.keys[..., :used] = keys[..., :used].index_select(1, rows)
        self.values[..., :used, :] = values[..., :used, :].index_select(1, rows)
        self.state, self.padding = self.state[rows], self.padding[rows]
        self.rows = len(rows)
        self._mask_padding()

    def _allocate(self, rows: int) -> None:
        d = self.decoder
        self.keys = d.embedding.new_empty(len(d.layers), rows, d.kv_heads, d.width, self.room)
        self.values = d.embedding.new_empty(len(d.layers), rows, d.kv_heads, self.room, d.width)
        self.layer_keys, self.layer_values = self.keys.flatten(1, 2).unbind(), self.values.flatten(1, 2).unbind()

    def _mask_padding(self) -> None:
        """What is added to attention scores, [rows * kv_heads, 1, room]: minus infinity on padding."""
        if self.ragged:
            columns = torch.arange(self.room, device=self.device)
            bias = torch.zeros(self.rows, self.room, dtype=self.keys.dtype, device=self.device)
            bias.masked_fill_(columns < self.padding[:, None], -torch.inf)
            self.bias = bias.repeat_interleave(self.decoder.kv_heads, 0)[:, None]

    def _read(self, prompts: list[list[int]], samples: int) -> None:
        """All prompts through all layers, [prompts * used, hidden], then each one's cache to its samples."""
        rows, width, d = len(prompts), self.used, self.decoder
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=self.device)
        x = F.embedding(ids.flatten(), d.embedding)
        positions = (torch.arange(width, device=self.device) - self.padding[:, None]).clamp(min=0).flatten()
        cos, sin, mask = self.cos[positions], self.sin[positions], self._prompt_mask(width)
        for i, layer in enumerate(d.layers):
            q, k, v = (part.view(rows, width, -1, d.width).transpose(1, 2) for part in self._heads(layer, x, cos, sin))
            self.keys[i].view(rows, samples, *self.keys.shape[2:])[..., :width] = k.transpose(2, 3)[:, None]
            self.values[i].view(rows, samples, *self.values.shape[2:])[..., :width, :] = v[:, None]
            seen = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=1.0, enable_gqa=True
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
        # Padding may look at padding: a row that looks at nothing would be NaN, and NaN spreads through products with 0.
        visible = real[:, None, :] | ~real[:, :, None]
        return (visible & (columns[:, None] >= columns))[:, None]

    def _heads(self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of tokens: [tokens, hidden] -> three of [tokens, heads or kv_heads, width]."""
        d = self.decoder
        qkv = layer.qkv(self._norm(x)).view(len(x), -1, d.width)
        qk, v = qkv[:, : d.heads + d.kv_heads], qkv[:, d.heads + d.kv_heads :]
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (d.width,), None, d.eps) * layer.qk_norm
        qk = torch.addcmul(qk * cos, qk.roll(d.width // 2, -1), sin)
        return qk[:, : d.heads], qk[:, d.heads :], v

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
        return F.rms_norm(x, (self.decoder.hidden,), None, self.decoder.eps)


def _rotary_tables(decoder: Decoder, room: int) -> tuple[Tensor, Tensor]:
    """cos and sin, each [room, 1, width], from the model's own module (which knows its scaling).

    rotate(x) * sin with rotate(x) = (-x2, x1) is (x2, x1) * (-sin1, sin2), and (x2, x1) is one roll.
    """
    like = decoder.embedding[:1]
    cos, sin = (table[0, :, None] for table in decoder.rotary(like, torch.arange(room, device=like.device)[None]))
    half = decoder.width // 2
    return cos, torch.cat([-sin[..., :half], sin[..., half:]], -1)
