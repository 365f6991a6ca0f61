"""Ending a run early: Ctrl-C, or the SIGTERM of a scheduler, lets the step end and commits it."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stopped(Exception):
    """A run that was asked to end early, and did. step: how many steps its last commit holds."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step


_PATIENCE = 1.0  # seconds within which a rank ends because another has failed


def _announce() -> None:
    print("stopping after this step; once more stops at once", file=sys.stderr, flush=True)


def _never() -> bool:
    return False


@contextmanager
def stop_requests(rank: int = 0, size: int = 1, is_ending: Callable[[], bool] = _never) -> Iterator[Callable[[], bool]]:
    """Whether a stop was asked for, as a function. A second request doesn't wait for the end of the step.

    Only the main thread can be told; elsewhere nothing changes. Of many ranks the first says that it stops, and not at
    once: a launcher sends the same signal when another rank has failed, and the watch then ends this one.
    is_ending: whether it does.
    """
    asked = threading.Event()
    later = threading.Timer(_PATIENCE, lambda: None if is_ending() else _announce())
    later.daemon = True
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            later.cancel()
            raise KeyboardInterrupt
        asked.set()
        if size == 1:
            _announce()
        elif rank == 0:
            later.start()

    before: dict[int, Any] = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        later.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
