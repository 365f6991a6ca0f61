"""`flowrun`: compile a flow (or take a compiled plan) and run it, in this process or on many ranks."""

import argparse
import difflib
import sys
import warnings
from pathlib import Path

from .compiling import Compiling
from .ranks.address import parsed

DESCRIPTION = """Run a flow: a .flow file, FILE:FLOW, algo.py:FLOW, or a compiled plan (.json)."""


def parser() -> argparse.ArgumentParser:
    """The command line of flowrun."""
    p = argparse.ArgumentParser(prog="flowrun", description=DESCRIPTION)
    p.add_argument("flow", help="a .flow file, FILE:FLOW, algo.py:FLOW, or a plan that `flowc compile` wrote")
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the flow, e.g. group=16 or batch=128prompts",
    )
    p.add_argument("--steps", type=int, help="steps to run; default: until the data's epochs end")
    p.add_argument("--seed", type=int, default=0, help="seed of all noise and shuffling (default 0)")
    p.add_argument("--out", type=Path, help="output directory (default runs/FLOW)")
    p.add_argument("--resume", action="store_true", help="go on from the last commit in --out")
    p.add_argument("--overwrite", action="store_true", help="replace the run that --out holds")
    p.add_argument("--save-every", type=int, default=50, metavar="STEPS", help="steps between commits (default 50)")
    p.add_argument(
        "--dtype",
        choices=("float64", "float32", "bfloat16"),
        default="float32",
        help="dtype of the models (default float32)",
    )
    p.add_argument("--device", default="cpu", help="torch device (default cpu)")
    p.add_argument("--threads", type=int, help="CPU threads (default 1 for small models)")
    p.add_argument("--micro", type=int, metavar="TOKENS", help="token budget of a micro-batch, over what the plan says")
    p.add_argument("--compile", action="store_true", help="compile the decoder layers of trained models")
    p.add_argument(
        "--allow",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="a further folder to import Python operators from",
    )
    p.add_argument("--base", type=Path, help="the flow's folder, if a plan is run from elsewhere")
    p.add_argument("--no-tensorboard", action="store_true", help="write no TensorBoard events")
    p.add_argument(
        "--profile", action="store_true", help="time the phases; --out/profile.json is for `flowc calibrate`"
    )
    _rank_options(p.add_argument_group("many ranks"))
    return p


def _rank_options(p: "argparse._ArgumentGroup") -> None:
    p.add_argument(
        "--target",
        choices=("single", "multi"),
        default="single",
        help="single: this process runs all (default); multi: one program that many processes run together",
    )
    p.add_argument("--nproc", type=int, metavar="N", help="processes (ranks) on this node")
    p.add_argument("--nnodes", type=int, metavar="M", help="nodes; start the same command on each (default 1)")
    p.add_argument(
        "--rdzv-endpoint", metavar="HOST:PORT", help="where nodes meet: the first one's address, a free port"
    )
    p.add_argument("--rdzv-id", metavar="ID", help="the same name on all nodes of a run (default flowrun)")
    p.add_argument("--node-rank", type=int, metavar="K", help="this node's number, from 0; left out, nodes agree on it")
    p.add_argument(
        "--join-timeout",
        type=float,
        default=120,
        metavar="S",
        help="seconds to wait for all ranks at the start (default 120)",
    )
    p.add_argument(
        "--timeout",
        type=float,
        default=600,
        metavar="S",
        help="seconds a rank waits for others in a step (default 600)",
    )
    p.add_argument("--check-order", action="store_true", help="compare the ranks' order of instructions as they run")
    p.add_argument("--compiled", type=Path, help=argparse.SUPPRESS)  # the launcher's plan of the flow


def main(argv: list[str] | None = None) -> int:
    """Entry point. Returns the exit status: 0 done, 1 the run failed, 2 the flow or the options were refused.

    130: it was stopped by Ctrl-C or SIGTERM.
    """
    args = parser().parse_args(argv)
    if refusal := refused(args):
        print(f"flowrun: {refusal}", file=sys.stderr)
        return 2
    try:
        if args.target == "multi":
            from .ranks.launch import launch

            return launch(args, sys.argv[1:] if argv is None else argv)
        return _run(args)
    except KeyboardInterrupt as stop:
        print(str(stop) or "stopped", file=sys.stderr)
        return 130


