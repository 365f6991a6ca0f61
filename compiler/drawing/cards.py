"""Cards: what a page tells of each node, edge and chip. They are shown on a click, and below each other in a list."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .legend import swatch
from .markup import Markup, joined, tag
from .scene import Detail, Node, Parts, Scene

SHADES = 5
"""How many shades parts of a bar have; after the last they begin again."""


@dataclass(frozen=True)
class Card:
    """of: the id of what it tells about. kind: whose mark it shows."""

    id: str
    of: str
    kind: str
    title: str
    details: tuple[Detail, ...]
    parts: tuple[Parts, ...] = ()


def cards(scene: Scene) -> tuple[Card, ...]:
    """The cards of a scene: of its nodes, each followed by its chips', then of its edges that have details."""
    return tuple(
        Card(f"card-{number}", of, kind, title, details, parts)
        for number, (of, kind, title, details, parts) in enumerate(_told(scene), 1)
    )


def _told(scene: Scene) -> Iterator[tuple[str, str, str, tuple[Detail, ...], tuple[Parts, ...]]]:
    for node in scene.nodes:
        yield node.id, node.kind, node.title, node.details, node.parts
        for chip in node.chips:
            yield chip.id, "host", f"{chip.kind}, {node.title}", chip.details, ()
    for edge in (e for e in scene.edges if e.details):
        source, target = scene.node(edge.source).title, scene.node(edge.target).title
        yield edge.id, edge.kind, f"{source} → {target}", edge.details, ()


def card(c: Card) -> Markup:
    """A card as HTML."""
    return tag(
        "article",
        tag("h3", _mark(c.kind), tag("span", c.title)),
        facts(c.details) if c.details else None,
        *(_parts(p) for p in c.parts if p.shares),
        id=c.id,
        class_=f"card {c.kind}",
    )


def listed(scene: Scene, ids: Mapping[str, str]) -> Markup:
    """The nodes in a list, for windows in which the picture is too small to be read. ids: the card of each."""
    nodes = sorted(scene.nodes, key=lambda n: n.number or len(scene.nodes) + 1)
    return tag("ol", *(tag("li", _entry(scene, n, ids[n.id])) for n in nodes), class_="nodes", aria_label="Boxes")


def _entry(scene: Scene, node: Node, id: str) -> Markup:
    """A button that shows the card of a node."""
    lines = (*node.lines, node.lane) if len(scene.lanes) > 1 else node.lines
    says = (tag("span", f"{line} ·" if n < len(lines) else line) for n, line in enumerate(lines, 1))
    name = f"{node.number} {node.title}" if node.number else node.title
    parts = (_mark(node.kind), tag("b", name), tag("small", *says))
    return tag("button", *parts, type="button", class_=f"thing {node.kind}", data_card=id)


def _mark(kind: str) -> Markup:
    return tag("svg", swatch(kind), class_="figure swatch", viewBox="-1 -1 28 16", aria_hidden="true")


def facts(details: tuple[Detail, ...]) -> Markup:
    """A list of labels and values."""
    return tag("dl", *(tag("div", tag("dt", d.label), tag("dd", d.value)) for d in details))


def _parts(parts: Parts) -> Markup:
    """A bar of what something is made of, and the list of its parts in the same order."""
    rows = (
        tag("li", tag("i", class_=_shade(i, s.lasting, parts)), tag("span", s.name), tag("b", s.value))
        for i, s in enumerate(parts.shares)
    )
    pieces = (
        tag("i", class_=_shade(i, s.lasting, parts), style=f"width:{100 * min(1.0, s.size / parts.whole):.2f}%")
        for i, s in enumerate(parts.shares)
    )
    return joined(
        tag("h4", tag("span", parts.title), tag("b", parts.total)),
        tag("div", *pieces, class_="parts", aria_hidden="true"),
        tag("ul", *rows),
    )


def _shade(index: int, lasting: bool, parts: Parts) -> str:
    """The style of a part; of memory, what comes and goes is hatched."""
    passing = not lasting and any(s.lasting for s in parts.shares)
    return f"shade-{index % SHADES}" + (" passing" if passing else "")
