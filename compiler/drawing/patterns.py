"""Marks that tell kinds apart without colour: dots, stripes, nothing; and the icons of transfers with host memory."""

from .markup import Markup, joined, tag
from .scene import ChipKind, NodeKind

DOTTED, STRIPED, BARRED = "dots", "stripes", "bars"
PATTERN: dict[str, str] = {"generate": DOTTED, "train": STRIPED, "source": BARRED}
"""The pattern over a kind's colour; the others are plain."""

TOWARDS_HOST = frozenset({"sleep", "offload"})


def definitions() -> Markup:
    """The patterns, to be defined once in a document."""
    return tag(
        "defs",
        _pattern(DOTTED, 5, 5, tag("circle", cx=2.5, cy=2.5, r="1.15", class_="mark-dots")),
        _pattern(STRIPED, 5, 5, tag("path", d="M-1 6 6 -1M-1 1 1 -1M4 6 6 4", class_="mark-lines")),
        _pattern(BARRED, 5, 5, tag("path", d="M0 2.5H5", class_="mark-lines")),
        _pattern("idle", 6, 6, tag("path", d="M-1 7 7 -1M-1 1 1 -1M5 7 7 5", class_="idle-line")),
    )


def _pattern(name: str, w: float, h: float, mark: Markup) -> Markup:
    return tag("pattern", mark, id=name, width=w, height=h, patternUnits="userSpaceOnUse")


def stripe(kind: NodeKind | str, x: float, y: float, w: float, h: float, class_: str = "stripe") -> Markup:
    """An area in a kind's colour, with its pattern."""
    plain = tag("rect", x=x, y=y, width=w, height=h, class_=class_)
    if kind not in PATTERN:
        return plain
    return joined(plain, tag("rect", x=x, y=y, width=w, height=h, fill=f"url(#{PATTERN[kind]})"))


def icon(kind: ChipKind | str, x: float, y: float) -> Markup:
    """An arrow out of the devices (up, to host memory) or into them (down)."""
    arrow = "M0 4V-4M-3 -1 0 -4 3 -1" if kind in TOWARDS_HOST else "M0 -4V4M-3 1 0 4 3 1"
    return tag("path", d=arrow, class_="icon", transform=f"translate({x:g} {y:g})")
