"""The watch: when one rank fails, all end within seconds, and one message says why.

A rank whose neighbor is gone hangs in a collective, and there only a thread beside it can still act. The first rank
that fails prints what happened, then publishes it; the others end when they see that. What is only a consequence (a
peer that doesn't answer) gives way to its cause.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from torch._C._distributed_c10d import Store

from ..boundary import running_frames
from ..errors import RunError
from .channel import PeerError, as_peer_error, ranks_text
from .world import World, place_key

_TICK = 0.25  # seconds between two looks
_TICKS_PER_BEAT = 8
_SILENCE = 60.0  # seconds without a beat after which a node is taken for dead
_LINGER = 1.0  # seconds that rank 0, on the store's node, stays so that the others can still read the failure
_CAUSE = 3.0  # seconds that a rank which only lost its peer waits for the cause to be published

_CLAIM, _FAILED = "first", "failed"


@dataclass(frozen=True)
class Failure:
    """What ended a run: on which rank, and what was printed of it.

    is_stop: it was the user's wish. awaited: the ranks that didn't come where another one waited for them.
    """

    rank: int
    text: str
    is_stop: bool = False
    awaited: Sequence[int] = ()

    @property
    def status(self) -> int:
        """The exit status of the ranks that end because of it."""
        return 128 + signal.SIGINT if self.is_stop else 1


class Watch:
    """Beside each rank a thread that tells the others where it is, and ends this process when another rank failed.

    `start` it after joining, `leave` before the last barrier, `close` after it. `failed` reports an exception.
    """

    def __init__(self, world: World) -> None:
        if world.store is None:
            raise ValueError("a world of one has nobody to watch")
        self._world = world
        self._main_store = world.store
        self._store: Store = world.store.clone()  # type: ignore[attr-defined]  # of the thread's own: clients block
        self._stop, self._ending = threading.Event(), threading.Lock()
        self._is_leaving = False
        self._published, self._ticks = "", 0
        self._neighbors = _neighbors(world)
        self._beats = _Beats(world)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def leave(self) -> None:
        """From here on this rank, and the store with its host, may be gone without anything being wrong."""
        self._is_leaving = True
        with suppress(RuntimeError):
            self._main_store.set(_goodbye(self._world.rank), "")

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()

    # ------------------------------------------------------------ this rank fails

    def failed(self, error: BaseException) -> NoReturn:
        """Tell of an exception, unless it is a consequence of another rank's, and end this process."""
        self._ending.acquire()  # for good: the thread's own end would cut this one short
        self._world.is_ending = True
        error = as_peer_error(error, self._world.rank)
        own = self._failure(error)
        cause = None
        try:
            cause = self._cause(own, isinstance(error, PeerError))
            if cause is None:
                _say(self._headed(own))
                _publish(self._main_store, own)
            elif cause.text != own.text:  # all ranks may have met the same: once is enough
                _say(self._because(cause))
        except RuntimeError:  # of the store's client
            _say(self._deserted() if isinstance(error, PeerError) else self._headed(own))
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        self._exit((cause or own).status)

    def _failure(self, error: BaseException) -> Failure:
        """What an exception says: of this rank, or of the one that it came from or waited for."""
        awaited = error.awaited if isinstance(error, PeerError) else ()
        origin = error.origin if isinstance(error, RunError) else None
        rank = awaited[0] if awaited else self._world.rank if origin is None else origin
        return Failure(rank, _told(error), isinstance(error, KeyboardInterrupt), awaited)

    def _cause(self, own: Failure, is_consequence: bool) -> Failure | None:
        """Another rank's failure, which came first; None if this rank has to speak."""
        if is_consequence and (cause := _published(self._main_store, _CAUSE)) is not None:
            return cause
        return None if _claimed(self._main_store, self._world.rank) else _published(self._main_store, _CAUSE)

    def _headed(self, own: Failure) -> str:
        if own.is_stop:
            return own.text
        if own.awaited:
            return f"error: {own.text}"
        return f"error: rank {own.rank} failed at {self._world.place}:\n{own.text}"

    def _deserted(self) -> str:
        return f"rank {self._world.rank}: stopped, because the run's store is gone with its host"

    def _because(self, cause: Failure) -> str:
        if cause.is_stop:
            return ""
        what = "didn't come" if cause.awaited else "failed"
        return f"rank {self._world.rank}: stopped, because {ranks_text(cause.awaited or [cause.rank])} {what}"

    def _whereabouts(self) -> str:
        """Where the main thread is, for which others have waited in vain: it can't say so itself."""
        lines = running_frames(threading.main_thread().ident or 0)
        return "\n  ".join([f"rank {self._world.rank}, for which others waited, is here:", *lines])

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._stop.wait(_TICK):
            try:
                self._look()
            except RuntimeError:  # of the store's client
                if self._is_leaving:
                    return
                self._finish(self._deserted())

    def _look(self) -> None:
        self._ticks += 1
        self._publish_place()
        if (failure := _look_up(self._store)) is not None:
            is_late = self._world.rank in failure.awaited
            self._finish(self._whereabouts() if is_late else self._because(failure), failure.status)
        if self._ticks % 2 == 0:
            self._look_for_dead()
        if self._ticks % _TICKS_PER_BEAT == 0 and (silent := self._beats.silent(self._store)):
            self._report(silent[0], f"{ranks_text(silent)} of another node: no sign of life for {_SILENCE:g} s")

    def _publish_place(self) -> None:
        if (place := self._world.place) != self._published:
            self._store.set(place_key(self._world.rank), place)
            self._published = place

    def _look_for_dead(self) -> None:
        """Report processes of this node that are gone although they neither said goodbye nor failed."""
        for rank in [r for r, pid in self._neighbors.items() if not _is_alive(pid)]:
            if self._store.check([_goodbye(rank)]):
                del self._neighbors[rank]
            elif _look_up(self._store) is None:
                pid = self._neighbors[rank]
                self._report(
                    rank,
                    f"rank {rank} (process {pid}) ended without a word, as one does that is killed (out of memory?)",
                )

    def _report(self, rank: int, text: str) -> None:
        """Fail in the name of a rank that can't, even while the main thread waits for just this."""
        if is_first := _claimed(self._store, self._world.rank):
            _say(f"error: {text}")
            _publish(self._store, Failure(rank, text))
        cause = None if is_first else _published(self._store, _CAUSE)
        self._finish(self._because(cause) if cause else "")

    def _finish(self, last: str, status: int = 1) -> None:
        """End this process with a last word, unless its main thread is about to."""
        if not self._ending.acquire(blocking=False):
            self._stop.set()
            return
        self._world.is_ending = True
        _say(last)
        self._exit(status)

    def _exit(self, status: int) -> NoReturn:
        """End at once: destructors of process groups may wait for ranks that are gone."""
        if self._world.rank == 0:
            time.sleep(_LINGER)
        os._exit(status)


