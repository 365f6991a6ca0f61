"""The boundary to the user's Python: what goes wrong beyond it is told in the user's terms.

An error of an operator names the node of the flow, the function, the row with its arguments and the user's own
frames; the frames of this runtime say nothing to the author of a reward function and are left out.
"""

import asyncio
import linecache
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from .errors import RunError

_ARGUMENT_CHARACTERS = 120
_OURS = (str(Path(__file__).parent) + os.sep, str(Path(asyncio.__file__).parent) + os.sep)


@dataclass(frozen=True)
class RowContext:
    """Which call of an operator it was.

    Attributes:
        node: the name of the operator's value in the flow.
        function: `module.function`.
        row: its number among the rows of this call, from 0; None if no row is to blame.
        label: what the row is in the flow's terms ("prompt 3, sample 1").
        arguments: the arguments' names and (shortened) values.
    """

    node: str
    function: str
    row: int | None = None
    label: str | None = None
    arguments: tuple[tuple[str, str], ...] = ()

    def lines(self) -> list[str]:
        """The row and its arguments, one line each."""
        if self.row is None:
            return []
        width = max((len(name) for name, _ in self.arguments), default=0)
        label = f" ({self.label})" if self.label else ""
        return [f"row {self.row}{label}:", *(f"  {name:<{width}} = {value}" for name, value in self.arguments)]


class OperatorError(RunError):
    """A user's function raised, or its result can't be used.

    Attributes:
        context: the node, the function and the row.
        cause: what happened, in one sentence.
        frames: the user's part of the traceback, empty if the function didn't raise.
    """

    def __init__(self, context: RowContext, cause: str, frames: tuple[str, ...] = ()) -> None:
        super().__init__(context, cause, frames)  # the arguments, so that it can be pickled between processes
        self.context = context
        self.cause = cause
        self.frames = frames

    def __str__(self) -> str:
        head = f"{self.context.node}: {self.context.function} {self.cause}"
        traced = ["in your code:", *(f"  {line}" for line in self.frames)] if self.frames else []
        return "\n".join([head, *(f"  {line}" for line in [*self.context.lines(), *traced])])


def raised(error: BaseException, context: RowContext, note: str = "") -> OperatorError:
    """The operator error for an exception that came out of a user's function."""
    text = str(error).strip()
    cause = f"raised {type(error).__name__}" + (f": {text}" if text else "") + note
    return OperatorError(context, cause, user_frames(error))


def user_frames(error: BaseException) -> tuple[str, ...]:
    """The frames of a traceback that aren't this runtime's (nor asyncio's above the user's), as lines to print."""
    return tuple(_lines(_frames(error.__traceback__)) + _syntax_lines(error))


def running_frames(thread: int) -> tuple[str, ...]:
    """Where a thread is below this runtime, as lines to print; or where in the runtime, if it is nowhere below."""
    stack = list(traceback.extract_stack(sys._current_frames().get(thread)))
    ours = [number for number, frame in enumerate(stack) if frame.filename.startswith(_OURS)]
    below = [f for f in stack[ours[0] if ours else 0 :] if not f.filename.startswith(_OURS)]
    return tuple(_lines(below or stack[-1:]))


def _lines(frames: Sequence[traceback.FrameSummary]) -> list[str]:
    lines: list[str] = []
    for frame in frames:
        lines.append(f"{_shown(frame.filename)}:{frame.lineno}, in {frame.name}")
        source = frame.line or linecache.getline(frame.filename, frame.lineno or 0).strip()
        lines += [f"  {source}"] if source else []
    return lines


def _frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    frames = [f for f in traceback.extract_tb(trace) if not f.filename.startswith("<frozen importlib")]
    return [f for f in frames if not f.filename.startswith(_OURS)]


def _syntax_lines(error: BaseException) -> list[str]:
    """A syntax error has no frame of its own file; its place is in the exception."""
    if not isinstance(error, SyntaxError) or not error.filename:
        return []
    return [f"{_shown(error.filename)}:{error.lineno}", f"  {(error.text or '').strip()}"]


def _shown(filename: str) -> str:
    """A path as short as it can be while still leading there from the working directory."""
    relative = os.path.relpath(filename)
    return filename if relative.startswith("..") else relative


def short_arguments(names: Sequence[str], values: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    """Names and shortened values of a call's arguments."""
    return tuple((name, short(value)) for name, value in zip(names, values, strict=True))


def short(value: Any) -> str:
    """A value in a hundred characters or so; the ends of a text are kept, since answers stand at its end."""
    shape = getattr(value, "shape", None)
    if shape:
        return f"{type(value).__name__} of shape {tuple(shape)}, {value.dtype}"
    text = _safe_repr(value)
    if len(text) <= _ARGUMENT_CHARACTERS:
        return text
    half = _ARGUMENT_CHARACTERS // 2
    size = f" ({len(value)} characters)" if isinstance(value, str) else ""
    return f"{text[:half]} … {text[-half:]}{size}"


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # a user's __repr__ must not hide the error being told
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
