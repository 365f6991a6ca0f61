"""Starting the ranks of a node: the flow is compiled once, then torch's elastic agent starts and minds them."""

import argparse
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..compiling import Compiling
from .address import parsed, unknown, wait_for
from .fitting import misfit

FAILED, REFUSED, STOPPED = 1, 2, 130


@dataclass(frozen=True)
class Nodes:
    """Where the ranks of a run are started.

    Attributes:
        here: how many on this node.
        nodes: how many nodes there are, each with as many ranks.
        endpoint: HOST:PORT where nodes meet; empty if there is one.
        name: of the run, the same on all nodes.
        node: this node's number; None lets the nodes agree on it.
        join_timeout: seconds to wait for the other nodes.
        stop_timeout: seconds that ranks have to end their step when they are asked to stop.
    """

    here: int
    nodes: int = 1
    endpoint: str = ""
    name: str = "flowrun"
    node: int | None = None
    join_timeout: float = 120
    stop_timeout: float = 600


def launch(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Compile the flow and run it on many ranks, with the options that flowrun was given. Returns the exit status."""
    nodes = Nodes(
        args.nproc,
        args.nnodes or 1,
        args.rdzv_endpoint or "",
        args.rdzv_id or "flowrun",
        args.node_rank,
        args.join_timeout,
        args.timeout,
    )
    if said := _unknown_host(nodes.endpoint):
        return _refuse(said, FAILED)
    package = (__package__ or "").split(".")[0]
    command = [sys.executable, "-u", "-m", f"{package}.runtime", *argv]
    if args.flow.endswith(".json"):
        if said := _misfit(Path(args.flow), nodes):
            return _refuse(said, REFUSED)
        return _start(command, nodes, args.device)
    _quieten()
    compiling = Compiling(args.flow, args.set, nodes.here * nodes.nodes)
    try:
        import torch.distributed.launcher.api  # noqa: F401  # while the compiler is at work
    finally:
        plan = compiling.plan()
    if plan is None:
        return REFUSED
    with tempfile.TemporaryDirectory(prefix="flowrun-") as folder:
        file = Path(folder) / "plan.json"
        file.write_bytes(plan)
        return _start([*command, "--compiled", str(file)], nodes, args.device)


def _start(command: Sequence[str], nodes: Nodes, device: str) -> int:
    """Start the ranks if this node has the GPUs that they will take; only asking for GPUs needs torch."""
    if device.startswith("cuda"):
        _quieten()
        from ..devices import lacking

        if said := lacking(device, nodes.here):
            return _refuse(said, FAILED)
    return start_ranks(command, nodes)


def _refuse(said: str, status: int) -> int:
    print(f"flowrun: {said}", file=sys.stderr)
    return status


def _unknown_host(endpoint: str) -> str | None:
    """What to say of a host that this machine can't look up: nodes would wait for it in vain."""
    host = (parsed(endpoint) or ("", 0))[0]
    if not host or not (why := unknown(host)):
        return None
    return f"--rdzv-endpoint names a host that isn't known here, `{host}` ({why}): give the first node's address"


def _misfit(file: Path, nodes: Nodes) -> str | None:
    """What is wrong with running a plan on these ranks. Whether it is a plan at all, the ranks find out."""
    try:
        plan = json.loads(file.read_bytes())
        return misfit(plan["target"], plan["ranks"], nodes.here * nodes.nodes, nodes.nodes)
    except OSError as error:
        return f"can't read `{file}`: {error.strerror}"
    except (ValueError, TypeError, KeyError):
        return None


def start_ranks(command: Sequence[str], nodes: Nodes) -> int:
    """Run a command as the ranks of this node, until all have ended. Returns 0, 1 if one failed, 130 if stopped."""
    _quieten()
    if said := _unanswered(nodes):
        return _refuse(said, FAILED)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import launch_agent

    _set_environment(nodes)
    have_met = threading.Event()
    try:
        with tempfile.TemporaryDirectory(prefix="flowrun-") as folder:
            launch_agent(_config(nodes, folder, have_met), command[0], list(command[1:]))
    except ChildFailedError as error:
        return _failed({rank: failure.exitcode for rank, failure in error.failures.items()})
    except SignalException as stop:
        print(f"flowrun: stopped by {signal.Signals(stop.sigval).name}", file=sys.stderr)
        return STOPPED
    except (RendezvousError, RuntimeError, TimeoutError) as error:
        told = "the run has failed: another node has ended" if have_met.is_set() else _not_met(nodes, error)
        print(f"flowrun: {told}", file=sys.stderr)
        return FAILED
    return 0


def _failed(exits: dict[int, int]) -> int:
    """Say how the first ranks that the agent saw end have ended."""
    if STOPPED in exits.values():
        return STOPPED
    killed = [(rank, -code) for rank, code in exits.items() if code < 0 and -code != signal.SIGTERM]
    detail = f": rank {killed[0][0]} was ended by {signal.Signals(killed[0][1]).name}" if killed else ""
    print(f"flowrun: the run has failed{detail}", file=sys.stderr)
    return FAILED


def _unanswered(nodes: Nodes) -> str | None:
    """What to say where the first node is the one to be there before this one, and never comes."""
    where = parsed(nodes.endpoint)
    if not nodes.node or where is None:
        return None
    try:
        wait_for(*where, nodes.join_timeout)
    except OSError as error:
        return _not_met(nodes, error)
    return None


def _not_met(nodes: Nodes, error: Exception) -> str:
    cause = error.__cause__ or error
    first = (str(cause).strip().splitlines() or [type(cause).__name__])[0].rstrip(".")
    return (
        f"the {nodes.nodes} nodes haven't met at {nodes.endpoint or 'this node'} within {nodes.join_timeout:g} s "
        f"(--join-timeout): is that the first node's address, and has every node been started? ({first})"
    )


def _quieten() -> None:
    """In this process: the agent's account of what the ranks have told already, and sockets that tell of each try.

    Call it before torch is imported.
    """
    logging.disable(logging.CRITICAL)
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"


def _set_environment(nodes: Nodes) -> None:
    """What the ranks inherit. OMP_NUM_THREADS is left to the user, or else to the rank's own choice."""
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if nodes.nodes == 1 and loopback:  # a machine's own name may lead nowhere
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def _config(nodes: Nodes, folder: str, have_met: threading.Event) -> Any:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    class Logs(DefaultLogsSpecs):
        def reify(self, envs: dict[int, dict[str, str]]) -> Any:
            """Asked for when the agent has met the others, and starts its ranks."""
            have_met.set()
            return super().reify(envs)

    seconds = max(1, round(nodes.join_timeout))
    limits: dict[str, Any] = {"timeout": seconds, "join_timeout": seconds, "read_timeout": max(1, seconds // 2)}
    return LaunchConfig(
        min_nodes=nodes.nodes,
        max_nodes=nodes.nodes,
        nproc_per_node=nodes.here,
        logs_specs=Logs(log_dir=folder),
        run_id=nodes.name,
        rdzv_endpoint=nodes.endpoint or "127.0.0.1:0",
        rdzv_backend="c10d" if nodes.node is None else "static",
        rdzv_configs=limits if nodes.node is None else {"timeout": seconds, "rank": nodes.node},
        local_addr="127.0.0.1" if nodes.nodes == 1 else None,
        max_restarts=0,
        shutdown_timeout=round(nodes.stop_timeout),
    )
