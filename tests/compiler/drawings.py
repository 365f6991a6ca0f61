"""What must hold of every laid out picture: said once, for decisions made by hand, plans and random scenes."""

from itertools import combinations

from shardflow.compiler.drawing.chart import PHASES, THINNEST, Chart
from shardflow.compiler.drawing.geometry import Drawing, Point, Rect
from shardflow.compiler.drawing.scene import Scene

Segment = tuple[Point, Point]


def faults(scene: Scene, drawing: Drawing) -> list[str]:
    """Everything that is wrong with a drawing of a scene."""
    return [
        *_missing(scene, drawing),
        *_overlapping_boxes(drawing),
        *_texts_out_of_boxes(drawing),
        *_wrong_ways(drawing),
        *_lines_through_boxes(drawing),
        *_hidden_labels(drawing),
        *_lines_on_each_other(drawing),
    ]


def _missing(scene: Scene, drawing: Drawing) -> list[str]:
    """Nodes, chips and edges that aren't there exactly once."""
    wanted = sorted(
        [n.id for n in scene.nodes] + [c.id for n in scene.nodes for c in n.chips] + [e.id for e in scene.edges]
    )
    shown = [b.node.id for b in drawing.boxes] + [c.chip.id for b in drawing.boxes for c in b.chips]
    shown += [r.edge.id for r in drawing.routes]
    return [] if sorted(shown) == wanted else [f"shown {sorted(shown)}, wanted {wanted}"]


def _overlapping_boxes(drawing: Drawing) -> list[str]:
    pairs = combinations(drawing.boxes, 2)
    wrong = [f"{a.node.id} meets {b.node.id}" for a, b in pairs if a.rect.meets(b.rect, 8)]
    lanes = {lane.lane.name: lane.rect for lane in drawing.lanes}
    wrong += [f"{b.node.id} leaves its lane" for b in drawing.boxes if not lanes[b.node.lane].holds(b.rect)]
    return wrong + [f"lane {a} meets {b}" for (a, r), (b, s) in combinations(lanes.items(), 2) if r.meets(s)]


def _texts_out_of_boxes(drawing: Drawing) -> list[str]:
    wrong = [f"{t.text!r} in {b.node.id}" for b in drawing.boxes for t in b.texts if not b.rect.holds(t.rect)]
    wrong += [f"{c.text.text!r}" for b in drawing.boxes for c in b.chips if not c.rect.holds(c.text.rect)]
    wrong += [f"chip {c.chip.id}" for b in drawing.boxes for c in b.chips if not b.rect.holds(c.rect)]
    texts = [t.rect for b in drawing.boxes for t in (*b.texts, *(c.text for c in b.chips))]
    texts += [t.rect for lane in drawing.lanes for t in lane.texts]
    wrong += [f"lane's {t.text!r}" for lane in drawing.lanes for t in lane.texts if not lane.rect.holds(t.rect)]
    return wrong + [f"texts at {a} and {b}" for a, b in combinations(texts, 2) if a.meets(b)]


def _wrong_ways(drawing: Drawing) -> list[str]:
    """Edges of a step go from the right side of a box to the left side of one further right, never back."""
    wrong = []
    for route in drawing.routes:
        source, target = drawing.box(route.edge.source).rect, drawing.box(route.edge.target).rect
        (x0, y0), (x1, y1) = route.points[0], route.points[-1]
        ends = abs(x0 - source.right) + abs(x1 - target.x) < 0.01
        if not (ends and source.y < y0 < source.bottom and target.y < y1 < target.bottom):
            wrong.append(f"{route.edge.id} doesn't go from side to side")
        if any(a[0] != b[0] and a[1] != b[1] for a, b in route.segments):
            wrong.append(f"{route.edge.id} has a slope: {route.points}")
        if not route.edge.back and (x0 >= x1 or any(b[0] < a[0] for a, b in route.segments)):
            wrong.append(f"{route.edge.id} goes to the left")
    return wrong


