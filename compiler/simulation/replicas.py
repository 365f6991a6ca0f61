"""How long replicas of an engine sample, by the cost model's own steps, for lengths that were drawn.

A replica is one copy of the weights. It has its own share of the samples, and the phase ends with the slowest.

Continuous batching is the cost model's (`cost.queue.profile_of`), here for all replicas at once, in numpy: a run on
thousands of devices has millions of samples.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..cluster import Slice
from ..cost import DEFAULT, Constants, Generate, Layout, phase_cost
from ..cost.generate import Engine, prefill_parts, running, step_parts
from ..shapes import ModelShape

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

ROWS = 256
"""Replicas whose queues are worked off together: what that takes stays in a processor's cache."""


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
        rows = range(0, self.count, ROWS)
        return self.prefill + np.concatenate([self._queued(dealt[n : n + ROWS]) for n in rows])

    def _all_at_once(self, dealt: "Array") -> "Array":
        """Nothing waits: between two ends, as many run as haven't ended."""
        import numpy as np

        ends: Array = np.sort(dealt, axis=1)
        steps: Array = np.diff(ends, axis=1, prepend=0.0)
        alive = np.arange(self.share, 0, -1)
        return np.asarray(steps @ self.by_running[alive])

    def _queued(self, dealt: "Array") -> "Array":
        """More samples than slots: the next one starts where one ends."""
        import numpy as np

        starts = _starts(dealt, self.slots)
        moments = np.concatenate([starts, starts + dealt], axis=1)
        order = np.argsort(moments, axis=1, kind="stable")
        changes = np.where(order < self.share, 1, -1)
        alive = np.cumsum(changes, axis=1)[:, :-1]
        steps: Array = np.diff(np.take_along_axis(moments, order, axis=1), axis=1)
        return np.asarray((steps * self.by_running[np.clip(alive, 0, self.slots)]).sum(axis=1))


def _starts(dealt: "Array", slots: int) -> "Array":
    """When each sample starts: in order, in the slot that is free first. In decode steps, row by row."""
    import numpy as np

    rows = np.arange(len(dealt))
    free = np.zeros((len(dealt), slots))
    starts = np.zeros_like(dealt)
    for n in range(dealt.shape[1]):
        slot = np.argmin(free, axis=1)
        starts[:, n] = free[rows, slot]
        free[rows, slot] += dealt[:, n]
    return starts
