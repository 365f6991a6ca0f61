"""Everything a run holds: models, optimizers, engines, data, states. It outlives the step."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ...compiler.plan import Instruction, Model, Operator, Plan
from ..data import Reader, Table, open_table
from ..engines import Engine, make_engine
from ..errors import RunWarning
from ..models.layers import compile_layers, enable_checkpointing
from ..models.loading import Role, directory_digest, load_role
from .naming import Names
from .optimizer import Trainer

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Settings:
    """What the command line says of a run, beside the plan."""

    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    micro: int | None = None
    compile: bool = False
    allow: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()

    @property
    def number(self) -> torch.dtype:
        """The dtype of values outside the models: float64 in a float64 run, else float32."""
        return torch.float64 if self.dtype == "float64" else torch.float32


@dataclass
class Counters:
    """Odd things that a result must not hide: they are logged when they happen."""

    empty_means: int = 0
    empty_minibatches: int = 0
    skipped_updates: int = 0

    def drain(self) -> dict[str, float]:
        found = {k: float(v) for k, v in vars(self).items() if v}
        self.empty_means = self.empty_minibatches = self.skipped_updates = 0
        return found


@dataclass(frozen=True)
class Snapshot:
    """A model's weights at the beginning of a step, for reads that come after its next version is made."""

    role: Role
    version: int


@dataclass
class Session:
    plan: Plan
    settings: Settings
    roles: dict[str, Role] = field(default_factory=dict)
    trainers: dict[str, Trainer] = field(default_factory=dict)
    states: dict[str, float | int | bool] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    steps: int = 0
    _engines: dict[str, Engine] = field(default_factory=dict)
    _tables: dict[str, Table] = field(default_factory=dict)
    _readers: dict[str, Reader] = field(default_factory=dict)
    _functions: dict[str, Any] = field(default_factory=dict)

    @property
    def operators(self) -> Mapping[str, Operator]:
        return {o.key: o for o in self.plan.operators}

    @cached_property
    def names(self) -> Names:
        """What messages call the values of the plan."""
        return Names(self.plan)

    # ------------------------------------------------------------ data

    def table(self, read: Instruction) -> Table:
        """The table a `read` instruction names, opened once."""
        key = source_key(read)
        if key not in self._tables:
            path = read.attrs["path"]
            folder = next((f for f in self.settings.folders if (f / path).exists()), self.settings.folders[0])
            self._tables[key] = open_table(path, folder, split=read.attrs["split"], name=read.attrs.get("name"))
        return self._tables[key]

    def model_folder(self, path: str) -> Path:
        """The folder that a model's path is relative to: of those looked into, the first that has it."""
        return next((f for f in self.settings.folders if (f / path).is_dir()), self.settings.folders[0])

    def model_digest(self, path: str) -> str:
        """Changes when the files of a model directory do."""
        return directory_digest(path, self.model_folder(path))

    def reader(self, read: Instruction) -> Reader:
        """The order in which the rows of a `read` come."""
        key = f"{source_key(read)}|{read.attrs.get('stream', '')}|{read.attrs['shuffle']}"
        if key not in self._readers:
            self._readers[key] = Reader(
                self.table(read), key=key, seed=self.settings.seed, shuffle=read.attrs["shuffle"]
            )
        return self._readers[key]

    def is_exhausted(self) -> bool:
        """Whether a `collect` has taken all the epochs that its `read` may give (see `epochs_of`)."""
        reads = (r for r in collected_reads(self.plan) if r.attrs.get("epochs"))
        return any(self.cursors.get(r.out, 0) >= len(self.table(r)) * r.attrs["epochs"] for r in reads)

    # ------------------------------------------------------------ engines

    def engine(self, role: str, snapshot: bool = False) -> Engine:
        """The role's generation engine, holding its present weights, or those of its snapshot."""
        if role not in self._engines:
            self._engines[role] = make_engine(self.roles[role])
        engine = self._engines[role]
        kept = self.snapshots.get(role) if snapshot else None
        source, version = (kept.role, kept.version) if kept else (self.roles[role], self.versions.get(role, 0))
        if getattr(engine.state, "version", None) != version:
            engine.load_weights(source, version)
        return engine

    # ------------------------------------------------------------ versions

    def read_role(self, role: str, snapshot: bool = False) -> Role:
        """The role, or its snapshot; without one nothing has replaced its weights in this step."""
        kept = self.snapshots.get(role) if snapshot else None
        return kept.role if kept else self.roles[role]

    def take_snapshot(self, role: str) -> None:
        self.snapshots[role] = Snapshot(self.roles[role].clone(), self.versions.get(role, 0))

    def changed(self, role: str) -> None:
        """The role's weights are another version now."""
        self.versions[role] = self.versions.get(role, 0) + 1


