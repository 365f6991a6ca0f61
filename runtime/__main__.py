"""One rank of a run on many: `torchrun --nproc-per-node 4 -m shardflow.runtime FLOW`, or what flowrun starts."""

import argparse
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from .cli import parser, refused, show_warnings, told
from .compiling import Compiling

if TYPE_CHECKING:
    from .ranks import World

STOPPED = 130
# Options that have to be the same on all ranks; folders and threads may differ between machines.
_COMMON = (
    "set",
    "steps",
    "seed",
    "out",
    "resume",
    "overwrite",
    "save_every",
    "dtype",
    "micro",
    "compile",
    "check_order",
)


def main(argv: list[str] | None = None) -> int:
    """Entry point of a rank. Returns the exit status: 0 done, 2 the options were refused, 130 stopped.

    A rank that fails ends this process with 1, as do the others then.
    """
    args = parser().parse_args(argv)
    refusal = refused(args)
    if refusal is None and "RANK" not in os.environ:
        refusal = (
            "this runs one rank of many: start them by `flowrun FLOW --target multi --nproc N` or by "
            "`torchrun --nproc-per-node N -m shardflow.runtime FLOW`; for one process there is `flowrun FLOW`"
        )
    if refusal is not None:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"flowrun: {refusal}", file=sys.stderr)
        return 2
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # what its sockets say is told by RunErrors
    return _run(args)


def _run(args: argparse.Namespace) -> int:
    from .ranks.watch import Watch

    world = _join(args)
    if world is None:
        return 1
    watch = Watch(world)
    watch.start()
    try:
        is_stopped = _run_plan(args, world)
        watch.leave()
        world.channel("world").barrier("the end of the run")
    except BaseException as error:
        watch.failed(error)
    watch.close()
    world.close()
    return STOPPED if is_stopped else 0


def _join(args: argparse.Namespace) -> "World | None":
    """The world; None if the ranks haven't found each other, and one of them has said so."""
    from .errors import RunError
    from .ranks import World
    from .ranks.rollcall import connect, environment
    from .ranks.watch import claim

    wait, join = timedelta(seconds=args.timeout), timedelta(seconds=args.join_timeout)
    store, is_speaker = None, os.environ.get("LOCAL_RANK", "0") == "0"
    try:
        (rank,) = environment(("RANK",))
        store = connect(rank, join)
        return World.join(store=store, timeout=wait, join_timeout=join, check_order=args.check_order)
    except RunError as error:
        if is_speaker if store is None else claim(store, rank):
            print(f"error: {error}", file=sys.stderr)
        return None


def _run_plan(args: argparse.Namespace, world: "World") -> bool:
    """Run what all ranks have agreed on. Returns whether the run was asked to stop, and has committed."""
    from .errors import RunError
    from .execution.stopping import Stopped
    from .ranks.rollcall import compare, facts
    from .run import run_plan

    show_warnings(world.rank == 0)
    try:
        data = _plan(args, world)
        options = {f"--{name.replace('_', '-')}": getattr(args, name) for name in _COMMON}
        compare(world.channel("world"), facts(data, options | {"number of ranks": world.size}))
        run_plan(data, args, world)
    except Stopped as stopped:
        for number in (signal.SIGINT, signal.SIGTERM):  # a launcher ends the others when the first has ended
            signal.signal(number, signal.SIG_IGN)
        if world.rank == 0:
            print(f"stopped after {stopped.step} steps; `--resume` goes on from there", file=sys.stderr)
        return True
    except OSError as error:
        raise RunError(told(error)) from error
    return False


def _plan(args: argparse.Namespace, world: "World") -> bytes:
    """The plan: from its file, or compiled by rank 0 for all."""
    from .errors import RunError

    if args.compiled is not None or args.flow.endswith(".json"):
        return Path(args.compiled or args.flow).read_bytes()
    data = b""
    if world.rank == 0:
        made = Compiling(args.flow, args.set, world.size).plan()
        if made is None:
            raise RunError(f"{args.flow} can't be compiled; the compiler has said why")
        data = made
    return world.channel("world").share(data, "the plan, which rank 0 compiles")


if __name__ == "__main__":
    sys.exit(main())
