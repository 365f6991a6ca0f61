"""Work whose outcome all ranks of a channel learn: an error of one is an error on all, and nobody waits in vain."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import RunError
from .channel import Channel


def on_first(channel: Channel, what: str, work: Callable[[], bytes], kind: type[RunError] = RunError) -> bytes:
    """Do it on the channel's first rank; all ranks get the result.

    Raises:
        kind: on the other ranks, saying what the first one raised; there the error itself.
    """
    if channel.index > 0:
        told = channel.share(b"", what)
        if told[:1] != _GOOD:
            raise _of(channel.ranks[0], kind(told[1:].decode()))
        return told[1:]
    try:
        result = work()
    except Exception as error:
        channel.share(_BAD + _text(error).encode(), what)
        raise
    channel.share(_GOOD + result, what)
    return result


@contextmanager
def on_all(channel: Channel, what: str, kind: type[RunError] = RunError) -> Iterator[None]:
    """Do it on every rank, and go on when all have done it.

    Raises:
        kind: saying what others raised, where this rank has no error of its own.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    texts = channel.collect(_text(failure).encode() if failure else b"", what)
    if failure is not None:
        raise failure
    told = {r: f"rank {r}: {text.decode()}" for r, text in zip(channel.ranks, texts, strict=True) if text}
    if told:
        raise _of(min(told), kind("; ".join(told.values())))


_GOOD, _BAD = b"+", b"-"


def _of(rank: int, error: RunError) -> RunError:
    """The error, which arose on another rank."""
    error.origin = rank
    return error


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
