"""What the cost model answers."""

from collections.abc import Mapping
from dataclasses import dataclass

KINDS = ("weights", "gradients", "optimizer", "activations", "kv_cache", "logits", "buffers")


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest device at the worst moment, by kind.

    buffers: of communication (gathered layers, receive buffers) and of an engine's own graphs.
    """

    weights: float = 0
    gradients: float = 0
    optimizer: float = 0
    activations: float = 0
    kv_cache: float = 0
    logits: float = 0
    buffers: float = 0

    @property
    def total(self) -> float:
        return float(sum(getattr(self, kind) for kind in KINDS))

    @property
    def resident(self) -> float:
        """What stays while other phases run: weights and optimizer. It can be moved to the host."""
        return self.weights + self.optimizer

    @property
    def transient(self) -> float:
        """What is there only while the phase runs."""
        return self.total - self.resident


@dataclass(frozen=True)
class Cost:
    """Seconds of a phase, their parts by name, which sum to them, and its memory.

    Parts: compute (products and attention), memory (its traffic), launch (kernels and engine), tp, cp, ep, fsdp, dp,
    pp (communication that computing doesn't hide), bubble (stages that wait). slots: sequences that an engine runs at
    once; 0 for what doesn't generate.
    """

    parts: Mapping[str, float]
    memory: Memory
    slots: int = 0

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def communication(self) -> float:
        """Seconds of the parts that communicate."""
        return sum(v for k, v in self.parts.items() if k in ("tp", "cp", "ep", "fsdp", "dp", "pp"))
