"""Running a plan: from its bytes and the options of a run to a finished output directory, as one of its ranks."""

import argparse
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ..compiler.plan import Plan, PlanError, decode
from .commits import Commit, CommitStore, restore_logs
from .devices import lacking
from .errors import RunError, RunWarning
from .execution.ahead import Queues
from .execution.loop import Run
from .execution.roles import load_roles
from .execution.session import Session, Settings, epochs_of, source_name
from .execution.state import check_resumable, restore_state
from .execution.stopping import stop_requests
from .models.loading import Role
from .ranks.fitting import misfit
from .ranks.world import ALONE, World
from .telemetry import Telemetry
from .telemetry.profile import Profile
from .telemetry.telemetry import METRICS
from .threads import default_threads, set_threads


def run_plan(data: bytes, args: argparse.Namespace, world: World = ALONE) -> None:
    """Run a compiled plan with the options of the command line, as one rank of a world.

    Raises RunError, or Stopped if it was asked to end early (Ctrl-C, SIGTERM) and has committed.
    """
    plan = _decode(data)
    _check_demands(plan)
    _check_ranks(plan, world)
    out: Path = args.out or Path("runs") / plan.flow
    world.open({g.name: plan.ranks_of(g.name) for g in plan.groups})
    store = CommitStore(out, channel=world.channel("world"))
    commit = _starting_point(store, args, world)
    _check_device(args.device, world)
    if args.device == "cuda" and world.size > 1:
        torch.cuda.set_device(world.local_rank)
    session = Session(plan, _settings(plan, args, world), world, profile=Profile() if args.profile else None)
    with _default_dtype(session.settings.number), _memory_errors():
        if commit is not None:
            check_resumable(commit, session)
        _load(session, args)
        _execute(session, store, data, commit, args)


def _check_ranks(plan: Plan, world: World) -> None:
    """Raise RunError for a plan that so many ranks can't run."""
    nodes = len({p.node for p in world.peers}) or 1
    if said := misfit(plan.target, plan.ranks, world.size, nodes):
        raise RunError(said)


def _check_demands(plan: Plan) -> None:
    """Raise RunError for a plan whose placement asks for more than this version carries out."""
    if plan.demands:
        raise RunError(
            f"this plan's placement asks for what this version plans but doesn't carry out: {', '.join(plan.demands)}. "
            "Compile it with `--runnable`, which searches among what it carries out"
        )


def _check_device(name: str, world: World) -> None:
    """Raise RunError for a device that this machine lacks: each of many ranks takes the GPU of its number."""
    if said := lacking(name, world.local_rank + 1):
        raise RunError(said)


def _decode(data: bytes) -> Plan:
    try:
        return decode(data)
    except PlanError as error:
        raise RunError(str(error)) from None


# ---------------------------------------------------------------- where it starts


def _starting_point(store: CommitStore, args: argparse.Namespace, world: World) -> Commit | None:
    """The commit to go on from; None for a run that starts anew. Raises RunError where neither can be meant."""
    if args.overwrite:
        return None
    out, commit = store.out, store.latest()
    if commit is not None and not args.resume:
        raise RunError(
            f"{out} holds a run of {_counted(commit.step)}: go on with it by --resume, replace it by --overwrite, or "
            "choose another --out"
        )
    if args.resume and commit is None:
        if not (out / METRICS).exists():
            raise RunError(f"there is no run in {out} to resume: leave out --resume, or give the --out of the run")
        if world.rank == 0:
            warnings.warn(f"the run in {out} ended before its first commit, and starts anew", RunWarning, stacklevel=2)
    return commit


def _counted(steps: int) -> str:
    return f"{steps} step" if steps == 1 else f"{steps} steps"


# ---------------------------------------------------------------- the session


def _settings(plan: Plan, args: argparse.Namespace, world: World) -> Settings:
    return Settings(
        seed=args.seed,
        dtype=args.dtype,
        device=f"cuda:{world.local_rank}" if args.device == "cuda" and world.size > 1 else args.device,
        micro=args.micro,
        compile=args.compile,
        allow=tuple(args.allow),
        folders=(args.base or _folder(plan, args.flow), Path.cwd()),
    )


def _folder(plan: Plan, given: str) -> Path:
    """The flow's folder: as the plan names it, from here or from where the plan lies, or beside the plan."""
    beside = Path(given).parent
    places = [p for p in (Path(plan.folder), beside / plan.folder, beside) if p.is_dir()]
    return next((p for p in places if _holds_sources(p, plan)), next(iter(places), beside))


def _holds_sources(folder: Path, plan: Plan) -> bool:
    files = [o.file for o in plan.operators if not o.file.startswith("std/")]
    return all((folder / file).is_file() for file in files)


def _load(session: Session, args: argparse.Namespace) -> None:
    """Models, initial states, the number of steps, and threads as the models' size asks for."""
    torch.set_num_threads(args.threads or 1)  # not in the environment, which would decide below
    load_roles(session)
    set_threads(args.threads or default_threads(max((_size(r) for r in session.roles.values()), default=0)))
    session.states = dict(session.plan.states)
    session.steps = _steps(session, args.steps)
    _set_horizons(session)


