"""Lays a time line out: a row for each lane, bars where something runs, a hatch where nothing does."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from .geometry import LABEL, LINE, TITLE, Rect, Text
from .layout import HEADING
from .scene import Bar, Timeline
from .words import clipped, in_percent, in_seconds, width

TOP, BAR, MOVES, ROW_GAP, AXIS = 30.0, 40.0, 9.0, 14.0, 30.0
"""Room above the rows; heights of a phase's bar and of a transfer's; between rows; below them."""
OUTSIDE = 17.0
"""Room above the bars of a row for numbers of those that are too narrow for them."""
RIGHT, PAD, BADGE = 22.0, 7.0, 8.5
THINNEST = 2.5
"""Bars are never thinner than this."""
TICKS = 4
"""Into how many parts an axis may be divided, however narrow it is."""
PHASES = frozenset({"generate", "forward", "train", "operator"})


@dataclass(frozen=True)
class BarBox:
    """A bar where it is seen: in one piece or two, on each of its lanes. badge: the middle of its number; outside: it
    stands above the bar."""

    bar: Bar
    rects: tuple[Rect, ...]
    texts: tuple[Text, ...] = ()
    badge: tuple[float, float] | None = None
    outside: bool = False


@dataclass(frozen=True)
class Row:
    """The row of a lane. idle: where nothing runs on it."""

    lane: str
    rect: Rect
    texts: tuple[Text, ...]
    idle: tuple[Rect, ...]


@dataclass(frozen=True)
class Chart:
    """The time line, laid out. ticks: heights are those of the axis; marks: vertical lines at the period's ends."""

    width: float
    height: float
    rows: tuple[Row, ...]
    bars: tuple[BarBox, ...]
    ticks: tuple[Text, ...]
    marks: tuple[Text, ...]
    plot: Rect


def lay_out_chart(timeline: Timeline, wide: float) -> Chart:
    """Where everything of a time line is, in a picture that is `wide`."""
    return _Chart(timeline, Rect(HEADING, TOP, wide - HEADING - RIGHT, 0)).chart


