"""Which way each edge takes: through which gaps between columns, and along what between them.

Gap `c` is left of column `c`. An edge leaves its box into the gap right of it, goes up or down there, and if its target
isn't in the next column, along a free height to the gap before that one. Edges to the next step go back along the
lower border of a lane.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .geometry import Rect
from .scene import Edge

CLEAR = 10.0
"""How far lines keep from boxes that they pass."""
TRACK, LABELLED = 15.0, 25.0
"""Height of a track along a lane's border, without and with a label."""


@dataclass(frozen=True)
class Way:
    """The way of an edge. along: at the height of its `source` or `target`, in a `channel`, or `""`: there is no
    between. lane, track: of the channel."""

    edge: Edge
    leaves: int
    enters: int
    along: str = ""
    lane: int = 0
    track: int = 0

    @property
    def interval(self) -> tuple[int, int]:
        """The first and the last gap it passes."""
        return min(self.leaves, self.enters), max(self.leaves, self.enters)


@dataclass(frozen=True)
class Grid:
    """Where boxes stand before lanes have their heights: columns, lanes and heights within a lane."""

    column: Mapping[str, int]
    lane: Mapping[str, int]
    local: Mapping[str, Rect]

    def clear(self, lane: int, y: float, between: Iterable[int]) -> bool:
        """Whether no box of a lane is at a height in some columns."""
        there = set(between)
        boxes = (self.local[n] for n, c in self.column.items() if c in there and self.lane[n] == lane)
        return all(y < b.y - CLEAR or y > b.bottom + CLEAR for b in boxes)


def ways(edges: Sequence[Edge], grid: Grid, port: Mapping[str, float]) -> tuple[Way, ...]:
    """The way of every edge. port: heights within their lanes at which edges arrive, by edge."""
    taken: list[tuple[int, float, Way]] = []
    found = [_way(e, grid, port, taken) for e in edges]
    return tuple(_with_tracks(found))


def _way(edge: Edge, grid: Grid, port: Mapping[str, float], taken: list[tuple[int, float, Way]]) -> Way:
    leaves, enters = grid.column[edge.source] + 1, grid.column[edge.target]
    lanes = grid.lane[edge.source], grid.lane[edge.target]
    way = Way(edge, leaves, enters)
    if edge.back:
        return replace(way, along="channel", lane=min(lanes))
    if leaves == enters:
        return way
    for along, lane, y in (
        ("source", lanes[0], grid.local[edge.source].middle),
        ("target", lanes[1], port[edge.id]),
    ):
        tried = replace(way, along=along)
        if grid.clear(lane, y, range(leaves, enters)) and not _collides(tried, lane, y, taken):
            taken.append((lane, y, tried))
            return tried
    return replace(way, along="channel", lane=min(lanes))


def _collides(way: Way, lane: int, y: float, taken: Iterable[tuple[int, float, Way]]) -> bool:
    """Whether another edge already goes along there; edges of one source may share their way."""
    return any(
        other.edge.source != way.edge.source
        and lane == at
        and abs(y - height) < CLEAR
        and _meet(way.interval, other.interval)
        for at, height, other in taken
    )


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


def _with_tracks(found: Sequence[Way]) -> Iterator[Way]:
    """Give each way in a channel a track of its own there, short ones nearer to the boxes."""
    tracks: dict[int, list[list[Way]]] = {}
    track: dict[str, int] = {}
    channelled = [w for w in found if w.along == "channel"]
    for way in sorted(channelled, key=lambda w: (w.edge.back, w.interval[1] - w.interval[0])):
        rows = tracks.setdefault(way.lane, [])
        free = (r for r, row in enumerate(rows) if not any(_conflict(way, w) for w in row))
        at = next(free, len(rows))
        rows[at:] = [[*rows[at], way], *rows[at + 1 :]] if at < len(rows) else [[way]]
        track[way.edge.id] = at
    return (replace(w, track=track.get(w.edge.id, 0)) for w in found)


def _conflict(a: Way, b: Way) -> bool:
    """Whether two ways can't share a track. Those of one source may, if both go back or none, and no label is on it."""
    if a.edge.back != b.edge.back:
        return True
    labelled = a.edge.back and (a.edge.label or b.edge.label)
    return (a.edge.source != b.edge.source or bool(labelled)) and _meet(a.interval, b.interval)


def channel_heights(found: Iterable[Way], lane: int) -> list[float]:
    """Heights of the tracks of a lane's channel, from the top."""
    heights: dict[int, float] = {}
    for way in found:
        if way.along == "channel" and way.lane == lane:
            wanted = LABELLED if way.edge.label and way.edge.back else TRACK
            heights[way.track] = max(heights.get(way.track, 0.0), wanted)
    return [heights[t] for t in sorted(heights)]
