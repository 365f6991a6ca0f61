"""`flowrun`: compile a flow (or take a compiled plan) and run it in this process."""

import argparse
import difflib
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

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
    return p


def main(argv: list[str] | None = None) -> int:
    """Entry point. Returns the exit status: 0 done, 1 the run failed, 2 the flow or the options were refused.

    130: it was stopped by Ctrl-C or SIGTERM.
    """
    args = parser().parse_args(argv)
    if args.resume and args.overwrite:
        print("flowrun: --resume goes on with a run and --overwrite replaces it: give one of them", file=sys.stderr)
        return 2
    if args.set and args.flow.endswith(".json"):
        print("flowrun: a plan's parameters are fixed: compile the flow again with --set", file=sys.stderr)
        return 2
    for name, value in (
        ("--steps", args.steps),
        ("--save-every", args.save_every),
        ("--micro", args.micro),
        ("--threads", args.threads),
    ):
        if value is not None and value < 1:
            print(f"flowrun: {name} is at least 1, not {value}", file=sys.stderr)
            return 2
    missing = _missing(args.flow)
    if missing:
        print(missing, file=sys.stderr)
        return 2
    try:
        return _run(args)
    except KeyboardInterrupt:
        print("stopped; `--resume` goes on from the last commit", file=sys.stderr)
        return 130


def _missing(target: str) -> str | None:
    """What to say of a file that isn't there; `std/…` names the library's flows."""
    file = Path(target if Path(target).exists() else target.rpartition(":")[0] or target)
    if file.exists() or file.parts[:1] == ("std",):
        return None
    beside = [p.name for p in file.parent.glob("*") if p.suffix in (".flow", ".py", ".json")]
    close = difflib.get_close_matches(file.name, beside, n=1)
    return f"flowrun: no file `{file}`" + (f"; did you mean `{file.parent / close[0]}`?" if close else "")


def _run(args: argparse.Namespace) -> int:
    compiling = None if args.flow.endswith(".json") else _start_compiler(args)
    try:
        from .errors import RunError, RunWarning
        from .execution.stopping import Stopped
        from .run import run_plan  # torch, while the compiler is at work
    finally:
        plan = _finish_compiler(compiling) if compiling else _read_plan(Path(args.flow))
    if plan is None:
        return 2
    warnings.showwarning = lambda message, category, *rest, **kw: (
        print(f"warning: {message}", file=sys.stderr) if issubclass(category, RunWarning) else None
    )
    try:
        run_plan(plan, args)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, a folder that may not be written
        where = f" ({error.filename})" if error.filename else ""
        print(f"error: {error.strerror or error}{where}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        print(f"stopped after {stopped.step} steps; `--resume` goes on from there", file=sys.stderr)
        return 130
    return 0


def _read_plan(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError as error:
        print(f"flowrun: can't read `{path}`: {error.strerror}", file=sys.stderr)
        return None


def _start_compiler(args: argparse.Namespace) -> "subprocess.Popen[bytes]":
    """Compile in a process of its own, while this one imports torch. The runtime stands on plans alone."""
    out = tempfile.NamedTemporaryFile(prefix="flowrun-", suffix=".json", delete=False)  # noqa: SIM115
    command = [
        sys.executable,
        "-m",
        f"{(__package__ or '').split('.')[0]}.compiler",
        "compile",
        args.flow,
        "--require-sources",
        "-o",
        out.name,
    ]
    for setting in args.set:
        command += ["--set", setting]
    process = subprocess.Popen(command)
    process.plan_path = Path(out.name)  # type: ignore[attr-defined]
    return process


def _finish_compiler(process: "subprocess.Popen[bytes]") -> bytes | None:
    path: Path = process.plan_path  # type: ignore[attr-defined]
    try:
        return path.read_bytes() if process.wait() == 0 else None
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
