"""What a phase does (train, forward, generate) and how it is laid out. Tokens and sequences are of all devices."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .constants import CostError
from .lengths import Lengths

Recompute: TypeAlias = Literal["none", "selective", "full"]
Head: TypeAlias = Literal["logprobs", "values", "score"]

ELEMENT = {"bf16": 2, "fp16": 2, "16-bit": 2, "fp32": 4, "fp8": 1, "float8": 1}
"""Bytes of an element of the weights that computing reads, by dtype."""


@dataclass(frozen=True)
class Batch:
    """Sequences that a model goes through. tokens: of all together. squares: sum of each one's tokens²."""

    sequences: float
    tokens: float
    squares: float

    @classmethod
    def fixed(cls, sequences: float, tokens: int) -> "Batch":
        """Sequences of `tokens` each."""
        return cls(sequences, sequences * tokens, sequences * tokens**2)

    @classmethod
    def of(cls, sequences: float, prompt: float, lengths: Lengths) -> "Batch":
        """Prompts of `prompt` tokens with responses of these lengths."""
        squared = prompt**2 + 2 * prompt * lengths.mean + lengths.squared
        return cls(sequences, sequences * (prompt + lengths.mean), sequences * squared)

    @property
    def context(self) -> float:
        """Tokens that one token attends to in the mean: half of its sequence."""
        return self.squares / self.tokens / 2


@dataclass(frozen=True)
class Layout:
    """How weights and rows lie on tp·cp·fsdp·dp·pp devices; ranks count in that order, tp innermost.

    tp: matrices are cut (sequence-parallel between them). pp: stages. dp: copies. fsdp: shards of a copy's weights,
    gradients and optimizer. cp: parts of a sequence. ep: of dp·fsdp, devices that share a layer's experts.
    micro: tokens of a micro-batch. recompute: of activations, in the backward pass: selective keeps the results of
    matrix products and attention. chunks: of a stage, in an interleaved pipeline. compiled: pointwise work is fused.
    shared_optimizer: it is cut over the copies (ZeRO 1).
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    fsdp: int = 1
    cp: int = 1
    ep: int = 1
    micro: int = 8192
    recompute: Recompute = "none"
    chunks: int = 1
    compiled: bool = False
    shared_optimizer: bool = False

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "fsdp", "cp", "ep", "micro", "chunks"):
            if getattr(self, name) < 1:
                raise CostError(f"`{name}={getattr(self, name)}`: it is at least 1")
        if self.ep > self.data or self.data % self.ep:
            raise CostError(f"`ep={self.ep}` doesn't divide the {self.data} devices of dp × fsdp")

    @property
    def devices(self) -> int:
        """How many devices it takes."""
        return self.tp * self.cp * self.pp * self.data

    @property
    def data(self) -> int:
        """Over how many parts the rows are dealt."""
        return self.dp * self.fsdp

    @property
    def model(self) -> int:
        """Over how many devices the weights are cut while they compute."""
        return self.tp * self.pp


@dataclass(frozen=True)
class Train:
    """An update. batch: of one epoch. steps: optimizer steps of one epoch. head: what the loss reads."""

    batch: Batch
    steps: int = 1
    epochs: int = 1
    head: Head = "logprobs"
    dtype: str = "bf16"


@dataclass(frozen=True)
class Forward:
    """A pass without gradient: log-probabilities, values or scores."""

    batch: Batch
    head: Head = "logprobs"
    dtype: str = "bf16"


@dataclass(frozen=True)
class Generate:
    """Sampling. prompt: tokens. shared: sequences that share one prefill (`n=`). slots: sequences that an engine runs
    at once at most. share: of a device's memory that the engine may take. reserved: bytes of it that others hold.
    """

    sequences: int
    prompt: float
    lengths: Lengths
    shared: int = 1
    slots: int = 1024
    share: float = 0.9
    reserved: float = 0
    dtype: str = "bf16"


Work: TypeAlias = Train | Forward | Generate


def element(dtype: str) -> int:
    """Bytes of an element. Raises CostError for a dtype it doesn't know."""
    if dtype not in ELEMENT:
        raise CostError(f"dtype `{dtype}`: it is one of {', '.join(ELEMENT)}")
    return ELEMENT[dtype]
