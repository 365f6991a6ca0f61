"""The shape of a decoder-only transformer, and how many parameters that makes."""

import math
from dataclasses import dataclass


class ShapeError(ValueError):
    """A shape that is unknown or can't be: the message says how to give one."""


@dataclass(frozen=True)
class Experts:
    """The mixture of a sparse model's layers.

    total, active: routed experts of a layer, and how many a token goes through. ffn: their inner size. shared: inner
    size of what every token goes through beside them. dense: layers, from the first on, that have a plain MLP instead.
    bias: whether the router adds a number per expert. uneven: standard deviation of an expert's tokens in a batch, as a
    share of their mean. The busiest of 64 experts, trained with an auxiliary loss, has 1.52 to 1.72 times the mean
    (2408.15664, table 2), which of 64 normal numbers is 0.18 to 0.25; 0 where routing is forced to be even.
    """

    total: int
    active: int
    ffn: int
    shared: int = 0
    dense: int = 0
    bias: bool = False
    uneven: float = 0.2

    def busiest(self, parts: int) -> float:
        """Tokens of the busiest of `parts` devices that share a layer's experts, as a multiple of the mean.

        The largest of so many sums of independent normal numbers: 1 + uneven · √(2 ln parts · parts / total).
        """
        if parts == 1:
            return 1.0
        return 1 + self.uneven * math.sqrt(2 * math.log(parts) * min(1.0, parts / self.total))


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, 2405.04434): what is cached is one compressed vector per token.

    q_rank: size of the compressed query; 0: none. kv_rank: of the compressed keys and values. rope: size of the part
    that carries the position, shared by all heads. nope, value: sizes of a head's other part of a key, and of a value.
    """

    q_rank: int
    kv_rank: int
    rope: int
    nope: int
    value: int


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model. ffn: the MLP's inner size, gated or not. tied: the head is the embedding.

    qkv_bias: biases of q, k and v. head_norms: norms of q and k per head. norms: norms of size `hidden` per layer.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool = False
    gated: bool = True
    qkv_bias: bool = False
    head_norms: bool = False
    norms: int = 2
    experts: Experts | None = None
    latent: Latent | None = None

    # ------------------------------------------------------------ parameters

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, and of the head too."""
        return self.vocab * self.hidden

    @property
    def attention(self) -> int:
        """Parameters of the matrices of a layer's attention."""
        if self.latent is None:
            inner = self.heads * self.head_dim
            return self.hidden * (2 * inner + 2 * self.kv_heads * self.head_dim)
        m, key = self.latent, self.latent.nope + self.latent.rope
        query = (self.hidden + self.heads * key) * m.q_rank if m.q_rank else self.hidden * self.heads * key
        kv = self.hidden * (m.kv_rank + m.rope) + m.kv_rank * self.heads * (m.nope + m.value)
        return query + kv + self.heads * m.value * self.hidden

    @property
    def expert(self) -> int:
        """Parameters of one routed expert; 0 without experts."""
        return 3 * self.hidden * self.experts.ffn if self.experts else 0

    @property
    def sparse_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.experts.dense if self.experts else 0

    @property
    def mlp(self) -> int:
        """Parameters of a layer's plain MLP."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def matrices(self) -> int:
        """Parameters that multiply every token, embedding and head left out; of experts, all."""
        return self._through(self.experts.total if self.experts else 0)

    @property
    def active_matrices(self) -> int:
        """Parameters that one token is multiplied with, embedding and head left out."""
        return self._through(self.experts.active if self.experts else 0)

    def _through(self, experts: int) -> int:
        dense = (self.layers - self.sparse_layers) * self.mlp
        return self.layers * self.attention + dense + self.sparse_layers * (self.mixed + experts * self.expert)

    @property
    def routed(self) -> int:
        """Parameters of all routed experts, in all layers."""
        return self.sparse_layers * self.experts.total * self.expert if self.experts else 0

    @property
    def mixed(self) -> int:
        """Parameters of a sparse layer outside its routed experts: router and shared expert."""
        e = self.experts
        return self.hidden * (e.total + 3 * e.shared) if e else 0

    @property
    def parameters(self) -> int:
        """All parameters, each counted once."""
        heads = self.embedding * (1 if self.tied else 2)
        return heads + self.matrices + self._vectors

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets, in the way the "A22B" of a name counts them: with embedding and head."""
        return self.parameters - self.matrices + self.active_matrices

    @property
    def _vectors(self) -> int:
        """Norms and biases."""
        each = self.norms * self.hidden
        if self.qkv_bias:
            each += (self.heads + 2 * self.kv_heads) * self.head_dim
        if self.head_norms:
            each += 2 * self.head_dim
        if self.latent:
            each += self.latent.q_rank + self.latent.kv_rank
        bias = self.sparse_layers * self.experts.total if self.experts and self.experts.bias else 0
        return self.layers * each + self.hidden + bias

    # ------------------------------------------------------------ what a token keeps

    @property
    def kv_width(self) -> int:
        """Numbers a token leaves in the cache of one layer."""
        if self.latent:
            return self.latent.kv_rank + self.latent.rope
        return 2 * self.kv_heads * self.head_dim

    def kv_bytes(self, element: float = 2) -> float:
        """Bytes a token leaves in the cache of all layers: 2·layers·kv_heads·head_dim·element, or MLA's."""
        return self.layers * self.kv_width * element
