"""Four processes on this machine that run functions of test files as the ranks of a world, one job after the other.

Starting a process costs seconds (torch), so there is one pool for all tests of a session. Run as a program, this file
is one of its processes.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import IO, Any, TypeVar

T = TypeVar("T")
_ROOT = Path(__file__).parents[3]
_SIZE = 4
_START = 120.0  # seconds until a process has imported torch, on a machine with other work on it
_GRACE = 3.0  # seconds for the other ranks to end by themselves, once one has failed


class PoolError(Exception):
    """A job failed on some rank, or didn't end in time."""


@dataclass
class _Member:
    process: "subprocess.Popen[bytes]"
    connection: "Connection[Any, Any]"
    log: IO[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()

    def said(self) -> str:
        """The end of what it printed."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-3000:]


class Pool:
    """The processes. They start with the first job or `start`, and again after a job that had to be killed."""

    def __init__(self) -> None:
        self._members: list[_Member] = []
        self._is_ready = False
        self._jobs = 0
        self._store: Any = None

    def start(self) -> None:
        """Start the processes without waiting for them."""
        if not self._members:
            self._is_ready = False
            self._members = [_start() for _ in range(_SIZE)]

    def run(self, function: Callable[..., T], *args: Any, ranks: int = 4, timeout: float = 120.0) -> list[T]:
        """Call `function(world, *args)` on each rank of a new world; what they return, by rank.

        Args:
            function: of a test file's module level; it, the arguments and the results are pickled.
            ranks: how many ranks the world has, at most 4.
            timeout: seconds until the pool is killed and the job has failed.
        """
        self.start()
        members = self._members[:ranks]
        if not self._is_ready:
            self._collect(members=self._members, timeout=_START, what="starting")
            self._is_ready = True
        self._jobs += 1
        job = pickle.dumps((function, args))
        for rank, member in enumerate(members):
            member.connection.send((rank, ranks, self._port(), self._jobs, timeout, job))
        return self._collect(members, timeout, what=function.__name__)

    def close(self) -> None:
        """End the processes."""
        for member in self._members:
            member.kill()
        self._members = []

    def _port(self) -> int:
        """Where the ranks' store listens; this process holds it."""
        if self._store is None:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]

            self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return int(self._store.port)

    def _collect(self, members: Sequence[_Member], timeout: float, what: str) -> list[Any]:
        """The members' answers, in their order."""
        answers: dict[int, tuple[bool, Any]] = {}
        deadline = time.monotonic() + timeout
        while len(answers) < len(members) and time.monotonic() < deadline:
            waiting = {m.connection: i for i, m in enumerate(members) if i not in answers}
            for connection in wait(list(waiting), max(0.0, deadline - time.monotonic())):
                answers[waiting[connection]] = _received(connection)  # type: ignore[index,arg-type]
                if not answers[waiting[connection]][0]:  # type: ignore[index]
                    deadline = min(deadline, time.monotonic() + _GRACE)
        failed = [f"rank {i} of `{what}`:\n{text}" for i, (good, text) in sorted(answers.items()) if not good]
        missing = [i for i in range(len(members)) if i not in answers]
        if missing and not failed:
            failed = [f"`{what}` didn't end within {timeout:g} s on ranks {missing}"]
        if failed:
            said = [f"rank {i} printed:\n{text}" for i, m in enumerate(members) if (text := m.said())]
            if missing or any(m.process.poll() is not None for m in members):
                self.close()
            raise PoolError("\n".join(failed + said))
        return [pickle.loads(answers[i][1]) for i in range(len(members))]


def _start() -> _Member:
    ours, theirs = Pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TOKENIZERS_PARALLELISM": "false",
    }
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno()), str(os.getpid())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
    )
    theirs.close()
    return _Member(process, ours, log)


def _received(connection: "Connection[Any, Any]") -> tuple[bool, Any]:
    try:
        good, answer = connection.recv()
        return good, answer
    except (EOFError, OSError):
        return False, "the process has ended"


# ---------------------------------------------------------------- the processes


def _serve(connection: "Connection[Any, Any]") -> None:
    import torch

    from shardflow.runtime.ranks import World  # noqa: F401

    torch.set_num_threads(1)
    connection.send((True, pickle.dumps(None)))
    while True:
        rank, size, port, number, timeout, job = connection.recv()
        try:
            answer: tuple[bool, Any] = True, pickle.dumps(_job(rank, size, port, number, timeout, job))
        except BaseException:
            answer = False, traceback.format_exc()
        torch.set_default_dtype(torch.float32)
        connection.send(answer)


def _job(rank: int, size: int, port: int, number: int, timeout: float, job: bytes) -> Any:
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    from shardflow.runtime.ranks import World

    function, args = pickle.loads(job)
    store = PrefixStore(f"job{number}", TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False))
    world = World.join(rank=rank, size=size, store=store, timeout=timedelta(seconds=timeout))
    try:
        return function(world, *args)
    finally:
        world.close()


def _end_with(parent: int) -> None:
    """End this process when the parent has: it may have been killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def _name_tests() -> None:
    """Make `tests.runtime.…` importable as pytest names these modules, whatever else is called `tests`."""
    tests = types.ModuleType("tests")
    tests.__path__ = [str(_ROOT / "tests")]
    sys.modules["tests"] = tests
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != Path(__file__).parent]


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    _name_tests()
    with suppress(EOFError):
        _serve(Connection(int(sys.argv[1])))
