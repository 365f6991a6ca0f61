"""Colours, in light and dark. Kinds differ in hue, in lightness (so in grey too) and in pattern."""

import re

PALETTE: dict[str, tuple[str, str]] = {
    "page": ("#ffffff", "#14171b"),
    "surface": ("#ffffff", "#1d2126"),
    "lane": ("#f4f5f7", "#191d21"),
    "border": ("#d5d9df", "#363c44"),
    "ink": ("#1a1d21", "#e8eaed"),
    "muted": ("#545b64", "#a6adb6"),
    "line": ("#7d858f", "#7d858f"),
    "generate": ("#1f5a92", "#7fb4e6"),
    "generate-tint": ("#dce8f4", "#1d3348"),
    "forward": ("#6fae9c", "#8fd0bd"),
    "forward-tint": ("#e6f2ee", "#1d3630"),
    "train": ("#b8601b", "#f0a565"),
    "train-tint": ("#f9e8d9", "#43301f"),
    "operator": ("#9aa1aa", "#79818b"),
    "operator-tint": ("#eceef0", "#2b3036"),
    "rows": ("#2b4a6b", "#a9c4e2"),
    "weights": ("#7b3f8c", "#d5a1e3"),
    "host": ("#6a717b", "#9aa1aa"),
    "idle": ("#c3c8cf", "#4d555f"),
    "focus": ("#0b62d6", "#79b0ff"),
}
"""Name: (on white, on black). Text is `ink` or `muted` on `page`, `surface`, `lane` or a tint: 4.5 : 1 or more."""

KINDS = ("generate", "forward", "train", "operator", "source")
LIGHT, DARK = 0, 1


def hue(kind: str) -> str:
    """The name of the colour of a kind."""
    return "operator" if kind == "source" else kind


def variables(theme: int) -> str:
    """The colours as CSS custom properties."""
    return "".join(f"--{name}:{both[theme]};" for name, both in PALETTE.items())


def literal(css: str, theme: int = LIGHT) -> str:
    """The style with each `var(--name)` replaced by its colour: for programs that know no custom properties."""
    return re.sub(r"var\(--([\w-]+)\)", lambda m: PALETTE[m[1]][theme], css)


def contrast(a: str, b: str) -> float:
    """The contrast of two colours `#rrggbb` (WCAG 2.2): 1 to 21."""
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
