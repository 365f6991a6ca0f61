"""Everything a run holds: models, optimizers, engines, data, states. It outlives the step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.distributed import ProcessGroup

from ...compiler.plan import Instruction, Operator, Plan, original, project
from ..data import Reader, Table, open_table
from ..engines import Engine, make_engine
from ..models.loading import Role, directory_digest, load_tokenizer
from ..ranks.channel import Channel
from ..ranks.world import ALONE, World
from ..telemetry.profile import Profile
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
    """plan: what this rank does of a plan. whole: the plan for all ranks. profile: of a run that is timed."""

    plan: Plan
    settings: Settings
    world: World = ALONE
    roles: dict[str, Role] = field(default_factory=dict)
    trainers: dict[str, Trainer] = field(default_factory=dict)
    states: dict[str, float | int | bool] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    steps: int = 0
    profile: Profile | None = None
    device_groups: dict[str, ProcessGroup] = field(default_factory=dict)
    _engines: dict[str, Engine] = field(default_factory=dict)
    _kept: dict[str, Role] = field(default_factory=dict)
    _tables: dict[str, Table] = field(default_factory=dict)
    _readers: dict[str, Reader] = field(default_factory=dict)
    _functions: dict[str, Any] = field(default_factory=dict)
    _tokenizers: dict[str, Any] = field(default_factory=dict)
    whole: Plan = field(init=False)

    def __post_init__(self) -> None:
        self.whole = self.plan
        if self.plan.target == "multi":
            self.plan = project(self.whole, self.world.rank)

    # ------------------------------------------------------------ ranks

    def channel(self, group: str) -> Channel:
        """The ranks of a mesh, or of a group of meshes; in a plan for one process there is one rank."""
        return self.world.channel(group if self.whole.groups else "world")

    def member(self, mesh: str) -> Channel | None:
        """The channel of a mesh that this rank is on; None if it isn't."""
        return self.channel(mesh) if not self.whole.groups or any(m.name == mesh for m in self.plan.meshes) else None

    def speaks(self, mesh: str) -> bool:
        """Whether this rank records what all ranks of a mesh know."""
        channel = self.member(mesh)
        return channel is not None and channel.index == 0

    def dtype_of(self, model: str) -> torch.dtype:
        """The dtype of a model's weights."""
        options = next(m.options for m in self.whole.models if m.name == model)
        return DTYPES[str(options.get("dtype") or self.settings.dtype)]

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
        reads = (r for r in collected_reads(self.whole) if r.attrs.get("epochs"))
        return any(self.cursors.get(source_name(r), 0) >= len(self.table(r)) * r.attrs["epochs"] for r in reads)

    # ------------------------------------------------------------ engines

    def engine(self, holding: str, snapshot: bool = False) -> Engine:
        """The generation engine of a holding, with its present weights, or those of its snapshot."""
        if holding not in self._engines:
            self._engines[holding] = make_engine(self.roles[holding])
        engine = self._engines[holding]
        kept = self.snapshots.get(holding) if snapshot else None
        source, version = (kept.role, kept.version) if kept else (self.roles[holding], self.versions.get(holding, 0))
        if getattr(engine.state, "version", None) != version:
            engine.load_weights(source, version)
        return engine

    # ------------------------------------------------------------ versions

    def read_role(self, holding: str, snapshot: bool = False) -> Role:
        """The role, or its snapshot; without one nothing has replaced its weights in this step."""
        kept = self.snapshots.get(holding) if snapshot else None
        return kept.role if kept else self.roles[holding]

    def tokenizer(self, model: str) -> Any:
        """The tokenizer of a model, whose weights may all be elsewhere."""
        if model not in self._tokenizers:
            of = next(m for m in self.whole.models if m.name == model)
            path = next((m.path for m in self.whole.models if m.name == of.of), of.path)
            role = next((r for name, r in self.roles.items() if original(name) == model), None)
            self._tokenizers[model] = role.tokenizer if role else load_tokenizer(path, self.model_folder(path))
        return self._tokenizers[model]

    def take_snapshot(self, role: str) -> None:
        if role not in self._kept:
            self._kept[role] = self.roles[role].clone()
        else:
            self._kept[role].copy_from(self.roles[role])
        self.snapshots[role] = Snapshot(self._kept[role], self.versions.get(role, 0))

    def changed(self, role: str) -> None:
        """The role's weights are another version now."""
        self.versions[role] = self.versions.get(role, 0) + 1


def source_name(i: Instruction) -> str:
    """The user's name of a value: a copy of it on a mesh is called by both."""
    return original(i.out)


def source_key(read: Instruction) -> str:
    return f"{read.attrs['path']}|{read.attrs['split']}|{read.attrs.get('name') or ''}"


def collected_reads(plan: Plan) -> list[Instruction]:
    """The reads that a `collect` repeats."""
    return [r for i in plan.walk() if i.op == "collect" for r in i.body if r.op == "read" and "batch" in r.attrs]


def epochs_of(session: Session) -> int | None:
    """How many steps the data lasts: `epochs=` of the reads of every step, by default one pass over the first.

    A `collect` may read several batches in a step, so that for its reads this is the most there can be.
    None: no read limits the run.
    """
    blocks = [*(a.program for a in session.whole.ahead), session.whole.program]
    reads = [i for block in blocks for i in block if i.op == "read" and "batch" in i.attrs]
    reads += collected_reads(session.whole)
    limited = [r for r in reads if r.attrs.get("epochs")] or reads[:1]
    lasts = [max(1, len(session.table(r)) * (r.attrs.get("epochs") or 1) // r.attrs["batch"]) for r in limited]
    return min(lasts, default=None)
