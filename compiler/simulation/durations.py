"""How long each phase takes in each step: as decided, or for lengths of responses that are drawn."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..cost import Lengths
from ..search.decision import Phase
from .replicas import Replicas
from .tasks import Task

if TYPE_CHECKING:
    from .replicas import Array

WITH_TOKENS = ("compute", "memory", "tp", "cp", "ep", "pp", "bubble")
"""Parts of a pass that grow with its tokens; launches and the traffic of weights and gradients don't."""


@dataclass(frozen=True)
class Drawn:
    """One draw. slowest, mean: seconds of its replicas, relative to the cost model's. tokens: relative to expected."""

    slowest: float
    mean: float
    tokens: float


@dataclass
class Durations:
    """Seconds of tasks. engines: of `generate` phases whose lengths are drawn; without any, all is as decided.

    Lengths depend on seed, phase, step and sample alone, so that a step that is run again draws the same.
    """

    seed: int = 0
    engines: Mapping[str, Replicas] = field(default_factory=dict)
    made: dict[tuple[str, int], Drawn] = field(default_factory=dict)

    def seconds(self, task: Task, period: int) -> float:
        """How long a task of a period takes."""
        step = period + task.ahead
        if not self.engines:
            return task.seconds
        if task.name in self.engines:
            return task.seconds * self.drawn(task.name, step).slowest
        if isinstance(task.of, Phase):
            return task.seconds * _grown(task.of, self.tokens(step))
        return task.seconds * self.tokens(step) if task.kind == "rows" else task.seconds

    def tail(self, task: Task, period: int) -> float:
        """Seconds in which a replica in the mean waits for the slowest."""
        if task.name not in self.engines:
            return 0.0
        drawn = self.drawn(task.name, period + task.ahead)
        return task.seconds * (drawn.slowest - drawn.mean)

    def tokens(self, step: int) -> float:
        """Tokens of a step's rows relative to what is expected: the mean over its draws."""
        found = [self.drawn(name, step).tokens for name in self.engines]
        return sum(found) / len(found)

    def drawn(self, name: str, step: int) -> Drawn:
        """The draw of a phase for a step, made once."""
        if (name, step) not in self.made:
            self.made[name, step] = self._draw(name, self.engines[name], step)
        return self.made[name, step]

    def _draw(self, name: str, engine: Replicas, step: int) -> Drawn:
        work = engine.work
        lengths = sampled(work.lengths, work.sequences, (self.seed, zlib.crc32(name.encode()), step))
        seconds = engine.seconds(lengths) / engine.expected
        tokens = (work.prompt + float(lengths.mean())) / (work.prompt + work.lengths.mean)
        return Drawn(float(seconds.max()), float(seconds.mean()), tokens)


def sampled(lengths: Lengths, count: int, key: tuple[int, ...]) -> "Array":
    """Lengths of `count` responses, each independent of the others: the cost model's log-normal, cut at its maximum."""
    import numpy as np

    if lengths.is_fixed:
        return np.full(count, float(lengths.mean))
    normal = np.random.default_rng(key).standard_normal(count)
    return np.minimum(lengths.maximum, np.exp(lengths.center + lengths.spread * normal))


def _grown(phase: Phase, tokens: float) -> float:
    """How much longer a pass takes with so many times its tokens."""
    total = sum(phase.parts.values())
    moving = sum(phase.parts.get(k, 0.0) for k in WITH_TOKENS)
    return 1.0 + (tokens - 1.0) * (moving / total if total else 1.0)