class _Beats:
    """Signs of life between nodes: one rank of each gives them, and looks for those of the others."""

    def __init__(self, world: World) -> None:
        nodes: dict[str, list[int]] = {}
        for rank, peer in enumerate(world.peers):
            nodes.setdefault(peer.node, []).append(rank)
        own = nodes.pop(world.peers[world.rank].node)
        self._own = own[0]
        self._others = {ranks[0]: ranks for ranks in nodes.values()} if own[0] == world.rank else {}
        self._count = 0
        self._heard = {rank: (b"", time.monotonic()) for rank in self._others}

    def silent(self, store: Store) -> list[int]:
        """Give a sign; the ranks of a node that has given none for too long."""
        if not self._others:
            return []
        self._count += 1
        store.set(_beat(self._own), str(self._count))
        for rank, ranks in self._others.items():
            beat = store.get(_beat(rank)) if store.check([_beat(rank)]) else b""
            before, since = self._heard[rank]
            if beat != before:
                self._heard[rank] = beat, time.monotonic()
            elif time.monotonic() - since > _SILENCE and not store.check([_goodbye(rank)]):
                return ranks
        return []


# ---------------------------------------------------------------- the store's keys


def claim(store: Store, rank: int) -> bool:
    """Whether this rank is the first that fails, and so the one that speaks. False if the store is gone."""
    try:
        return _claimed(store, rank)
    except RuntimeError:
        return False


def _claimed(store: Store, rank: int) -> bool:
    return bytes(store.compare_set(_CLAIM, "", str(rank))) == str(rank).encode()


def _publish(store: Store, failure: Failure) -> None:
    store.set(_FAILED, json.dumps(asdict(failure)))


def _look_up(store: Store) -> Failure | None:
    return Failure(**json.loads(store.get(_FAILED))) if store.check([_FAILED]) else None


def _published(store: Store, seconds: float) -> Failure | None:
    """The failure that is published within so many seconds."""
    deadline = time.monotonic() + seconds
    while (failure := _look_up(store)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return failure


def _goodbye(rank: int) -> str:
    return f"goodbye/{rank}"


def _beat(rank: int) -> str:
    return f"beat/{rank}"


# ---------------------------------------------------------------- processes


def _neighbors(world: World) -> dict[int, int]:
    """The processes of the other ranks on this node."""
    own = world.peers[world.rank]
    return {r: p.pid for r, p in enumerate(world.peers) if p.node == own.node and r != world.rank}


def _is_alive(pid: int) -> bool:
    """Whether a process exists and isn't a zombie: a launcher may be slow to take note of its end."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    except OSError:
        if Path("/proc/self/stat").exists():
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _told(error: BaseException) -> str:
    """A RunError's text is the whole message; of anything else the traceback is needed."""
    if isinstance(error, KeyboardInterrupt):
        return str(error) or "stopped"
    if isinstance(error, RunError):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


def _say(text: str) -> None:
    """To stderr, past its buffer and lock: the main thread may hold them while it hangs."""
    data = f"{text}\n".encode() if text else b""
    with suppress(OSError):
        while data:
            data = data[os.write(2, data) :]
