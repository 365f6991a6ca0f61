"""Where things are in a picture: rectangles, texts, boxes, routes. Units are CSS pixels at the natural size."""

from dataclasses import dataclass
from typing import Literal

from .scene import Chip, Edge, Lane, Node
from .words import width

TITLE, LINE, LABEL, SMALL = 13.0, 11.5, 11.0, 10.5
"""Sizes of text: names, the lines below them, labels of edges, remarks."""

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]


@dataclass(frozen=True)
class Rect:
    x: float
    y: float
    w: float
    h: float

    @property
    def right(self) -> float:
        return self.x + self.w

    @property
    def bottom(self) -> float:
        return self.y + self.h

    @property
    def middle(self) -> float:
        return self.y + self.h / 2

    @property
    def centre(self) -> float:
        return self.x + self.w / 2

    def meets(self, other: "Rect", margin: float = 0.0) -> bool:
        """Whether the two overlap, or are closer than `margin`."""
        apart_x = self.x >= other.right + margin or other.x >= self.right + margin
        return not (apart_x or self.y >= other.bottom + margin or other.y >= self.bottom + margin)

    def holds(self, other: "Rect") -> bool:
        """Whether the other is inside."""
        inside_x = self.x <= other.x and other.right <= self.right
        return inside_x and self.y <= other.y and other.bottom <= self.bottom


@dataclass(frozen=True)
class Text:
    """A line of text. x: of its start, middle or end, as `anchor` says; y: of its baseline. role: a class of style."""

    x: float
    y: float
    text: str
    size: float
    role: str = ""
    anchor: Anchor = "start"
    bold: bool = False

    @property
    def width(self) -> float:
        return width(self.text, self.size, bold=self.bold)

    @property
    def rect(self) -> Rect:
        """The room it takes at most."""
        left = {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor] * self.width
        return Rect(self.x - left, self.y - 0.8 * self.size, self.width, self.size)


@dataclass(frozen=True)
class ChipBox:
    chip: Chip
    rect: Rect
    text: Text


@dataclass(frozen=True)
class Box:
    """A node where it stands. badge: the middle of its number."""

    node: Node
    rect: Rect
    texts: tuple[Text, ...]
    chips: tuple[ChipBox, ...] = ()
    badge: Point | None = None


@dataclass(frozen=True)
class LaneBox:
    """A lane from the left edge to the right one. meter: where the bar of its memory is."""

    lane: Lane
    rect: Rect
    texts: tuple[Text, ...]
    meter: Rect | None = None


@dataclass(frozen=True)
class Route:
    """An edge along corners, from the right side of a box to the left side of another."""

    edge: Edge
    points: tuple[Point, ...]
    label: Text | None = None

    @property
    def segments(self) -> tuple[tuple[Point, Point], ...]:
        return tuple(zip(self.points, self.points[1:], strict=False))


@dataclass(frozen=True)
class Drawing:
    """The placement graph, laid out."""

    width: float
    height: float
    lanes: tuple[LaneBox, ...]
    boxes: tuple[Box, ...]
    routes: tuple[Route, ...]

    def box(self, id: str) -> Box:
        """The box of a node."""
        return next(b for b in self.boxes if b.node.id == id)