def refused(args: argparse.Namespace) -> str | None:
    """What is wrong with the options, in one sentence."""
    if args.resume and args.overwrite:
        return "--resume goes on with a run and --overwrite replaces it: give one of them"
    if args.set and args.flow.endswith(".json"):
        return "a plan's parameters are fixed: compile the flow again with --set"
    if args.profile and args.dtype == "float64":
        return "--profile is for --dtype float32 or bfloat16: the cost model knows no float64"
    for name in ("steps", "save_every", "micro", "threads", "nproc", "nnodes"):
        value = getattr(args, name)
        if value is not None and value < 1:
            return f"--{name.replace('_', '-')} is at least 1, not {value}"
    return _refused_ranks(args) or _missing(args.flow)


def _refused_ranks(args: argparse.Namespace) -> str | None:
    several = ("nproc", "nnodes", "rdzv_endpoint", "rdzv_id", "node_rank")
    given = [f"--{name.replace('_', '-')}" for name in several if getattr(args, name) is not None]
    nodes = args.nnodes or 1
    if args.target == "single" and given:
        return f"{given[0]} is for runs of many ranks: give --target multi too"
    if args.target == "multi" and args.nproc is None:
        return "--target multi needs --nproc, the number of ranks on this node"
    if nodes > 1 and args.rdzv_endpoint is None:
        return "--nnodes needs --rdzv-endpoint HOST:PORT: the first node's address and a port that is free there"
    if args.rdzv_endpoint is not None and parsed(args.rdzv_endpoint) is None:
        where = f"--rdzv-endpoint `{args.rdzv_endpoint}` is no host with a port from 1 to 65535"
        return f"{where}: write HOST:PORT, such as node0:29500"
    if args.node_rank is not None and not 0 <= args.node_rank < nodes:
        return f"--node-rank is from 0 to {nodes - 1} on {nodes} nodes, not {args.node_rank}"
    for name in ("timeout", "join_timeout"):
        if getattr(args, name) <= 0:
            return f"--{name.replace('_', '-')} is more than 0 seconds, not {getattr(args, name):g}"
    return None


def _missing(target: str) -> str | None:
    """What to say of a file that isn't there; `std/…` names the library's flows."""
    file = Path(target if Path(target).exists() else target.rpartition(":")[0] or target)
    if file.exists() or file.parts[:1] == ("std",):
        return None
    beside = [p.name for p in file.parent.glob("*") if p.suffix in (".flow", ".py", ".json")]
    close = difflib.get_close_matches(file.name, beside, n=1)
    return f"no file `{file}`" + (f"; did you mean `{file.parent / close[0]}`?" if close else "")


def _run(args: argparse.Namespace) -> int:
    compiling = None if args.flow.endswith(".json") else Compiling(args.flow, args.set)
    try:
        from .errors import RunError
        from .execution.stopping import Stopped
        from .run import run_plan  # torch, while the compiler is at work
    finally:
        plan = compiling.plan() if compiling else _read_plan(Path(args.flow))
    if plan is None:
        return 2
    show_warnings()
    try:
        run_plan(plan, args)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"error: {told(error)}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        print(f"stopped after {stopped.step} steps; `--resume` goes on from there", file=sys.stderr)
        return 130
    return 0


def show_warnings(speaks: bool = True) -> None:
    """Print what a run warns of, a line each, and nothing of what libraries do. speaks: whether this process does."""
    from .errors import RunWarning

    warnings.showwarning = lambda message, category, *rest, **kw: (
        print(f"warning: {message}", file=sys.stderr) if speaks and issubclass(category, RunWarning) else None
    )


def told(error: OSError) -> str:
    """What the system refused, and of which file."""
    return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")


def _read_plan(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError as error:
        print(f"flowrun: can't read `{path}`: {error.strerror}", file=sys.stderr)
        return None


if __name__ == "__main__":
    sys.exit(main())
