"""The run on the screen: a line per step over a live progress bar, or ten plain lines where there is no terminal."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from .columns import cells, columns_of, duration, headings, short, widths

if TYPE_CHECKING:
    from rich.console import OverflowMethod
    from rich.progress import Progress

_PLAIN_LINES = 10
_REPEAT_HEADING = 30  # steps on a terminal, so that the headings stay in sight


class Console(Protocol):
    """What shows the steps of a run."""

    def step(self, record: Mapping[str, Any]) -> None: ...
    def close(self, made: Sequence[str], failed: bool = False) -> None:
        """End it: with the summary, unless the run has failed, which is for others to tell."""


def open_console(
    stream: TextIO | None,
    *,
    flow: str,
    steps: int,
    out: Path,
    done: Sequence[Mapping[str, Any]],
    expected: Sequence[str] = (),
) -> Console:
    """The console for a stream; None is silent.

    Args:
        stream: where to write.
        flow: the flow's name.
        steps: steps of the whole run.
        out: the run's output directory.
        done: the records of earlier steps, where the run is continued.
        expected: what steps will measure, whether or not the first one does.
    """
    story = _Story(flow, steps, out, done, expected)
    if stream is None:
        return _Silent()
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return _LiveConsole(stream, story)
    return _PlainConsole(stream, story)


class _Silent:
    def step(self, record: Mapping[str, Any]) -> None:
        pass

    def close(self, made: Sequence[str], failed: bool = False) -> None:
        pass


class _Story:
    """What both consoles tell, told in text: the heading of the run, lines of a table, the summary."""

    def __init__(
        self, flow: str, steps: int, out: Path, done: Sequence[Mapping[str, Any]], expected: Sequence[str]
    ) -> None:
        self.flow = flow
        self.steps = steps
        self.out = out
        self.first_step = len(done)
        self.finished = len(done)
        self._expected = expected
        self._names: list[str] = []
        self._rewards = [record["reward"] for record in done if record.get("reward") is not None]
        self._tokens: list[float] = []
        self._started = time.monotonic()

    def opening(self) -> str:
        """What runs, and from where to where."""
        span = f"steps {self.first_step + 1} to {self.steps}" if self.first_step else _counted(self.steps, "step")
        if self.first_step >= self.steps:
            span = f"all {_counted(self.steps, 'step')} are made; a larger --steps goes on"
        return f"{self.flow} · {span} · {_shown(self.out)}"

    def take(self, record: Mapping[str, Any]) -> str | None:
        """Note one step; a new line of headings if there are columns that weren't there before.

        What a run measures after its last step is a record too, but no step.
        """
        self.finished = min(self.finished + 1, max(self.steps, self.finished))
        if record.get("reward") is not None:
            self._rewards.append(record["reward"])
        names = columns_of(record, [*self._expected, *self._names])
        if names == self._names:
            return None
        self._names = names
        return self.heading()

    def heading(self) -> str:
        """The row of headings."""
        return self._row("step", headings(self._names))

    def line(self, record: Mapping[str, Any]) -> str:
        """One step as a row of the table; what only an evaluation measured stands beside it by name."""
        own = [n for n in record if n not in ("step", "seconds")]
        if own and not any(n in self._names for n in own):
            return "  end  " + " · ".join(f"{n} {short(record[n])}" for n in own)
        return self._row(f"{record.get('step', self.finished)}", cells(record, self._names))

    def _row(self, step: str, texts: Sequence[str]) -> str:
        sizes = widths(headings(self._names))
        return step.rjust(max(4, len(str(self.steps)))) + "".join(
            text.rjust(size) for text, size in zip(texts, sizes, strict=True)
        )

    def summary(self, made: Sequence[str]) -> list[str]:
        """How it went, and where to look."""
        done = self.finished - self.first_step
        head = f"Finished {_counted(self.finished, 'step')}"
        if self.finished < self.steps:
            head = f"Stopped after {self.finished} of {_counted(self.steps, 'step')}"
        parts = [head]
        if self._rewards:
            parts.append(f"reward {short(self._rewards[0])} → {short(self._rewards[-1])}")
        seconds = time.monotonic() - self._started
        each = f" ({duration(seconds / done)} a step)" if done > 1 else ""
        parts.append(f"{duration(seconds)}{each}")
        return [" · ".join(parts), *([f"{_shown(self.out)}: {', '.join(made)}"] if made else [])]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return f"{path}/" if relative.startswith("..") else f"{relative}/"


class _PlainConsole:
    """For logs and pipes: no colours, about ten lines however long the run is."""

    def __init__(self, stream: TextIO, story: _Story) -> None:
        self._stream = stream
        self._story = story
        self._chosen = _spread(story.first_step + 1, story.steps)
        self._heading: str | None = None
        self._broken = False
        self._print(story.opening())

    def step(self, record: Mapping[str, Any]) -> None:
        self._heading = self._story.take(record) or self._heading
        if self._story.finished in self._chosen:
            if self._heading:
                self._print(self._heading)
                self._heading = None
            self._print(self._story.line(record))

    def close(self, made: Sequence[str], failed: bool = False) -> None:
        for line in [] if failed else self._story.summary(made):
            self._print(line)

    def _print(self, line: str) -> None:
        if self._broken:
            return
        encoding = getattr(self._stream, "encoding", None) or "utf-8"  # an arrow must not end a run on a Latin-1 pipe
        try:
            print(line.encode(encoding, "replace").decode(encoding), file=self._stream, flush=True)
        except BrokenPipeError:  # nor must a reader that has left, such as `head`
            self._broken = True


def _spread(first: int, last: int) -> frozenset[int]:
    """About ten numbers from first to last, both included."""
    gaps = min(_PLAIN_LINES - 1, max(last - first, 1))
    return frozenset(round(first + (last - first) * i / gaps) for i in range(gaps + 1))


class _LiveConsole:
    """For a terminal: every step, and under them a progress bar that says how long it will take."""

    def __init__(self, stream: TextIO, story: _Story) -> None:
        self._story = story
        self._lines = 0  # since the last headings
        self._progress = _progress(stream)
        self._progress.start()
        self._print(story.opening(), "bold")
        self._task = self._progress.add_task(story.flow, total=story.steps, completed=story.first_step)

    def step(self, record: Mapping[str, Any]) -> None:
        heading = self._story.take(record)
        if heading or self._lines % _REPEAT_HEADING == 0:
            self._print(heading or self._story.heading(), "bold cyan")
            self._lines = 0
        self._lines += 1
        self._print(self._story.line(record))
        self._progress.update(self._task, completed=self._story.finished)

    def close(self, made: Sequence[str], failed: bool = False) -> None:
        complete = self._story.finished >= self._story.steps
        self._progress.stop()
        if failed:
            return
        first, *rest = self._story.summary(made)
        self._print(first, "bold green" if complete else "bold yellow", whole=True)
        for line in rest:
            self._print(line, "dim", whole=True)

    def _print(self, line: str, style: str = "", whole: bool = False) -> None:
        """Print a line; a row that is too wide is cut rather than broken, unless `whole` asks for all of it."""
        overflow: OverflowMethod = "ignore" if whole else "ellipsis"
        out = self._progress.console
        out.print(line, style=style, highlight=False, markup=False, no_wrap=True, overflow=overflow, crop=not whole)


def _progress(stream: TextIO) -> "Progress":
    from rich.console import Console as Terminal
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("[dim]elapsed"),
        TimeElapsedColumn(),
        TextColumn("[dim]left"),
        TimeRemainingColumn(),
        console=Terminal(file=stream),
        refresh_per_second=4,  # drawing it must not take time from the run
        transient=True,
        expand=True,
    )
