"""The start: every rank finds the common store and says that it is there; then all compare what they run."""

import json
import os
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ..errors import RunError
from .address import wait_for
from .channel import Channel, ranks_text

_PACKAGES = ("torch", "transformers", "shardflow")


@dataclass(frozen=True)
class Presence:
    """What a rank says of itself when it joins: the machine it is on and its process there.

    Processes are numbered apart in each container, so a node is a machine's name with its space of processes.
    """

    node: str
    pid: int


def here(rank: int) -> str:
    """The store's key for a rank's presence."""
    return f"here/{rank}"


# ---------------------------------------------------------------- joining


def connect(rank: int, timeout: timedelta) -> Store:
    """The store that torchrun's environment names, its keys apart from those of other runs.

    Raises RunError where nobody answers at that address.
    """
    host, port = _text("MASTER_ADDR"), _number("MASTER_PORT")
    is_hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by the launcher, or else by rank 0
    is_host = rank == 0 and not is_hosted
    if not is_host:
        _wait_for_host(host, port, rank, timeout)
    try:
        store = TCPStore(host, port, is_master=is_host, wait_for_workers=False, timeout=timeout)
    except RuntimeError as error:
        raise RunError(f"rank {rank} can't open the run's store at {host}:{port}: {_first(error)}") from None
    run = os.environ.get("TORCHELASTIC_RUN_ID", "run")
    return PrefixStore(f"shardflow/{run}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _wait_for_host(host: str, port: int, rank: int, timeout: timedelta) -> None:
    try:
        wait_for(host, port, timeout.total_seconds())
    except OSError as error:
        raise RunError(
            f"rank {rank} found no run at {host}:{port} within {timeout.total_seconds():g} s "
            f"({error.strerror or error}): is that the first node's address, with the port it was started with?"
        ) from None


def call_roll(store: Store, rank: int, size: int, timeout: timedelta) -> list[Presence]:
    """Say that this rank is here and wait until all are. Returns who they are, by rank.

    Raises RunError that names the ranks that are missing at the deadline.
    """
    store.set(here(rank), json.dumps(asdict(Presence(_node(), os.getpid()))))
    missing, deadline = list(range(size)), time.monotonic() + timeout.total_seconds()
    while missing := [r for r in missing if not store.check([here(r)])]:
        if time.monotonic() > deadline:
            have = "has" if len(missing) == 1 else "have"
            raise RunError(
                f"{ranks_text(missing)} of {size} {have} not joined after {timeout.total_seconds():g} s: look there "
                "for an error, see that every node was started with the same number of ranks, or give --join-timeout"
            )
        time.sleep(0.02)
    return [Presence(**json.loads(store.get(here(r)))) for r in range(size)]


def _node() -> str:
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


# ---------------------------------------------------------------- comparing


def facts(plan: bytes, options: Mapping[str, object]) -> dict[str, str]:
    """What has to be the same on every rank, by what it is called in a message."""
    named = {f"option {name}": str(value) for name, value in options.items()}
    versions = {f"version of {name}": _version(name) for name in _PACKAGES}
    return {"plan": sha256(plan).hexdigest()[:16], **named, "version of Python": platform.python_version(), **versions}


def compare(channel: Channel, own: Mapping[str, str]) -> None:
    """Raise RunError, on every rank alike, if one runs something else than rank 0 does."""
    collected = channel.collect(json.dumps(dict(own)).encode(), "comparing what the ranks run")
    all_facts: list[dict[str, str]] = [json.loads(data) for data in collected]
    differing = {rank: found for rank, found in enumerate(all_facts) if found != all_facts[0]}
    if differing:
        rank, found = next(iter(differing.items()))
        raise RunError(
            f"{ranks_text(list(differing))} {'runs' if len(differing) == 1 else 'run'} something else than rank 0: "
            f"{_differences(all_facts[0], found, rank)}; all ranks need the same plan, options and versions"
        )


def _differences(first: Mapping[str, str], other: Mapping[str, str], rank: int) -> str:
    names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
    return ", ".join(
        f"the {name} is {first.get(name, 'none')} on rank 0 and {other.get(name, 'none')} on rank {rank}"
        for name in names
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


# ---------------------------------------------------------------- the environment


def environment(names: Sequence[str]) -> list[int]:
    """Whole numbers that torchrun sets. Raises RunError that says how ranks are started."""
    return [_number(name) for name in names]


def _number(name: str) -> int:
    text = _text(name)
    if not text.isdigit():
        raise RunError(f"{name} in the environment is `{text}`; it has to be a whole number")
    return int(text)


def _text(name: str) -> str:
    text = os.environ.get(name, "")
    if not text:
        raise RunError(
            f"{name} isn't set, so this process isn't one of several ranks: start them by `flowrun FLOW --target multi "
            "--nproc N` or by `torchrun --nproc-per-node N -m shardflow.runtime FLOW`"
        )
    return text


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
