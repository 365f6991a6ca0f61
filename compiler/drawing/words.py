"""Text of pictures: quantities as people write them, and how wide a text is."""

from collections.abc import Iterable

_WIDTHS = (
    "32 40 46 84 64 95 78 27 39 39 50 84 32 36 32 34 64 64 64 64 64 64 64 64 64 64 34 34 84 84 84 53 100 68 69 "
    "70 77 63 58 77 75 29 29 66 56 86 75 79 60 79 69 63 61 73 68 99 69 61 69 39 34 39 84 50 50 61 63 55 63 62 "
    "35 63 63 28 28 58 28 97 63 61 63 63 41 52 39 63 59 82 59 59 52 64 34 64 84"
)
WIDTHS = dict(zip(map(chr, range(32, 127)), (int(w) / 100 for w in _WIDTHS.split()), strict=True)) | {"·": 0.32}
"""Widths of printable ASCII in DejaVu Sans, in em. Fonts that people have set for interfaces are narrower."""
OTHER, BOLD = 1.0, 1.15
"""Width of any other character, and how much wider bold text is."""

_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def width(text: str, size: float, *, bold: bool = False) -> float:
    """An upper estimate of how wide a line of text is, in the unit of `size`."""
    return sum(WIDTHS.get(c, OTHER) for c in text) * size * (BOLD if bold else 1)


def widest(texts: Iterable[str], size: float, *, bold: bool = False) -> float:
    """The width of the widest of some lines, 0 of none."""
    return max((width(t, size, bold=bold) for t in texts), default=0.0)


def clipped(text: str, size: float, room: float, *, bold: bool = False) -> str:
    """The text, its end replaced by `…` where it is wider than `room`."""
    if width(text, size, bold=bold) <= room:
        return text
    while text and width(f"{text}…", size, bold=bold) > room:
        text = text[:-1]
    return f"{text.rstrip()}…"


def wrapped(text: str, size: float, room: float) -> tuple[str, ...]:
    """The text in lines no wider than `room`, cut between words; a word that is too wide is clipped."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width(longer, size) <= room:
            lines[-1] = longer
        else:
            lines.append(clipped(word, size, room))
    return tuple(lines)


def in_bytes(size: float) -> str:
    """`12.3 GB`: three digits at most, decimal units."""
    for unit, name in _BYTES:
        if abs(size) >= 0.9995 * unit:
            return f"{_digits(size / unit)} {name}"
    return f"{size:.0f} B"


def in_seconds(seconds: float) -> str:
    """`12.3 s`, `870 ms`, `14 min`."""
    if seconds >= 600:
        return f"{_digits(seconds / 60)} min"
    if seconds >= 0.9995 or seconds == 0:
        return f"{_digits(seconds)} s"
    return f"{_digits(seconds * 1e3)} ms"


def in_percent(fraction: float) -> str:
    """`4.2 %`."""
    return f"{100 * fraction:.0f} %" if fraction >= 0.0995 or fraction == 0 else f"{100 * fraction:.1f} %"


def counted(number: int, word: str) -> str:
    """`1 node`, `8 nodes`, `1,024 tokens`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _digits(x: float) -> str:
    """Three digits at most."""
    return f"{x:.0f}" if x >= 99.95 else f"{x:.{1 if x >= 9.995 else 2}f}".rstrip("0").rstrip(".")
