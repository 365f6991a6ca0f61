"""Running a plan: from its bytes and the options of a run to a finished output directory."""

import argparse
import sys
from pathlib import Path

from ..compiler.plan import Plan, PlanError, decode
from .commits import CommitStore, restore_logs
from .errors import RunError
from .execution.loop import Run
from .execution.session import Session, Settings, epochs_of, load_roles
from .execution.state import check_resumable, restore_state
from .telemetry import Telemetry
from .threads import default_threads, set_threads


def run_plan(data: bytes, args: argparse.Namespace) -> None:
    """Run a compiled plan with the options of the command line. Raises RunError."""
    plan = _decode(data)
    session = Session(plan, _settings(plan, args))
    out: Path = args.out or Path("runs") / plan.flow
    set_threads(args.threads or 1)
    load_roles(session)
    if args.threads is None:
        set_threads(default_threads(max((_size(r) for r in session.roles.values()), default=0)))
    session.states = dict(plan.states)
    session.steps = _steps(session, args.steps)
    _set_horizons(session)
    _execute(session, out, data, args)


def _decode(data: bytes) -> Plan:
    try:
        return decode(data)
    except PlanError as error:
        raise RunError(str(error)) from None


def _size(role: object) -> int:
    return sum(p.numel() for p in role.parameters())  # type: ignore[attr-defined]


def _settings(plan: Plan, args: argparse.Namespace) -> Settings:
    folder = args.base or Path(plan.folder)
    if not folder.is_dir():
        folder = Path(args.flow).parent
    return Settings(
        seed=args.seed,
        dtype=args.dtype,
        device=args.device,
        micro=args.micro,
        compile=args.compile,
        allow=tuple(args.allow),
        folders=(folder, Path.cwd()),
    )


def _steps(session: Session, wanted: int | None) -> int:
    lasts = epochs_of(session)
    if wanted is None and lasts is None:
        raise RunError("nothing says when this run ends: give --steps, or `epochs=` to a `read`")
    limited = any(i.attrs.get("epochs") for i in session.plan.walk() if i.op == "read")
    if wanted is None:
        return lasts or 0
    return min(wanted, lasts) if limited and lasts else wanted


def _set_horizons(session: Session) -> None:
    """How many optimizer steps each update will take, for schedules that end with the run."""
    for i in session.plan.walk():
        if i.op == "update":
            rows = next((r.attrs["batch"] for r in session.plan.walk() if r.op == "read" and "batch" in r.attrs), 1)
            cuts = i.attrs.get("minibatches") or max(1, rows // (i.attrs.get("minibatch") or rows))
            session.trainers[i.attrs["model"]].horizon = session.steps * i.attrs["epochs"] * cuts


def _execute(session: Session, out: Path, data: bytes, args: argparse.Namespace) -> None:
    store = CommitStore(out)
    store.clean()
    first, queues = 0, {}
    if args.resume:
        commit = store.latest()
        if commit is None:
            raise RunError(f"there is no commit in {out} to resume from; leave out --resume to start anew")
        check_resumable(commit, session)
        first, queues = restore_state(commit, session)
        restore_logs(commit)
    else:
        store.clear()
    out.mkdir(parents=True, exist_ok=True)
    (out / "plan.json").write_bytes(data)
    with Telemetry.open(
        out,
        flow=session.plan.flow,
        steps=session.steps,
        resume=args.resume,
        tensorboard=not args.no_tensorboard,
        console=sys.stdout,
    ) as telemetry:
        Run(session, out, telemetry, store, args.save_every, first, queues).execute()
