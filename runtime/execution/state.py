"""The state of a run: everything a later step depends on, as a commit holds it."""

import warnings
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor

from ...compiler.plan import Plan, sealed
from ..commits import Commit, CommitError
from ..errors import RunWarning
from .ahead import Queues, pack_queues, unpack_queues
from .queue import Packer, Unpacker
from .session import Session


def pack_state(session: Session, step: int, queues: Queues) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and JSON of the state after `step` finished steps."""
    tensors: dict[str, Tensor] = {}
    for model in session.plan.models:
        if model.trained or model.replaced:
            tensors |= {f"model.{model.name}.{k}": v for k, v in _weights(session, model.name).items()}
    for name, trainer in session.trainers.items():
        tensors |= {f"optimizer.{name}.{k}": v for k, v in trainer.tensors().items()}
    packer = Packer("queue")
    waiting = pack_queues(queues, packer)
    meta = {
        "plan": _identity(session.plan),
        "params": session.plan.params,
        "sources": {o.key: o.sha256 for o in session.plan.operators} | source_digests(session),
        "seed": session.settings.seed,
        "dtype": session.settings.dtype,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "step": step,
        "states": session.states,
        "cursors": session.cursors,
        "optimizer_steps": {n: t.count for n, t in session.trainers.items()},
        "queues": waiting,
        "frames": packer.frames,
    }
    return {**tensors, **packer.tensors}, meta


def _weights(session: Session, name: str) -> dict[str, Tensor]:
    """Each weight once: tied ones have one name."""
    return {k: p.detach() for k, p in session.roles[name].module.named_parameters()}


def check_resumable(commit: Commit, session: Session) -> None:
    """Raise CommitError if the commit is of another run; warn if functions, data or models have changed since."""
    meta, settings = commit.meta, session.settings
    params = meta["params"] | {}
    differing = [(f"`{n}`", params.get(n), v) for n, v in session.plan.params.items() if params.get(n) != v]
    for what, then, now in (
        *differing,
        ("plan", meta["plan"][:12], _identity(session.plan)[:12]),
        ("--seed", meta["seed"], settings.seed),
        ("--dtype", meta["dtype"], settings.dtype),
    ):
        if then != now:
            raise CommitError(
                f"{commit.path} is of another run: its {what} is {then}, this one's is {now}; resume with the same "
                "flow and options, or choose another --out"
            )
    now_used = {o.key: o.sha256 for o in session.plan.operators} | source_digests(session)
    changed = sorted(name for name, digest in now_used.items() if meta["sources"].get(name) != digest)
    if changed:
        text = (
            f"{', '.join(changed)} changed since the commit of step {commit.step}; the run goes on with the new state"
        )
        warnings.warn(text, RunWarning, stacklevel=3)


def source_digests(session: Session) -> dict[str, str]:
    """Digests of what a run reads again after a resume: its data, and models that no commit holds."""
    tables = {i.attrs["path"]: session.table(i).fingerprint for i in session.plan.walk() if i.op == "read"}
    paths = {m.path for m in session.plan.models if not m.trained and not m.replaced}
    return tables | {p: session.model_digest(p) for p in paths}


def _identity(plan: Plan) -> str:
    """A hash of what a plan does: not of comments, of where it lies, or of what the user's functions do."""
    operators = tuple(msgspec.structs.replace(o, file="", sha256="") for o in plan.operators)
    return sealed(msgspec.structs.replace(plan, doc=None, folder="", source="", operators=operators)).hash


def restore_state(commit: Commit, session: Session) -> tuple[int, Queues]:
    """Take over the state of a commit. Returns the number of finished steps and what waits in queues."""
    tensors, meta = commit.load_tensors(), commit.meta
    with torch.no_grad():
        for model in session.plan.models:
            if model.trained or model.replaced:
                for name, weight in _weights(session, model.name).items():
                    weight.copy_(tensors[f"model.{model.name}.{name}"])
    for name, trainer in session.trainers.items():
        trainer.load(_under(tensors, f"optimizer.{name}."), meta["optimizer_steps"][name])
    session.states.update(meta["states"])
    session.cursors.update(meta["cursors"])
    queues = unpack_queues(meta["queues"], Unpacker(meta["frames"], tensors))
    return int(meta["step"]), queues


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
