"""What the marks of a picture mean: only those that it shows."""

from collections.abc import Iterator
from dataclasses import dataclass

from .geometry import LINE, Rect, Text
from .markup import Markup, joined, tag
from .patterns import icon, stripe
from .scene import WORDS, Scene
from .svg import HEAD, head, rect, text
from .words import widest

SWATCH, SPACE, ROW = 26.0, 22.0, 22.0
KINDS = ("generate", "forward", "train", "operator", "source")
EDGES = ("follows", "rows", "weights")


@dataclass(frozen=True)
class Entry:
    """kind: whose mark is shown. says: what it means."""

    kind: str
    says: str


def entries(scene: Scene) -> tuple[Entry, ...]:
    """One for each kind of thing that a scene has."""
    return tuple(Entry(kind, f"{_name(kind)}{WORDS[kind]}") for kind in _shown(scene))


def _name(kind: str) -> str:
    named = {"generate": "generate: ", "forward": "forward: ", "train": "train: ", "operator": "operator: "}
    return named.get(kind, "")


def _shown(scene: Scene) -> Iterator[str]:
    yield from (k for k in KINDS if any(n.kind == k for n in scene.nodes))
    yield from (k for k in EDGES if any(e.kind == k for e in scene.edges))
    if any(n.chips for n in scene.nodes):
        yield "host"
    if scene.timeline and any(b < 0.999 for b in scene.timeline.busy):
        yield "idle"


def swatch(kind: str, x: float = 0.0, y: float = 0.0) -> Markup:
    """The mark of a kind, 26 wide and 14 high."""
    at = Rect(x, y, SWATCH, 14)
    if kind in KINDS:
        inner = joined(rect(at, "box", 3), stripe(kind, x + 0.5, y + 1, 11, 12))
    elif kind in EDGES:
        line = tag("path", d=f"M{x:g} {y + 7:g}h{SWATCH - HEAD:g}", class_="route")
        inner = joined(line, head(x + SWATCH, y + 7))
    elif kind == "host":
        inner = joined(rect(at, "chip", 4), icon("sleep", x + 9, y + 7), icon("wake", x + 17, y + 7))
    else:
        inner = rect(at, "idle")
    return tag("g", inner, class_=kind if kind in KINDS else f"edge {kind}" if kind in EDGES else None)


@dataclass(frozen=True)
class Legend:
    """The entries in lines no wider than the picture."""

    swatches: tuple[tuple[str, float, float], ...]
    texts: tuple[Text, ...]
    height: float


def lay_out_legend(scene: Scene, wide: float) -> Legend:
    """Columns of one width, read from left to right."""
    shown = entries(scene)
    each = SWATCH + 8 + SPACE + widest((e.says for e in shown), LINE)
    number = max(1, min(len(shown), int((wide + SPACE) / each)))
    at = [(i % number * wide / number, i // number * ROW) for i in range(len(shown))]
    swatches = tuple((e.kind, x, y) for e, (x, y) in zip(shown, at, strict=True))
    texts = tuple(Text(x + SWATCH + 8, y + 11, e.says, LINE, "line") for e, (x, y) in zip(shown, at, strict=True))
    return Legend(swatches, texts, ROW * -(-len(shown) // number))


def legend(laid: Legend) -> Markup:
    return joined(*(swatch(*s) for s in laid.swatches), *map(text, laid.texts))
