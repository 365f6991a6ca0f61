"""How long replicas of an engine sample, by the cost model's own steps, for lengths that were drawn.

A replica is one copy of the weights. It has its own share of the samples, and the phase ends with the slowest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..cluster import Slice
from ..cost import DEFAULT, Constants, Generate, Layout, phase_cost
from ..cost.generate import Engine, prefill_parts, running, step_parts
from ..cost.queue import profile_of
from ..shapes import ModelShape

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Replicas:
    """The engines of a `generate` phase. work: what all of them do in a step."""

    shape: ModelShape
    work: Generate
    layout: Layout
    devices: Slice
    constants: Constants = DEFAULT

    @property
    def count(self) -> int:
        return self.layout.data

    @property
    def share(self) -> int:
        """Samples of a replica; the last ones may have fewer."""
        return -(-self.work.sequences // self.count)

    @cached_property
    def expected(self) -> float:
        """Seconds of the phase in the cost model."""
        return phase_cost(self.shape, self.work, self.layout, self.devices, self.constants).seconds

    @cached_property
    def engine(self) -> Engine:
        return Engine(self.shape, self.layout, self.devices, self.constants, self.work.dtype)

    @cached_property
    def slots(self) -> int:
        """Samples that a replica runs at once."""
        return running(self.engine, self.work, self.share)

    @cached_property
    def prefill(self) -> float:
        """Seconds of a replica's prefills."""
        return sum(prefill_parts(self.engine, self.share / self.work.shared, self.work.prompt).values())

    @cached_property
    def by_running(self) -> "Array":
        """Seconds of a decode step by the number of samples that run, from 0."""
        import numpy as np

        cached = self.work.prompt + self.work.lengths.weighted / 2
        steps = (sum(step_parts(self.engine, n, n * cached).values()) for n in range(1, self.slots + 1))
        return np.array([0.0, *steps])

    def seconds(self, lengths: "Array") -> "Array":
        """Seconds of each replica for the lengths of all samples, dealt to replicas in order."""
        import numpy as np

        padded = np.zeros(self.count * self.share)
        padded[: len(lengths)] = lengths
        dealt: Array = padded.reshape(self.count, self.share)
        if self.slots >= self.share:
            return self.prefill + self._all_at_once(dealt)
        return self.prefill + np.array([self._queued(row[row > 0].tolist()) for row in dealt])

    def _all_at_once(self, dealt: "Array") -> "Array":
        """Nothing waits: between two ends, as many run as haven't ended. For all replicas in one go."""
        import numpy as np

        ends: Array = np.sort(dealt, axis=1)
        steps: Array = np.diff(ends, axis=1, prepend=0.0)
        alive = np.arange(self.share, 0, -1)
        return np.asarray(steps @ self.by_running[alive])

    def _queued(self, lengths: Sequence[float]) -> float:
        """More samples than slots: the next one starts where one ends."""
        import numpy as np

        profile = profile_of(lengths, self.slots)
        steps, alive = zip(*profile, strict=True) if profile else ((), ())
        return float(np.dot(steps, np.interp(alive, np.arange(len(self.by_running)), self.by_running)))
