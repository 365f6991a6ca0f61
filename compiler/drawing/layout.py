"""Lays a scene out: columns from left to right in the order of the data, lanes of devices from top to bottom."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .boxes import LOWER, box_height, box_width, place_box, ports
from .columns import cells, columns, forward
from .gaps import Gap, Net, gap
from .geometry import LABEL, LINE, TITLE, Drawing, LaneBox, Point, Rect, Route, Text
from .overlaps import overlapping
from .scene import Edge, Lane, Scene
from .ways import Grid, Way, channel_heights, ways
from .words import clipped, width, wrapped

HEADING, LANE_PAD, STACK, BETWEEN = 132.0, 20.0, 22.0, 12.0
"""Width of the lanes' names; room above and below boxes; between boxes below each other; between lanes."""
ABOVE = 4.5
"""How far a label is above its line."""
ATTEMPTS, NUDGES = 6, (7.0, -7.0, 4.0)
"""How often, and how far, edges are moved that would lie on others."""
METER = Rect(0, 0, 104, 7)


def lay_out(scene: Scene) -> Drawing:
    """Where everything of a scene's graph is. The same scene gives the same drawing.

    Where lines of different boxes would lie on each other, one of them arrives a little higher or lower.
    """
    moved: dict[str, float] = {}
    drawing = best = _Layout(scene, moved).drawing
    fewest = len(list(overlapping(drawing.routes)))
    for attempt in range(ATTEMPTS):
        if not fewest:
            break
        targets = (pair[attempt % 2].edge.target for pair in overlapping(drawing.routes))
        moved = {**moved, **dict.fromkeys(targets, NUDGES[attempt % len(NUDGES)])}
        drawing = _Layout(scene, moved).drawing
        if (found := len(list(overlapping(drawing.routes)))) < fewest:
            best, fewest = drawing, found
    return best


