"""The whole picture as one SVG file: header, graph, time line, legend."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .chart import lay_out_chart
from .geometry import TITLE, Rect, Text
from .layout import lay_out
from .legend import lay_out_legend, legend
from .markup import Markup, joined, tag
from .palette import literal
from .patterns import definitions
from .scene import Scene
from .svg import Handles, chart, graph, rect, text
from .words import width

MARGIN, BETWEEN, NARROWEST = 20.0, 26.0, 720.0
HUGE = 20.0
STYLE = Path(__file__).parent / "figure.css"


def style() -> str:
    """The style of figures, in terms of the palette's names."""
    return STYLE.read_text(encoding="utf-8")


def still(scene: Scene) -> str:
    """The SVG. It uses no custom properties, scripts or fonts of its own: programs for papers read it."""
    parts, size = _parts(scene)
    return (
        tag(
            "svg",
            tag("title", f"{scene.title}, {scene.subtitle}"),
            tag("style", Markup(literal(style()))),
            definitions(),
            rect(Rect(0, 0, size.w, size.h), "page"),
            *parts,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {size.w:.0f} {size.h:.0f}",
            width=size.w,
            height=size.h,
            class_="figure",
            role="img",
        )
        + "\n"
    )


@dataclass(frozen=True)
class _Part:
    inner: Markup
    height: float


def _parts(scene: Scene) -> tuple[list[Markup], Rect]:
    """The parts below each other, and the size of all."""
    drawing = lay_out(scene)
    wide = max(drawing.width, NARROWEST)
    parts = [_header(scene, wide), _Part(graph(drawing, Handles()), drawing.height)]
    if scene.timeline:
        laid = lay_out_chart(scene.timeline, wide)
        parts.append(_Part(chart(laid, Handles()), laid.height))
    keys = lay_out_legend(scene, wide)
    parts.append(_Part(legend(keys), keys.height))
    placed, y = [], MARGIN
    for part in parts:
        placed.append(tag("g", part.inner, transform=f"translate({MARGIN:g} {y:g})"))
        y += part.height + BETWEEN
    return placed, Rect(0, 0, wide + 2 * MARGIN, y - BETWEEN + MARGIN)


def _header(scene: Scene, wide: float) -> _Part:
    """The title, and the facts in as many lines as they need."""
    lines = list(_fact_lines(scene, wide))
    texts = [Text(0, 20, f"{scene.title}, {scene.subtitle}", HUGE, "title", bold=True)]
    texts += [Text(0, 44 + 17 * row, line, TITLE, "line") for row, line in enumerate(lines)]
    return _Part(joined(*map(text, texts)), 28 + 17.0 * len(lines))


def _fact_lines(scene: Scene, wide: float) -> Iterator[str]:
    line = ""
    for fact in scene.facts:
        word = f"{fact.label.lower()} {fact.value}"
        longer = f"{line}  ·  {word}" if line else word
        if line and width(longer, TITLE) > wide:
            yield line
            longer = word
        line = longer
    if line:
        yield line
