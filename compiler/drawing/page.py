"""The picture as one HTML page that needs nothing else: no network, no fonts, no libraries."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from .cards import card, cards, facts, listed
from .chart import lay_out_chart
from .layout import lay_out
from .legend import entries, swatch
from .markup import Markup, joined, quoted, tag
from .palette import DARK, LIGHT, variables
from .patterns import definitions
from .scene import Scene
from .still import NARROWEST, style
from .svg import Handles, chart, graph

FOLDER = Path(__file__).parent
SLIM = 420.0
"""How wide a time line is that is drawn for narrow windows."""


def page(scene: Scene) -> str:
    """The page. The same scene gives the same bytes."""
    told = cards(scene)
    handles = Handles({c.of: c.id for c in told})
    return Template(_file("page.html")).substitute(
        title=quoted(f"{scene.title}, {scene.subtitle}"),
        name=quoted(scene.title),
        subtitle=quoted(scene.subtitle),
        light=variables(LIGHT),
        dark=variables(DARK),
        style=_file("page.css") + style(),
        script=_file("page.js"),
        facts=facts(scene.facts),
        patterns=tag("svg", definitions(), class_="patterns", width="0", height="0", aria_hidden="true"),
        figures=_figures(scene, handles),
        legend=_legend(scene),
        cards=joined(*map(card, told)),
        lost=_lost(scene),
        notes=joined(*(tag("p", *_code(note)) for note in scene.notes)),
    )


def _lost(scene: Scene) -> Markup:
    """The choices that lost, if any were kept."""
    if not scene.lost:
        return Markup("")
    return tag("section", tag("h2", "What lost"), facts(scene.lost), class_="lost")


def _code(note: str) -> Iterator[str]:
    """A sentence with what stands between backticks as code."""
    for at, part in enumerate(note.split("`")):
        yield tag("code", part) if at % 2 else part


def _file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _figures(scene: Scene, handles: Handles) -> Markup:
    drawing = lay_out(scene)
    wide = max(drawing.width, NARROWEST)
    graphs = [_View(graph(drawing, handles), wide, drawing.height)]
    shown = [_figure("Placement", _graph_says(scene), graphs, listed(scene, handles.cards))]
    if scene.timeline:
        laid = [lay_out_chart(scene.timeline, w) for w in (wide, SLIM)]
        views = [_View(chart(c, handles), c.width, c.height) for c in laid]
        shown.append(_figure("Time", _chart_says(scene), views))
    return joined(*shown)


@dataclass(frozen=True)
class _View:
    inner: Markup
    width: float
    height: float


def _figure(name: str, says: str, views: Sequence[_View], below: Markup | None = None) -> Markup:
    """A figure that grows with the window up to a point; of two views of it, narrow windows show the second.

    In a narrow window it is as wide as the window, or of its actual size, and can be moved sideways: a button changes
    that. The script shows it where there is a difference.
    """
    kinds = ("figure",) if len(views) == 1 else ("figure wide", "figure slim")
    drawn = [_svg(view, says, kind) for view, kind in zip(views, kinds, strict=True)]
    moved = tag(
        "div", *drawn, class_="scroll", role="region", aria_label=f"{name}, can be moved sideways", tabindex="0"
    )
    button = tag("button", "Actual size", type="button", class_="size", hidden="", data_name=name)
    return tag("figure", tag("figcaption", tag("h2", name), tag("span", says), button), moved, below)


def _svg(view: _View, says: str, kind: str) -> Markup:
    return tag(
        "svg",
        view.inner,
        class_=kind,
        viewBox=f"-1 -1 {view.width + 2:.0f} {view.height + 2:.0f}",
        style=f"--natural:{view.width:.0f}",
        role="group",
        aria_label=says,
    )


def _graph_says(scene: Scene) -> str:
    if len(scene.lanes) == 1:
        return "A step goes from left to right."
    return "A lane for each group of devices; a step goes from left to right."


def _chart_says(scene: Scene) -> str:
    return "One period of the steady state; thin bars are transfers, numbers those of the boxes above."


def _legend(scene: Scene) -> Markup:
    rows = (
        tag(
            "li",
            tag("svg", swatch(e.kind), class_="figure swatch", viewBox="-1 -1 28 16", aria_hidden="true"),
            tag("span", e.says),
        )
        for e in entries(scene)
    )
    return tag("ul", *rows, class_="legend", aria_label="Legend")
