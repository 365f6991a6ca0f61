"""Continuous batching in closed form: how many decode steps run with how many sequences.

Slots take the next sequence as soon as one ends, so that the tail runs in small batches. List scheduling of
independent jobs: a longer sequence, or fewer slots, never ends sooner.
"""

import heapq
import math
from collections.abc import Sequence
from functools import lru_cache

from .lengths import Lengths

EXACT = 2048
"""Sequences that are simulated one by one; of more, the first ones keep all slots busy."""
GOLDEN = (math.sqrt(5) - 1) / 2
NEAR = 0.04
"""Batch sizes that differ by less are counted as one."""


@lru_cache(4096)
def decode_profile(sequences: int, slots: int, lengths: Lengths, of: int) -> tuple[tuple[float, float], ...]:
    """(steps, sequences running in the mean) in the order of time, for one engine.

    of: sequences of all engines together: the step waits for the longest of them, so this engine has it.
    """
    shown = min(sequences, max(EXACT, 2 * slots))
    flow = (sequences - shown) * lengths.mean / slots
    segments = ([(flow, float(slots))] if flow else []) + _segments(_ends(_drawn(shown, lengths, of), slots))
    return tuple(_joined(segments))


def profile_of(lengths: Sequence[float], slots: int) -> tuple[tuple[float, float], ...]:
    """(steps, sequences running) in the order of time, for one engine with these responses, in their order."""
    return tuple(_segments(_ends(lengths, slots)))


def _drawn(sequences: int, lengths: Lengths, of: int) -> list[float]:
    """The lengths of equal parts of the distribution, in an order without pattern; the longest as of all engines."""
    parts = lengths.parts(sequences)
    parts[-1] = lengths.longest(max(of, sequences))
    return [parts[place] for place in sorted(range(sequences), key=lambda i: (i * GOLDEN) % 1)]


def _ends(drawn: Sequence[float], slots: int) -> list[tuple[float, float]]:
    """Start and end of each sequence."""
    free = [0.0] * min(slots, len(drawn))
    spans = []
    for length in drawn:
        start = heapq.heappop(free)
        spans.append((start, start + length))
        heapq.heappush(free, start + length)
    return spans


def _segments(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """(steps, sequences running) between any two starts or ends."""
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    segments, running, before = [], 0, 0.0
    for moment, change in changes:
        if moment > before and running:
            segments.append((moment - before, float(running)))
        running += change
        before = moment
    return segments


def _joined(segments: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same with neighbours of nearly the same size as one."""
    joined: list[tuple[float, float]] = []
    for steps, running in segments:
        last = joined[-1] if joined else (0.0, 0.0)
        if last[0] and abs(running - last[1]) <= NEAR * last[1]:
            total = last[0] + steps
            joined[-1] = (total, (last[0] * last[1] + steps * running) / total)
        else:
            joined.append((steps, running))
    return joined
