"""Ranks of a stand-in run: the real entry point, but the plan is Python that each rank executes with its `world`."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM = """
import sys, types
import shardflow.runtime
run = types.ModuleType("shardflow.runtime.run")
run.run_plan = lambda data, args, world: exec(data.decode(), {"world": world, "args": args})
sys.modules["shardflow.runtime.run"] = run
from shardflow.runtime.__main__ import main
sys.exit(main())
"""
_LIMIT = 120.0  # seconds for a whole set, its imports included, on a machine with other work on it


@dataclass
class Ended:
    """What a process left: its exit status and what it wrote."""

    status: int
    out: str
    err: str


def write(folder: Path, plan: str) -> list[str]:
    """The command of a rank that runs a plan."""
    (folder / "member.py").write_text(PROGRAM)
    (folder / "plan.json").write_text(plan)
    return [sys.executable, "-u", str(folder / "member.py"), str(folder / "plan.json")]


def start(command: Sequence[str], rank: int, size: int, port: int, local: int | None = None) -> "subprocess.Popen[str]":
    """One rank, without a launcher: rank 0 holds the store. local: its number on its node, all being on one."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")},
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank if local is None else local),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def finish(processes: "Sequence[subprocess.Popen[str]]", limit: float = _LIMIT) -> list[Ended]:
    """Wait for the end of all; none is left behind."""
    deadline, ended = time.monotonic() + limit, []
    try:
        for process in processes:
            out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            ended.append(Ended(process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return ended


def run(folder: Path, plan: str, size: int = 3, options: Sequence[str] = ()) -> list[Ended]:
    """Run a plan on so many ranks; how they ended, by rank."""
    command, port = [*write(folder, plan), *options], free_port()
    return finish([start(command, rank, size, port) for rank in range(size)])


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
