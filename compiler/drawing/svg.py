"""The graph and the time line as SVG elements. In a page they can be focused and name the card that tells more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .boxes import STRIPE
from .chart import PHASES, BarBox, Chart, Row
from .geometry import SMALL, Box, ChipBox, Drawing, LaneBox, Point, Rect, Route, Text
from .layout import HEADING
from .markup import Markup, joined, number, tag
from .patterns import icon, stripe
from .scene import Parts

CORNER, HEAD, WING = 7.0, 8.0, 4.0
"""Radius of corners of edges; length and half of the width of their heads."""


@dataclass(frozen=True)
class Handles:
    """What makes elements of a page act: the card of each node, edge and chip. Empty in a static picture."""

    cards: Mapping[str, str] = field(default_factory=dict)

    def group(
        self, of: str, kind: str, says: str, *children: str | None, focus: bool = True, **more: str | None
    ) -> Markup:
        """A group that stands for something of the scene."""
        card = self.cards.get(of)
        if card is None:
            return tag("g", tag("title", says), *children, class_=kind, **more)
        return tag(
            "g",
            *children,
            class_=f"thing {kind}",
            data_card=card,
            role="button" if focus else None,
            tabindex="0" if focus else None,
            aria_label=says if focus else None,
            aria_hidden=None if focus else "true",
            **more,
        )


def text(t: Text) -> Markup:
    anchor = None if t.anchor == "start" else t.anchor
    weight = "600" if t.bold else None
    return tag(
        "text", t.text, x=t.x, y=t.y, font_size=t.size, class_=t.role or None, text_anchor=anchor, font_weight=weight
    )


def rect(r: Rect, class_: str, radius: float = 0.0) -> Markup:
    return tag("rect", x=r.x, y=r.y, width=r.w, height=r.h, rx=radius or None, class_=class_)


def badge(at: Point, of: int, outside: bool = False) -> Markup:
    """The number of a phase, in a disc."""
    x, y = at
    return tag(
        "g",
        tag("circle", cx=x, cy=y, r=8.5, class_="badge"),
        tag("text", str(of), x=x, y=y + 3.7, font_size=SMALL, class_="badge-text", text_anchor="middle"),
        class_="outside" if outside else None,
    )


# ---------------------------------------------------------------- the graph


def graph(drawing: Drawing, handles: Handles) -> Markup:
    """Lanes, then edges, then boxes over them."""
    routes = sorted(drawing.routes, key=lambda r: ("follows", "rows", "weights").index(r.edge.kind))
    return joined(
        *(rect(lane.rect, "lane-back", 8) for lane in drawing.lanes),
        *(_route(r, handles) for r in routes),
        *(_box(b, handles) for b in sorted(drawing.boxes, key=lambda b: (b.rect.x, b.rect.y))),
        _headings(drawing.height, map(_heading, drawing.lanes)),
    )


def _headings(height: float, inner: Iterable[Markup]) -> Markup:
    """What stands left of lanes and rows, on a ground of its own: a page keeps it in sight when a figure is moved."""
    ground = Rect(-1, -1, HEADING - 5, height + 2)
    line = tag("path", d=f"M{number(ground.right)} -1v{number(ground.h)}", class_="heading-line")
    return tag("g", rect(ground, "page"), *inner, line, class_="headings")


def _heading(lane: LaneBox) -> Markup:
    """The name of a lane, what is said of it, and its memory."""
    r = lane.rect
    end, left = number(r.x + HEADING - 6), number(r.x + 8)
    side = f"M{end} {number(r.y)}H{left}a8 8 0 0 0 -8 8V{number(r.bottom - 8)}a8 8 0 0 0 8 8H{end}z"
    return joined(
        tag("path", d=side, class_="lane-back"),
        *map(text, lane.texts),
        meter(lane.lane.memory, lane.meter) if lane.lane.memory and lane.meter else None,
    )


def meter(parts: Parts, at: Rect) -> Markup:
    """A bar of memory: dark what is kept, lighter what comes and goes."""
    lasting = sum(s.size for s in parts.shares if s.lasting) / parts.whole
    passing = sum(s.size for s in parts.shares if not s.lasting) / parts.whole
    first = min(1.0, lasting) * at.w
    second = min(at.w - first, passing * at.w)
    return tag(
        "g",
        tag("title", f"{parts.title}: {parts.total}"),
        rect(at, "meter-back", 2),
        rect(Rect(at.x, at.y, first, at.h), "meter-lasting", 2),
        rect(Rect(at.x + first, at.y, second, at.h), "meter-passing", 2),
    )


def _box(box: Box, handles: Handles) -> Markup:
    node, r = box.node, box.rect
    radius = 5 if node.kind not in ("operator", "source") else min(15, r.h / 2)
    says = ". ".join([node.title, *node.lines])
    parts = [rect(r, "box", radius)]
    if node.kind in ("operator", "source"):
        parts.append(stripe(node.kind, r.x + 7, r.y + r.h / 2 - 8, 4, 16))
    else:
        parts.append(_side(node.kind, r))
    own = handles.group(node.id, node.kind, says, *parts, *map(text, box.texts), _numbered(box))
    return joined(own, *(_chip(c, handles) for c in box.chips))


def _numbered(box: Box) -> Markup | None:
    return badge(box.badge, box.node.number) if box.badge else None


def _side(kind: str, r: Rect) -> Markup:
    """The stripe at the left side of a box, inside its border."""
    return stripe(kind, r.x + 0.5, r.y + 3, STRIPE - 2, r.h - 6)


def _chip(chip: ChipBox, handles: Handles) -> Markup:
    r = chip.rect
    says = chip.chip.text
    mark = icon(chip.chip.kind, r.x + 9, r.middle)
    return handles.group(chip.chip.id, f"chip-group {chip.chip.kind}", says, rect(r, "chip", 4), mark, text(chip.text))


def _route(route: Route, handles: Handles) -> Markup:
    end = route.points[-1]
    path = rounded([*route.points[:-1], (end[0] - HEAD + 1, end[1])])
    edge = route.edge
    towards = f"{edge.source.removeprefix('value ')} to {edge.target.removeprefix('value ')}"
    says = f"{edge.label or edge.kind}, {towards}" + (", for the next step" if edge.back else "")
    return handles.group(
        edge.id,
        f"edge {edge.kind}",
        says,
        tag("path", d=path, class_="hit") if edge.id in handles.cards else None,
        tag("path", d=path, class_="route"),
        head(*end),
        text(route.label) if route.label else None,
        data_from=handles.cards.get(edge.source),
        data_to=handles.cards.get(edge.target),
    )


def head(x: float, y: float) -> Markup:
    """The head of an arrow to the right."""
    return tag("path", d=f"M{number(x)} {number(y)}l{-HEAD:g} {-WING:g}v{2 * WING:g}z", class_="head")


def rounded(points: list[Point]) -> str:
    """A path along some corners, each rounded off."""
    path = [f"M{number(points[0][0])} {number(points[0][1])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        near, far = _towards(corner, before), _towards(corner, after)
        path.append(f"L{_at(near)}Q{_at(corner)} {_at(far)}")
    return "".join([*path, f"L{_at(points[-1])}"])


def _at(p: Point) -> str:
    return f"{number(p[0])} {number(p[1])}"


def _towards(corner: Point, other: Point) -> Point:
    """The point a corner's radius away in the direction of another one, at most half of the way."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = abs(dx) + abs(dy)
    part = min(CORNER, length / 2) / length if length else 0.0
    return corner[0] + dx * part, corner[1] + dy * part


