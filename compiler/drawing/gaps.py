"""The gaps between columns: where in them edges go up and down, and how wide they must be for that and for labels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations

STUB, STEP, ARROW, NARROWEST = 12.0, 12.0, 16.0, 30.0
"""Room before the first vertical line, between two, after the last one for an arrow head; and the least of a gap."""
FEW = 5
"""Of at most so many vertical lines every order is tried."""


@dataclass(frozen=True)
class Net:
    """Lines that share a vertical one in a gap: those of one source, or of one edge that comes from farther away.

    left, right: heights at which lines come from the left and go on to the right.
    """

    key: str
    left: tuple[float, ...]
    right: tuple[float, ...]

    @property
    def span(self) -> tuple[float, float]:
        heights = (*self.left, *self.right)
        return min(heights), max(heights)

    @property
    def straight(self) -> bool:
        return self.span[1] - self.span[0] < 0.5


@dataclass(frozen=True)
class Gap:
    """order: keys of the nets that need a vertical line, from left to right. labels: width of the widest label."""

    order: tuple[str, ...]
    labels: float = 0.0

    @property
    def width(self) -> float:
        lines = STUB + STEP * max(0, len(self.order) - 1) + ARROW if self.order else 0.0
        return max(NARROWEST, lines + self.labels + (ARROW if self.labels else 4.0))

    def offset(self, key: str) -> float:
        """How far right of the gap's left side a net's vertical line is."""
        return STUB + STEP * self.order.index(key) if key in self.order else STUB


def gap(nets: Iterable[Net], labels: float) -> Gap:
    """The gap with its vertical lines in the order with the fewest crossings."""
    bent = [n for n in nets if not n.straight]
    if len(bent) > FEW:
        best: Sequence[Net] = sorted(bent, key=lambda n: -n.span[1])
    else:
        best = min(permutations(bent), key=lambda order: _crossings(order))
    return Gap(tuple(n.key for n in best), labels)


def _crossings(order: Sequence[Net]) -> int:
    """Crossings of lines if the nets' vertical lines stand in this order; lines on each other count as many."""
    total = 0
    for at, net in enumerate(order):
        for other in order[at + 1 :]:
            total += sum(_crosses(y, other.span) for y in net.right) + sum(_crosses(y, net.span) for y in other.left)
            total += 100 * sum(abs(y - z) < 4 for y in net.right for z in other.left)
    return total


def _crosses(y: float, span: tuple[float, float]) -> int:
    return int(span[0] < y < span[1])