def source_key(read: Instruction) -> str:
    return f"{read.attrs['path']}|{read.attrs['split']}|{read.attrs.get('name') or ''}"


# ---------------------------------------------------------------- models


def load_roles(session: Session) -> None:
    """Load every model of the plan, each file once.

    A frozen copy of a model that nothing trains shares its weights; of one that is trained it is a copy in memory,
    taken before step 0.
    """
    models = {m.name: m for m in session.plan.models}
    loaded: dict[str, Role] = {}
    for model in session.plan.models:
        if model.of is None:
            session.roles[model.name] = _load_once(session, model, loaded)
    shared: dict[str, Role] = {}
    for model in session.plan.models:
        if model.of is not None:
            session.roles[model.name] = _start_of(session, model, models[model.of], shared)
    for instruction in session.plan.walk():
        if instruction.op == "update":
            _prepare_training(session, instruction)


def _load_once(session: Session, model: Model, loaded: dict[str, Role]) -> Role:
    """The role, sharing its weights with an equal one if no step changes either."""
    key = repr((model.kind, model.path, sorted(model.options.items())))
    if model.trained or model.replaced:
        return _load(session, model)
    if key not in loaded:
        loaded[key] = _load(session, model)
    return replace(loaded[key], name=model.name)


def _start_of(session: Session, model: Model, source: Model, shared: dict[str, Role]) -> Role:
    """The role of `frozen(source)`: shared wherever nothing can tell it from a copy."""
    if model.replaced:
        return session.roles[source.name].clone(model.name)
    if not source.trained and not source.replaced:
        return session.roles[source.name]
    if source.name not in shared:
        shared[source.name] = session.roles[source.name].clone(model.name)
        shared[source.name].module.requires_grad_(False)
    return shared[source.name]


def _load(session: Session, model: Model) -> Role:
    settings = session.settings
    dtype = DTYPES[str(model.options.get("dtype") or settings.dtype)]
    role = load_role(
        model.kind,  # type: ignore[arg-type]
        model.path,
        dtype=dtype,
        device=settings.device,
        seed=settings.seed,
        name=model.name,
        base_dir=session.model_folder(model.path),
        dropout=float(model.options.get("dropout") or 0.0),
    )
    role.module.requires_grad_(model.trained)
    if role.fresh_head and model.frozen:
        text = f"`{model.path}` has no scalar head: what `{model.name}` says is random, and nothing trains it"
        warnings.warn(text, RunWarning, stacklevel=2)
    return role


def _prepare_training(session: Session, update: Instruction) -> None:
    role = session.roles[update.attrs["model"]]
    if update.attrs.get("checkpointing"):
        enable_checkpointing(role)
    if update.attrs.get("compile") or session.settings.compile:
        compile_layers(role)
    session.trainers[update.attrs["model"]] = Trainer(role, update.attrs["optimizer"])


def collected_reads(plan: Plan) -> list[Instruction]:
    """The reads that a `collect` repeats."""
    return [r for i in plan.walk() if i.op == "collect" for r in i.body if r.op == "read" and "batch" in r.attrs]


def epochs_of(session: Session) -> int | None:
    """How many steps the data lasts: `epochs=` of the reads of every step, by default one pass over the first.

    A `collect` may read several batches in a step, so that for its reads this is the most there can be.
    None: no read limits the run.
    """
    blocks = [*(a.program for a in session.plan.ahead), session.plan.program]
    reads = [i for block in blocks for i in block if i.op == "read" and "batch" in i.attrs]
    reads += collected_reads(session.plan)
    limited = [r for r in reads if r.attrs.get("epochs")] or reads[:1]
    lasts = [max(1, len(session.table(r)) * (r.attrs.get("epochs") or 1) // r.attrs["batch"]) for r in limited]
    return min(lasts, default=None)