# ---------------------------------------------------------------- the time line


def chart(c: Chart, handles: Handles) -> Markup:
    """The grid, the rows with their idle times, then the bars."""
    return joined(
        *(upright(t.x, c.plot.y, c, "grid") for t in c.ticks),
        *(_idle(r) for row in c.rows for r in row.idle),
        *(_bar(b, handles) for b in c.bars),
        *map(text, c.ticks),
        *map(text, c.marks),
        tag("path", d=f"M{number(c.plot.x)} {number(c.plot.bottom + 5)}H{number(c.plot.right)}", class_="axis"),
        *(upright(x, c.plot.y - 6, c, "period") for x in (c.plot.x, c.plot.right)),
        _headings(c.height, map(_row, c.rows)),
    )


def _row(row: Row) -> Markup:
    return joined(*map(text, row.texts))


def _idle(r: Rect) -> Markup:
    return tag("g", tag("title", "nothing runs"), rect(r, "idle"))


def upright(x: float, top: float, c: Chart, class_: str) -> Markup:
    """A line down to the axis."""
    return tag("path", d=f"M{number(x)} {number(top)}V{number(c.plot.bottom + 5)}", class_=class_)


def _bar(box: BarBox, handles: Handles) -> Markup:
    bar = box.bar
    says = f"{bar.title}, step {bar.step_text}, {bar.start:.1f} to {bar.end:.1f} s"
    if bar.kind not in PHASES:
        moves = (rect(r, "move", 1) for r in box.rects)
        return handles.group(bar.of, f"move-group {bar.kind}", says, *moves, focus=False)
    return handles.group(bar.of, f"bar-group {bar.kind}", says, *_phase(box), *map(text, box.texts), _number(box))


def _phase(box: BarBox) -> Iterable[Markup]:
    """The pieces of a phase's bar: tinted, with the kind's colour and pattern along the lower edge."""
    for r in box.rects:
        yield rect(r, "bar", 2)
        yield stripe(box.bar.kind, r.x, r.bottom - 4, r.w, 4, "cap")
    if box.outside and box.badge:
        middle = box.rects[0].x + box.rects[0].w / 2
        yield tag("path", d=f"M{_at(box.badge)}L{number(middle)} {number(box.rects[0].y)}", class_="leader")


def _number(box: BarBox) -> Markup | None:
    return badge(box.badge, box.bar.number, box.outside) if box.badge and box.bar.number else None
