"""The telemetry of one run: one call per step, and files, events and screen follow."""

import json
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsFloat, TextIO

from ..errors import RunWarning
from ..execution.stopping import Stopped
from .console import Console, open_console
from .curves import plot
from .events import Events
from .logfile import LogFile

Number = float | int
Record = Mapping[str, SupportsFloat]

METRICS = "metrics.jsonl"
SAMPLES = "samples.jsonl"
CURVES = "curves.png"
EVENTS = "tensorboard"


class Telemetry:
    """Records of a run in `out`: metrics.jsonl, samples.jsonl, tensorboard/, curves.png, and a console.

    Open it with `Telemetry.open`; as a context manager it closes itself, also when the run fails.
    """

    def __init__(
        self, out: Path, flow: str, metrics: LogFile, samples: LogFile, events: Events | None, console: Console
    ) -> None:
        self.out = out
        self._flow = flow
        self._metrics = metrics
        self._samples = samples
        self._events = events
        self._console = console
        self._closed = False

    @classmethod
    def open(
        cls,
        out: Path,
        *,
        flow: str,
        steps: int,
        resume: bool,
        tensorboard: bool = True,
        console: TextIO | bool = True,
        expected: Sequence[str] = (),
    ) -> Self:
        """Start or continue the records of a run.

        Args:
            out: the run's output directory.
            flow: the flow's name, for headings.
            steps: steps of the whole run.
            resume: continue the files in `out` (after `restore_logs`); else they are emptied.
            tensorboard: whether to write TensorBoard events.
            console: where step lines go: True is stdout, False nowhere. A terminal gets colours and a live
                progress bar, anything else about ten plain lines.
            expected: names of what steps will measure, so that the screen has room for it from the first one on.
        """
        out.mkdir(parents=True, exist_ok=True)
        done = read_metrics(out / METRICS) if resume else []
        following = int(done[-1].get("step") or 0) + 1 if done else 0
        events = Events(out / EVENTS, following if resume else None) if tensorboard else None
        stream = sys.stdout if console is True else console or None
        screen = open_console(stream, flow=flow, steps=steps, out=out, done=done, expected=expected)
        metrics, samples = (LogFile(out / name, resume=resume) for name in (METRICS, SAMPLES))
        return cls(out, flow, metrics, samples, events, screen)

    def step(self, record: Record) -> None:
        """Record one step: `step` and `seconds`, then whatever else was measured, in the order given.

        Known to the screen and the curves: `reward, kl, loss.<model>, length, tokens_per_second`.

        Warns:
            RunWarning: a value is NaN or infinite; it is written as null.
        """
        first = {name: record[name] for name in ("step", "seconds") if name in record}
        plain = {name: _number(value) for name, value in (first | dict(record)).items()}
        self._metrics.append(plain)
        if self._events is not None:
            self._events.add(plain)
        self._console.step(plain)
        bad = [f"{name} is {value}" for name, value in plain.items() if not math.isfinite(value)]
        if bad:
            text = f"step {plain.get('step')}: {', '.join(bad)}; written to {METRICS} as null"
            warnings.warn(text, RunWarning, stacklevel=2)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record rollouts to read: `prompt`, `text`, `reward` and other columns, one object per row."""
        for row in rows:
            self._samples.append({"step": step, **row})

    def log_files(self) -> list[LogFile]:
        """The files whose lengths belong to each commit."""
        return [self._metrics, self._samples]

    def flush(self) -> None:
        """Bring everything written so far to the disk."""
        for log in self.log_files():
            log.sync()
        if self._events is not None:
            self._events.flush()

    def close(self, failed: bool = False) -> None:
        """End the records: draw the curves and, unless the run has failed, print the summary. Twice is as once."""
        if self._closed:
            return
        self._closed = True
        self.flush()
        for log in self.log_files():
            log.close()
        if self._events is not None:
            self._events.close()
        curves = plot(self.out / METRICS, self.out / CURVES, title=self._flow)
        self._console.close(_made(self.out, curves), failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=isinstance(error, Exception) and not isinstance(error, Stopped))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file, none if there is no such file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _number(value: Any) -> Number:
    """A Python number from one of numpy's or a tensor of one element."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, int | float):
        raise TypeError(f"a metric is a number, not {type(value).__name__}: {value!r}")
    return value


def _made(out: Path, curves: bool) -> list[str]:
    names = [METRICS, *([CURVES] if curves else []), SAMPLES, EVENTS, "commits", "models"]
    return [name for name in names if (out / name).exists() and (out / name).stat().st_size]
