"""Cards: what a page tells of each node, edge and chip. They are shown on a click, and below each other in a list."""

from collections.abc import Iterator
from dataclasses import dataclass

from .legend import swatch
from .markup import Markup, joined, tag
from .scene import Detail, Parts, Scene

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
    mark = tag("svg", swatch(c.kind), class_="figure swatch", viewBox="-1 -1 28 16", aria_hidden="true")
    return tag(
        "article",
        tag("h3", mark, tag("span", c.title)),
        facts(c.details) if c.details else None,
        *(_parts(p) for p in c.parts if p.shares),
        id=c.id,
        class_=f"card {c.kind}",
    )


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