@dataclass(frozen=True)
class _Layout:
    """Steps from a scene to its drawing; each is computed when the next asks for it. moved: how much lower than
    otherwise edges arrive at some nodes."""

    scene: Scene
    moved: Mapping[str, float]

    # ------------------------------------------------------------ what is where within a lane

    @cached_property
    def column(self) -> dict[str, int]:
        return columns(self.scene)

    @cached_property
    def lane(self) -> dict[str, int]:
        names = [lane.name for lane in self.scene.lanes]
        return {n.id: names.index(n.lane) for n in self.scene.nodes}

    @cached_property
    def cells(self) -> dict[tuple[str, int], list[str]]:
        return cells(self.scene, self.column)

    @cached_property
    def rank(self) -> dict[str, float]:
        """How far down each node is, roughly: to order edges."""
        return {
            n: self.lane[n] + (row + 0.5) / len(nodes) for nodes in self.cells.values() for row, n in enumerate(nodes)
        }

    @cached_property
    def arriving(self) -> dict[str, list[list[Edge]]]:
        """The edges of this step that arrive at each node by port, from the top. Those that only follow share one."""
        found: dict[str, list[list[Edge]]] = {n.id: [] for n in self.scene.nodes}
        for e in sorted(forward(self.scene), key=lambda e: (self.rank[e.source], self.column[e.source], e.id)):
            groups = found[e.target]
            shared = next((g for g in groups if e.kind == "follows" and g[0].kind == "follows"), None)
            if shared is None:
                groups.append([e])
            else:
                shared.append(e)
        return found

    @cached_property
    def sizes(self) -> dict[str, tuple[float, float]]:
        back = {n for e in self.scene.edges if e.back for n in (e.source, e.target)}
        return {
            n.id: (box_width(n), box_height(n, max(1, len(self.arriving[n.id])), n.id in back))
            for n in self.scene.nodes
        }

    @cached_property
    def stacks(self) -> dict[tuple[str, int], float]:
        """The height of the boxes of each lane and column."""
        return {c: sum(self.sizes[n][1] for n in nodes) + STACK * (len(nodes) - 1) for c, nodes in self.cells.items()}

    def content(self, lane: Lane) -> float:
        """The height of a lane without its channel."""
        highest = max((h for (name, _), h in self.stacks.items() if name == lane.name), default=0.0)
        return max(highest + 2 * LANE_PAD, _heading_height(lane))

    @cached_property
    def local(self) -> dict[str, Rect]:
        """Boxes by their heights within their lanes; every column is centred."""
        found: dict[str, Rect] = {}
        by_name = {lane.name: lane for lane in self.scene.lanes}
        for (name, column), nodes in self.cells.items():
            y: float = round((self.content(by_name[name]) - self.stacks[name, column]) / 2)
            for node in nodes:
                w, h = self.sizes[node]
                found[node] = Rect(0, y, w, h)
                y += h + STACK
        return found

    @cached_property
    def port(self) -> dict[str, float]:
        """The height within its target's lane at which each edge arrives."""
        found = {
            e.id: self.local[e.target].bottom - LOWER + self.moved.get(e.target, 0.0) / 2
            for e in self.scene.edges
            if e.back
        }
        for node, groups in self.arriving.items():
            for group, y in zip(groups, ports(self.local[node], len(groups)), strict=True):
                found |= {edge.id: y + self.moved.get(node, 0.0) for edge in group}
        return found

    def leaving(self, edge: Edge) -> float:
        """The height within its source's lane at which an edge leaves: to the next step, lower than others."""
        rect = self.local[edge.source]
        return rect.bottom - LOWER if edge.back else rect.middle

    # ------------------------------------------------------------ ways, lanes, gaps

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        return ways(self.scene.edges, Grid(self.column, self.lane, self.local), self.port)

    @cached_property
    def lanes(self) -> tuple[Rect, ...]:
        """Lanes with their channels, from the top down."""
        found: list[Rect] = []
        y = 0.0
        for index, lane in enumerate(self.scene.lanes):
            channel = channel_heights(self.ways, index)
            height = self.content(lane) + sum(channel) + (4 if channel else 0)
            found.append(Rect(0, y, 0, height))
            y += height + BETWEEN
        return tuple(found)

    def along(self, way: Way) -> float:
        """The height of the way's part between its gaps."""
        edge = way.edge
        if way.along == "source":
            return self.lanes[self.lane[edge.source]].y + self.leaving(edge)
        if way.along == "target":
            return self.lanes[self.lane[edge.target]].y + self.port[edge.id]
        heights = channel_heights(self.ways, way.lane)
        lane = self.lanes[way.lane]
        return lane.y + self.content(self.scene.lanes[way.lane]) + sum(heights[: way.track + 1]) - 8

    def ends(self, way: Way) -> tuple[float, float]:
        """The heights at which a way leaves and arrives."""
        edge = way.edge
        start = self.lanes[self.lane[edge.source]].y + self.leaving(edge)
        return start, self.lanes[self.lane[edge.target]].y + self.port[edge.id]

    @cached_property
    def gaps(self) -> tuple[Gap, ...]:
        """The gaps from left to right; the last one is right of all columns."""
        number = 2 + max(self.column.values(), default=-1)
        nets: list[dict[str, list[tuple[float, float]]]] = [{} for _ in range(number)]
        labels = [0.0] * number
        for way in self.ways:
            for at, key, left, right in self._passes(way):
                nets[at].setdefault(key, []).append((left, right))
            if way.edge.label and not way.edge.back:
                labels[way.enters] = max(labels[way.enters], width(way.edge.label, LABEL))
        return tuple(gap(_nets(n), w) for n, w in zip(nets, labels, strict=True))

    def _passes(self, way: Way) -> Iterator[tuple[int, str, float, float]]:
        """Gap, net, and the heights at which a way comes and goes, of each of its gaps."""
        start, end = self.ends(way)
        first, last = nets_of(way.edge)
        if not way.along:
            yield way.leaves, first, start, end
            return
        between = self.along(way)
        yield way.leaves, first, start, between
        yield way.enters, last, between, end

    @cached_property
    def widths(self) -> list[float]:
        """The width of each column: of its widest box, and of labels on edges back to it."""
        found = [0.0] * (len(self.gaps) - 1)
        for node, column in self.column.items():
            found[column] = max(found[column], self.sizes[node][0])
        for edge in self.scene.edges:
            if edge.back:
                column = self.column[edge.target]
                found[column] = max(found[column], width(edge.label, LABEL) + 8)
        return found

    @cached_property
    def lefts(self) -> list[float]:
        """The left side of each gap; the last number is the picture's right side."""
        found = [HEADING]
        for at, each in enumerate(self.gaps):
            found.append(found[-1] + each.width + (self.widths[at] if at < len(self.widths) else 0))
        return found

    def column_x(self, column: int) -> float:
        return self.lefts[column] + self.gaps[column].width

    # ------------------------------------------------------------ the drawing

    @property
    def drawing(self) -> Drawing:
        right = self.lefts[-1]
        bottom = self.lanes[-1].bottom if self.lanes else 0.0
        lanes = (
            _lane(lane, Rect(0, r.y, right, r.h), self.content(lane))
            for lane, r in zip(self.scene.lanes, self.lanes, strict=True)
        )
        boxes = (place_box(n, self._rect(n.id)) for n in self.scene.nodes)
        return Drawing(right, bottom, tuple(lanes), tuple(boxes), tuple(map(self._route, self.ways)))

    def _rect(self, node: str) -> Rect:
        local, column = self.local[node], self.column[node]
        y = self.lanes[self.lane[node]].y + local.y
        return Rect(self.column_x(column), y, self.widths[column], local.h)

    def _route(self, way: Way) -> Route:
        """The corners of a way, and its label."""
        start, end = self.ends(way)
        source, target = self._rect(way.edge.source), self._rect(way.edge.target)
        points: list[Point] = [(source.right, start)]
        for at, key, left, right in self._passes(way):
            x = self.lefts[at] + self.gaps[at].offset(key)
            if abs(left - right) >= 0.5:
                points += [(x, left), (x, right)]
        points.append((target.x, end))
        return Route(way.edge, tuple(points), self._label(way, target, end))

    def _label(self, way: Way, target: Rect, end: float) -> Text | None:
        """Right before the arrow; of an edge to the next step, below its target."""
        if not way.edge.label:
            return None
        if way.edge.back:
            y = self.along(way) - ABOVE
            return Text(target.x + 4, y, way.edge.label, LABEL, way.edge.kind)
        return Text(target.x - ARROW_HEAD, end - ABOVE, way.edge.label, LABEL, way.edge.kind, "end")


