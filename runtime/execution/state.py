"""The state of a run: everything a later step depends on, as a commit holds it."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor

from ...compiler.plan import Instruction
from ..commits import Commit, CommitError, CommitStore
from ..errors import RunWarning
from .ahead import Queues, pack_queues, unpack_queues
from .queue import Packer, Unpacker
from .session import Session
from .waiting import collected_queues, distributed_queues


def pack_state(session: Session, step: int, queues: Queues) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and JSON of the state after `step` finished steps: the tensors, or shards of them, that this rank holds.

    What waits in queues is brought together on the first rank, so that a commit says nothing of where rows were.
    """
    packer, whole = Packer("queue"), collected_queues(session, queues)
    waiting = pack_queues(whole, packer) if session.world.rank == 0 else {}
    meta = {
        "plan": session.whole.meaning,
        "params": session.plan.params,
        "sources": {o.key: o.sha256 for o in session.plan.operators} | source_digests(session),
        "seed": session.settings.seed,
        "dtype": session.settings.dtype,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "ranks": session.world.size,
        "step": step,
        "steps": session.steps,
        "states": session.states,
        "cursors": session.cursors,
        "optimizer_steps": _optimizer_steps(session),
        "queues": waiting,
        "frames": packer.frames,
    }
    return {**_held(session), **packer.tensors}, meta


def _held(session: Session) -> dict[str, Tensor]:
    """The weights and optimizer states that this rank holds."""
    tensors: dict[str, Tensor] = {}
    for name in _changing(session):
        tensors |= {f"model.{name}.{k}": v for k, v in _weights(session, name).items()}
    for name, trainer in session.trainers.items():
        tensors |= {f"optimizer.{name}.{k}": v for k, v in trainer.tensors().items()}
    return tensors


def _changing(session: Session) -> list[str]:
    """The models whose weights a commit holds, of those that this rank has."""
    return [m.name for m in session.whole.models if (m.trained or m.replaced) and m.name in session.roles]


def _weights(session: Session, name: str) -> dict[str, Tensor]:
    """Each weight once: tied ones have one name."""
    return {k: p.detach() for k, p in session.roles[name].module.named_parameters()}


def _optimizer_steps(session: Session) -> dict[str, int]:
    """The optimizer steps of every model, whichever ranks train it."""
    own = msgspec.msgpack.encode({name: trainer.count for name, trainer in session.trainers.items()})
    every = session.world.channel("world").collect(own, "the optimizer steps of a commit")
    return {name: count for counts in every for name, count in msgspec.msgpack.decode(counts).items()}


def check_resumable(commit: Commit, session: Session) -> None:
    """Raise CommitError if the commit is of another run; warn if functions, data or models have changed since."""
    meta, settings = commit.meta, session.settings
    params = meta["params"] | {}
    differing = [(f"`{n}`", params.get(n), v) for n, v in session.plan.params.items() if params.get(n) != v]
    for what, then, now in (
        *differing,
        ("plan", meta["plan"][:12], session.whole.meaning[:12]),
        ("--seed", meta["seed"], settings.seed),
        ("--dtype", meta["dtype"], settings.dtype),
    ):
        if then != now:
            raise CommitError(
                f"{commit.path} is of another run: its {what} is {then}, this one's is {now}; resume with the same "
                "flow and options, or choose another --out"
            )
    if changed := _changed(meta["sources"], session):
        text = f"{', '.join(changed)} changed since the commit of step {commit.step}"
        warnings.warn(f"{text}; the run goes on with what is there now", RunWarning, stacklevel=3)


def _changed(then: Mapping[str, str], session: Session) -> list[str]:
    """What a run reads that isn't as it was: each file of functions once, whichever of them are called."""
    code = {o.file for o in session.plan.operators if then.get(o.key) != o.sha256}
    read = {name for name, digest in source_digests(session).items() if then.get(name) != digest}
    return [*(f"the code of {file}" for file in sorted(code)), *sorted(read)]


def _warn_of_schedules(commit: Commit, session: Session) -> None:
    """Of schedules that end with the run, if its end isn't where it was: the learning rates so far were of that one.

    Commits that don't say where the end was are older than this.
    """
    then, now = commit.meta.get("steps", session.steps), session.steps
    moved = [] if then == now else sorted({f"`{i.attrs['model']}`" for i in session.whole.walk() if _ends_with_run(i)})
    if moved:
        are = "schedule of {} ends" if len(moved) == 1 else "schedules of {} end"
        text = (
            f"the learning-rate {are.format(' and '.join(moved))} with the run: after {then} steps until the commit of "
            f"step {commit.step}, after {now} from here on, so the rates aren't those of an uninterrupted run; "
            "`decay=` gives a schedule an end of its own"
        )
        warnings.warn(text, RunWarning, stacklevel=3)


def _ends_with_run(i: Instruction) -> bool:
    return i.op == "update" and i.attrs["optimizer"]["schedule"] != "constant" and not i.attrs["optimizer"]["decay"]


def source_digests(session: Session) -> dict[str, str]:
    """Digests of what a run reads again after a resume: its data, and models that no commit holds."""
    tables = {i.attrs["path"]: session.table(i).fingerprint for i in session.whole.walk() if i.op == "read"}
    paths = {m.path for m in session.whole.models if not m.trained and not m.replaced}
    return tables | {p: session.model_digest(p) for p in paths}


def restore_state(store: CommitStore, commit: Commit, session: Session) -> tuple[int, Queues]:
    """Take over the state of a commit. Returns the number of finished steps and what waits in queues."""
    _warn_of_schedules(commit, session)
    meta, names = commit.meta, commit.tensor_names()
    targets = {f"model.{n}.{k}": w for n in _changing(session) for k, w in _weights(session, n).items()}
    states = {n: t.targets(_under(names, f"optimizer.{n}.")) for n, t in session.trainers.items()}
    targets |= {f"optimizer.{n}.{k}": t for n, found in states.items() for k, t in found.items()}
    store.load(commit, targets)
    for name, trainer in session.trainers.items():
        trainer.load(states[name], meta["optimizer_steps"][name])
    session.states.update(meta["states"])
    session.cursors.update(meta["cursors"])
    for name in _changing(session):
        session.changed(name)  # other holdings have the weights of the files
    waiting = commit.load_tensors(prefix="queue.")
    queues = unpack_queues(meta["queues"], Unpacker(meta["frames"], waiting))
    return int(meta["step"]), distributed_queues(session, queues)


def _under(names: Iterable[str], prefix: str) -> list[str]:
    return [n.removeprefix(prefix) for n in names if n.startswith(prefix)]