def _lines_through_boxes(drawing: Drawing) -> list[str]:
    return [
        f"{route.edge.id} runs through {box.node.id}"
        for route in drawing.routes
        for a, b in route.segments
        for box in drawing.boxes
        if _rect(a, b).meets(_smaller(box.rect))
    ]


def _hidden_labels(drawing: Drawing) -> list[str]:
    labels = [(r, r.label.rect) for r in drawing.routes if r.label]
    wrong = [f"label of {r.edge.id} meets {b.node.id}" for r, t in labels for b in drawing.boxes if t.meets(b.rect)]
    wrong += [f"labels of {r.edge.id} and {s.edge.id}" for (r, t), (s, u) in combinations(labels, 2) if t.meets(u)]
    wrong += [
        f"{route.edge.id} crosses the label of {r.edge.id}"
        for r, t in labels
        for route in drawing.routes
        for a, b in route.segments
        if t.meets(_rect(a, b))
    ]
    inside = Rect(0, 0, drawing.width, drawing.height)
    return wrong + [f"label of {r.edge.id} leaves the picture" for r, t in labels if not inside.holds(t)]


def _lines_on_each_other(drawing: Drawing) -> list[str]:
    """Lines of different sources that lie on each other, unless they arrive together."""
    return [
        f"{r.edge.id} and {s.edge.id} share a line at {a}"
        for r, s in combinations(drawing.routes, 2)
        if (r.edge.source != s.edge.source or r.edge.back != s.edge.back) and r.points[-1] != s.points[-1]
        for a in r.segments
        for b in s.segments
        if _shared(a, b) > 2
    ]


def _shared(a: Segment, b: Segment) -> float:
    """How long two lines lie on each other."""
    for along, across in ((0, 1), (1, 0)):
        flat = a[0][across] == a[1][across] and b[0][across] == b[1][across]
        if flat and abs(a[0][across] - b[0][across]) < 1:
            (a0, a1), (b0, b1) = sorted(p[along] for p in a), sorted(p[along] for p in b)
            return min(a1, b1) - max(a0, b0)
    return 0.0


def _rect(a: Point, b: Point) -> Rect:
    return Rect(min(a[0], b[0]), min(a[1], b[1]), abs(a[0] - b[0]) + 0.01, abs(a[1] - b[1]) + 0.01)


def _smaller(r: Rect) -> Rect:
    return Rect(r.x + 0.5, r.y - 3, r.w - 1, r.h + 6)


# ---------------------------------------------------------------- time lines


def chart_faults(scene: Scene, chart: Chart) -> list[str]:
    """Everything that is wrong with a time line."""
    assert scene.timeline is not None
    shown, wanted = [b.bar for b in chart.bars], list(scene.timeline.bars)
    wrong = [] if sorted(b.of for b in shown) == sorted(b.of for b in wanted) else ["not every bar once"]
    phases = [b for b in chart.bars if b.bar.kind in PHASES]
    wrong += [
        f"{a.bar.of} meets {b.bar.of}"
        for a, b in combinations(phases, 2)
        for r in a.rects
        for s in b.rects
        if r.meets(s, -THINNEST)
    ]
    for box in phases:
        largest = max(box.rects, key=lambda r: r.w)
        wrong += [f"{t.text!r} leaves its bar" for t in box.texts if not (box.outside or largest.holds(t.rect))]
        wrong += [
            f"{box.bar.of} leaves the plot" for r in box.rects if r.x < chart.plot.x - 0.1 or r.right > chart.width
        ]
    texts = [t.rect for b in phases for t in b.texts] + [t.rect for t in (*chart.marks, *chart.ticks)]
    wrong += [f"texts at {a} and {b}" for a, b in combinations(texts, 2) if a.meets(b)]
    marks = [b.badge for b in phases if b.badge and b.outside]
    wrong += [f"numbers at {a} and {b}" for a, b in combinations(marks, 2) if abs(a[0] - b[0]) < 17 and a[1] == b[1]]
    return wrong