ARROW_HEAD = 12.0
BACK = "back"


def nets_of(edge: Edge) -> tuple[str, str]:
    """The nets that an edge belongs to where it leaves and where it arrives, unless it goes straight on."""
    if edge.back:
        key = edge.id if edge.label else edge.source
        return f"{BACK} out {key}", f"{BACK} in {key}"
    return f"from {edge.source}", f"in {edge.id}"


def _nets(found: Mapping[str, Sequence[tuple[float, float]]]) -> Iterator[Net]:
    """The nets of a gap. One to the next step comes into its last gap from the right, and leaves its first there."""
    for key, ends in found.items():
        left = tuple(dict.fromkeys(a for a, _ in ends))
        right = tuple(dict.fromkeys(b for _, b in ends))
        if not key.startswith(BACK):
            yield Net(key, left, right)
        elif key.startswith(f"{BACK} out"):  # from a box at the left, and along the channel back to the left
            yield Net(key, left + right, ())
        else:
            yield Net(key, (), left + right)


# ---------------------------------------------------------------- lanes


def _heading(lane: Lane) -> Iterable[tuple[str, float, str, bool]]:
    room = HEADING - 24
    yield clipped(lane.name, TITLE, room, bold=True), TITLE, "lane-name", True
    for line in lane.caption:
        yield from ((t, LINE, "line", False) for t in wrapped(line, LINE, room))
    if lane.memory:
        yield from ((t, LINE, "line", False) for t in wrapped(lane.memory.total, LINE, room))


def _heading_height(lane: Lane) -> float:
    return 28.0 + 15.5 * len(list(_heading(lane))) + (14 if lane.memory else 0)


def _lane(lane: Lane, rect: Rect, content: float) -> LaneBox:
    """A lane with its name, what is said of it, and the bar of its memory."""
    lines = list(_heading(lane))
    top = rect.y + max(14.0, (content - _heading_height(lane)) / 2 + 14)
    texts = tuple(
        Text(14, top + 15.5 * row + 11, text, size, role, bold=bold)
        for row, (text, size, role, bold) in enumerate(lines)
    )
    meter = Rect(14, top + 15.5 * len(lines) + 4, METER.w, METER.h) if lane.memory else None
    return LaneBox(lane, rect, texts, meter)
