"""Lines of different sources that lie on each other: they would read as one, so one of them is to be moved a little."""

from collections.abc import Iterator, Sequence
from itertools import combinations

from .geometry import Point, Route

Segment = tuple[Point, Point]
NEAR = 2.0


def overlapping(routes: Sequence[Route]) -> Iterator[tuple[Route, Route]]:
    """Pairs of routes that share a line, unless they come from one box or arrive at one port."""
    for a, b in combinations(routes, 2):
        if a.edge.source == b.edge.source and a.edge.back == b.edge.back:
            continue
        together = a.points[-1] == b.points[-1]
        if not together and any(shared(s, t) > NEAR for s in a.segments for t in b.segments):
            yield a, b


def shared(a: Segment, b: Segment) -> float:
    """How long two lines, each level or upright, lie on each other."""
    for along in (0, 1):
        across = 1 - along
        if a[0][across] == a[1][across] and b[0][across] == b[1][across]:
            if abs(a[0][across] - b[0][across]) >= NEAR:
                return 0.0
            return min(max(p[along] for p in a), max(p[along] for p in b)) - max(
                min(p[along] for p in a), min(p[along] for p in b)
            )
    return 0.0