@dataclass(frozen=True)
class _Chart:
    timeline: Timeline
    plot: Rect

    @property
    def chart(self) -> Chart:
        bars: list[BarBox] = []
        rows: list[Row] = []
        y = self.plot.y
        for lane, busy in zip(self.timeline.lanes, self.timeline.busy, strict=True):
            strip = OUTSIDE if any(self._narrow(b) for b in self._phases(lane)) else 0.0
            rect = Rect(self.plot.x, y + strip, self.plot.w, BAR + 3 + MOVES)
            rows.append(Row(lane, rect, self._heading(lane, busy, rect), tuple(self._idle(lane, rect))))
            bars += self._boxes(lane, rect)
            y = rect.bottom + ROW_GAP
        plot = Rect(self.plot.x, self.plot.y, self.plot.w, y - ROW_GAP - self.plot.y)
        transfers = tuple(self._transfers(rows))
        return Chart(
            plot.right + RIGHT,
            plot.bottom + AXIS,
            tuple(rows),
            (*bars, *transfers),
            tuple(self._ticks(plot)),
            tuple(self._marks(plot)),
            plot,
        )

    # ------------------------------------------------------------ rows

    def _heading(self, lane: str, busy: float, rect: Rect) -> tuple[Text, ...]:
        name = clipped(lane, TITLE, HEADING - 24, bold=True)
        return (
            Text(14, rect.y + 19, name, TITLE, "lane-name", bold=True),
            Text(14, rect.y + 35, f"busy {in_percent(busy)}", LINE, "line"),
        )

    def _idle(self, lane: str, rect: Rect) -> Iterator[Rect]:
        """Where the lane has nothing to do."""
        reached = 0.0
        end = self.timeline.period
        pieces = sorted(p for b in self.timeline.bars if lane in b.lanes for p in b.pieces(end))
        for start, stop in [*pieces, (end, end)]:
            if self._x(start) - self._x(reached) > 1:
                yield Rect(self._x(reached), rect.y, self._x(start) - self._x(reached), BAR)
            reached = max(reached, stop)

    def _x(self, seconds: float) -> float:
        return self.plot.x + self.plot.w * seconds / self.timeline.period

    def _phases(self, lane: str) -> list[Bar]:
        found = [b for b in self.timeline.bars if b.kind in PHASES and lane in b.lanes]
        return sorted(found, key=lambda b: (b.pieces(self.timeline.period)[0], b.of))

    # ------------------------------------------------------------ bars

    def _pieces(self, bar: Bar, y: float, height: float) -> tuple[Rect, ...]:
        spans = ((self._x(a), self._x(b)) for a, b in bar.pieces(self.timeline.period))
        return tuple(Rect(min(a, self.plot.right - THINNEST), y, max(b - a, THINNEST), height) for a, b in spans)

    def _narrow(self, bar: Bar) -> bool:
        """Whether not even its number fits a bar."""
        return _largest(self._pieces(bar, 0, 0)).w < 2 * BADGE + 5

    def _boxes(self, lane: str, rect: Rect) -> Iterator[BarBox]:
        """The bars of phases in a row."""
        above = self._above(lane, rect.y - OUTSIDE)
        for bar in self._phases(lane):
            rects = self._pieces(bar, rect.y, BAR)
            largest = _largest(rects)
            if bar.of in above:
                badge, texts = above[bar.of]
                yield BarBox(bar, rects, texts, badge, outside=True)
            else:
                yield BarBox(bar, rects, tuple(self._texts(bar, largest)), (largest.x + PAD + BADGE - 3, rect.y + 12.5))

    def _above(self, lane: str, y: float) -> dict[str, tuple[tuple[float, float], tuple[Text, ...]]]:
        """The numbers above narrow bars, and what stands beside them, by what they are of."""
        middles = {b.of: _largest(self._pieces(b, 0, 0)) for b in self._phases(lane) if self._narrow(b)}
        bars = sorted((b for b in self._phases(lane) if b.of in middles), key=lambda b: middles[b.of].x)
        places = self._spread([max(middles[b.of].centre, self.plot.x + BADGE) for b in bars], bars)
        found, free = {}, self.plot.x
        for bar, (x, following) in zip(bars, pairwise([*places, math.inf]), strict=True):
            texts = tuple(self._beside(bar, x, y + 11, free, following - BADGE))
            free = max([x + BADGE, *(t.rect.right for t in texts)]) + 2
            found[bar.of] = (x, y + 7), texts
        return found

    def _spread(self, wanted: list[float], bars: Iterable[Bar]) -> list[float]:
        """Numbers as near to their bars as can be, with room for what stands beside them as long as there is any."""
        beside = 3 + max((width(b.step_text, LABEL) for b in bars), default=0.0) if self._steps else 0.0
        last = self.plot.right + RIGHT - BADGE - 1
        places = spread(wanted, 2 * BADGE + 2 + beside)
        return places if not places or places[-1] <= last else spread(wanted, 2 * BADGE + 2, last)

    def _beside(self, bar: Bar, x: float, y: float, free: float, end: float) -> Iterator[Text]:
        """The step of a bar whose number is above it: right of the number, or left where there is no room."""
        if not self._steps:
            return
        right = Text(x + BADGE + 3, y, bar.step_text, LABEL, "line")
        left = Text(x - BADGE - 3, y, bar.step_text, LABEL, "line", "end")
        if right.rect.right <= min(end, self.plot.right):
            yield right
        elif left.rect.x >= free:
            yield left

    def _texts(self, bar: Bar, rect: Rect) -> Iterator[Text]:
        """The name and the seconds in a bar, as far as they fit."""
        left = rect.x + PAD + 2 * BADGE + 2
        seconds = in_seconds(bar.end - bar.start)
        room = rect.right - left - 4
        if width(bar.title, LINE, bold=True) <= room:
            yield Text(left, rect.y + 16.5, bar.title, LINE, "name", bold=True)
        room = rect.w - 2 * PAD
        lines = (f"{seconds} · {self._step(bar)}", self._step(bar), bar.step_text) if self._steps else (seconds,)
        fitting = (line for line in lines if width(line, LABEL) <= room)
        if text := next(fitting, ""):
            yield Text(rect.x + PAD, rect.y + 31, text, LABEL, "line")
        elif self._steps and width(bar.step_text, LABEL) <= rect.w - 2:
            yield Text(rect.x + rect.w / 2, rect.y + 31, bar.step_text, LABEL, "line", "middle")

    @property
    def _steps(self) -> bool:
        """Whether bars belong to several steps."""
        return len({b.step for b in self.timeline.bars}) > 1

    def _step(self, bar: Bar) -> str:
        return f"step {bar.step_text}"

    def _transfers(self, rows: Iterable[Row]) -> Iterator[BarBox]:
        """The bars of transfers: each below the phases of all lanes it occupies."""
        at = {row.lane: row.rect.y + BAR + 3 for row in rows}
        for bar in self.timeline.bars:
            if bar.kind not in PHASES:
                yield BarBox(bar, tuple(r for lane in bar.lanes for r in self._pieces(bar, at[lane], MOVES)))

    # ------------------------------------------------------------ axis

    def _ticks(self, plot: Rect) -> Iterator[Text]:
        step = nice_step(self.timeline.period, max(TICKS, plot.w / 90))
        for index in range(int(self.timeline.period / step + 1e-9) + 1):
            text = f"{index * step:g}" + (" s" if index else "")
            yield Text(self._x(index * step), plot.bottom + 20, text, LABEL, "tick", "middle")

    def _marks(self, plot: Rect) -> Iterator[Text]:
        longest = "one period of the steady state" if not self._steps else "one period: while step t trains"
        last = Text(
            plot.right, plot.y - 13, f"period {in_seconds(self.timeline.period)}", LABEL, "mark", "end", bold=True
        )
        marks = (Text(plot.x, plot.y - 13, said, LABEL, "mark") for said in (longest, "one period"))
        yield from [m for m in marks if m.rect.right + PAD <= last.rect.x][:1]
        yield last


def _largest(rects: Iterable[Rect]) -> Rect:
    return max(rects, key=lambda r: r.w)


def spread(wanted: Iterable[float], apart: float, last: float = math.inf) -> list[float]:
    """Places at least so far apart, as near to the wanted ones as can be, of which none is beyond the last."""
    found: list[float] = []
    for x in wanted:
        found.append(max(x, found[-1] + apart) if found else x)
    for index in reversed(range(len(found))):
        found[index] = min(found[index], last)
        last = found[index] - apart
    return found


def nice_step(whole: float, parts: float) -> float:
    """A round number (1, 2 or 5 with zeros) that divides a length into no more than so many parts."""
    rough = whole / max(1.0, parts)
    size = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(f * size for f in (1, 2, 5, 10) if f * size >= rough * (1 - 1e-9))