def _size(role: Role) -> int:
    return sum(p.numel() for p in role.parameters())


def _steps(session: Session, wanted: int | None) -> int:
    lasts = epochs_of(session)
    if wanted is None and lasts is None:
        raise RunError("nothing says when this run ends: give --steps, or `epochs=` to a `read`")
    limited = any(i.attrs.get("epochs") for i in session.whole.walk() if i.op == "read")
    if wanted is None:
        return lasts or 0
    return min(wanted, lasts) if limited and lasts else wanted


def _set_horizons(session: Session) -> None:
    """How many optimizer steps each update will take, for schedules that end with the run."""
    for i in session.plan.walk():
        if i.op == "update":
            rows = _rows_of(session.whole, i.attrs["loss"]["roots"])
            cuts = i.attrs.get("minibatches") or -(-rows // (i.attrs.get("minibatch") or rows))
            session.trainers[i.attrs["model"]].horizon = session.steps * i.attrs["epochs"] * cuts


def _rows_of(plan: Plan, roots: list[str]) -> int:
    """How many rows a step has of the axis that an update cuts: of a `collect` its target, else of the read."""
    for i in plan.walk():
        reads = [r for r in i.body if r.op == "read"] if i.op == "collect" else [i] if i.op == "read" else []
        if any(f"{source_name(r)}.prompt" in roots for r in reads):
            return int(i.attrs.get("target") or i.attrs.get("batch") or 1)
    return 1


# ---------------------------------------------------------------- execution


def _execute(
    session: Session, store: CommitStore, data: bytes, commit: Commit | None, args: argparse.Namespace
) -> None:
    out = store.out
    if commit is not None and commit.step > session.steps:
        raise RunError(
            f"the run in {out} has made {_counted(commit.step)} already: --steps {session.steps} ends before"
        )
    store.clean()
    first, queues = _resumed(session, store, commit) if commit else (0, {})
    if commit is None:
        store.clear()
    world = session.world
    with (
        _at_once(store),
        _telemetry(session, out, data, commit, args) as telemetry,
        stop_requests(world.rank, world.size, lambda: world.is_ending) as stopping,
    ):
        Run(session, out, telemetry, store, args.save_every, first, queues, stopping).execute()
        if session.profile is not None:
            session.profile.write(world, session.plan.flow, out)


@contextmanager
def _at_once(store: CommitStore) -> Iterator[None]:
    """Say of a run that ends in the midst of a step what there is to go on from."""
    try:
        yield
    except KeyboardInterrupt:
        commit = store.newest_here()
        told = f"`--resume` goes on from the commit of step {commit.step}" if commit else "there is no commit yet"
        raise KeyboardInterrupt(f"stopped; {told}") from None


def _expected(plan: Plan) -> list[str]:
    """What the plan's updates log, of which the first step may make none."""
    updates = [i for i in plan.walk() if i.op == "update"]
    metrics = [x.attrs["metric"] for i in updates for x in i.walk() if x.op == "metric"]
    return [*(f"loss.{i.attrs['model']}" for i in updates), *metrics]


@contextmanager
def _telemetry(
    session: Session, out: Path, data: bytes, commit: Commit | None, args: argparse.Namespace
) -> Iterator[Telemetry | None]:
    """The records of the run, which the first rank keeps."""
    if session.world.rank:
        yield None
        return
    out.mkdir(parents=True, exist_ok=True)
    (out / "plan.json").write_bytes(data)
    if commit is not None:
        restore_logs(commit)
    telemetry = Telemetry.open(
        out,
        flow=session.plan.flow,
        steps=session.steps,
        resume=commit is not None,
        tensorboard=not args.no_tensorboard,
        console=sys.stdout,
        expected=_expected(session.whole),
    )
    with telemetry:
        yield telemetry


def _resumed(session: Session, store: CommitStore, commit: Commit) -> tuple[int, Queues]:
    if session.world.rank == 0 and (told := _differing(session, commit)):
        warnings.warn(told, RunWarning, stacklevel=2)
    return restore_state(store, commit, session)


def _differing(session: Session, commit: Commit) -> str:
    """What else a commit was made with, of that on which only the last bits of numbers depend; nothing if the same."""
    now = {"ranks": session.world.size, "threads": torch.get_num_threads(), "torch": torch.__version__}
    names = [name for name, value in now.items() if commit.meta[name] != value]
    if not names:
        return ""
    then = ", ".join(_measured(name, commit.meta[name]) for name in names)
    return (
        f"{commit.path} was made with {then}, this run has {', '.join(_measured(name, now[name]) for name in names)}: "
        "the last bits of its numbers may differ from an uninterrupted run's"
    )


def _measured(name: str, value: object) -> str:
    """`2 ranks`, `1 thread`, `torch 2.13`."""
    return f"torch {value}" if name == "torch" else f"{value} {name.removesuffix('s') if value == 1 else name}"


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """What torch makes of integers and Python numbers: a mean of integers must not be less exact than the run."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _memory_errors() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"the device ran out of memory: lower --micro, or add `checkpointing=true` to the update's `place` line "
            f"({str(error).splitlines()[0]})"
        ) from error
