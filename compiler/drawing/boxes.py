"""The size of a node's box, and what stands where in it."""

import math
from collections.abc import Iterable

from .geometry import LINE, SMALL, TITLE, Box, ChipBox, Point, Rect, Text
from .scene import Node
from .words import clipped, width

STRIPE = 10.0
"""Width of the stripe at the left that shows the kind."""
PAD, ROW, HEAD = 9.0, 16.0, 19.0
CHIP, CHIP_GAP, CHIP_ICON = 19.0, 4.0, 16.0
BADGE = 9.0
"""Radius of the number."""
PORT = 21.0
"""Between two edges that arrive at a box."""
LOWER = 13.0
"""How far above a box's lower side edges to and from another step are."""
ROOM = 232.0
"""The widest that a text in a box may be."""


def box_width(node: Node) -> float:
    """As wide as its widest line."""
    badge = 2 * BADGE + 6 if node.number else 0.0
    widths = [min(ROOM, width(node.title, TITLE, bold=True)) + badge]
    widths += [min(ROOM, width(t, LINE)) for t in node.lines]
    widths += [min(ROOM, width(c.text, SMALL)) + CHIP_ICON + 10 for c in node.chips]
    return STRIPE + 2 * PAD + max(widths)


def box_height(node: Node, ports: int, back: bool) -> float:
    """As high as its lines, and as its edges need. ports: at which edges arrive; back: whether some go to, or come
    from, another step, by the box's lower corners."""
    chips = len(node.chips) * (CHIP + CHIP_GAP) + (2.0 if node.chips else 0.0)
    edges = PORT * (ports - 1) + 2 * (LOWER + PORT * 0.7) if back and ports else PORT * ports + 8
    return math.ceil(max(2 * PAD + HEAD + ROW * len(node.lines) - 4 + chips, edges))


def place_box(node: Node, rect: Rect) -> Box:
    """The box with its texts, from the top down; in a box higher than they need, they stand in the middle."""
    left = rect.x + STRIPE + PAD
    top = rect.y + (rect.h - box_height(node, 0, False)) / 2 + PAD
    badge: Point | None = (left + BADGE, top + 7.5) if node.number else None
    title_x = left + (2 * BADGE + 6 if node.number else 0.0)
    title = clipped(node.title, TITLE, ROOM, bold=True)
    texts = [Text(title_x, top + 12, title, TITLE, "name", bold=True)]
    for row, line in enumerate(node.lines):
        y = top + HEAD + ROW * row + 11
        texts.append(Text(left, y, clipped(line, LINE, ROOM), LINE, "line"))
    below = top + HEAD + ROW * len(node.lines) + 2
    return Box(node, rect, tuple(texts), tuple(_chips(node, left, below, rect.right - PAD)), badge)


def _chips(node: Node, left: float, top: float, right: float) -> Iterable[ChipBox]:
    for row, chip in enumerate(node.chips):
        rect = Rect(left, top + row * (CHIP + CHIP_GAP), right - left, CHIP)
        text = clipped(chip.text, SMALL, ROOM)
        yield ChipBox(chip, rect, Text(left + CHIP_ICON + 3, rect.y + 13.2, text, SMALL, "chip-text"))


def ports(rect: Rect, number: int) -> list[float]:
    """Heights at which so many edges arrive: around the middle."""
    first = rect.middle - PORT * (number - 1) / 2
    return [first + PORT * i for i in range(number)]
