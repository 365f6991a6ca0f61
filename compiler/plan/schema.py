"""The Plan: the compiled artifact. Data only, the same bytes for the same input, its size independent of ranks.

`program` is one step. Instructions name values, models and meshes; `spec` says what each operator may hold.
"""

import hashlib
from typing import Any, TypeAlias

import msgspec

SCHEMA = 2


class Value(msgspec.Struct, frozen=True):
    """An operand that names a value of the program."""

    ref: str


Operand: TypeAlias = Value | int | float | bool | str | None


class Instruction(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operator application on a mesh.

    out: the name of its result. type: `dtype[axis]`. args: operands by parameter; of a `move` or a `gather`, by the
    name of what each becomes. attrs: what is static. layout: how the result lies on the mesh, empty in a plan of one
    process. groups: those on which its ranks communicate, in order, implicit collectives included.
    """

    op: str
    out: str
    type: str = ""
    args: dict[str, Operand] = {}
    attrs: dict[str, Any] = {}
    body: tuple["Instruction", ...] = ()
    mesh: str = "local"
    layout: str = ""
    groups: tuple[str, ...] = ()

    @property
    def outs(self) -> tuple[str, ...]:
        """The names it binds: its own; of what takes several values along, the names of what they become."""
        return tuple(self.args) if self.op in ("move", "gather") else (self.out,)

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the values that it itself reads, not those of its body."""
        return tuple(a.ref for a in self.args.values() if isinstance(a, Value))

    @property
    def axis(self) -> str | None:
        """The axis of its result; None of a scalar."""
        return self.type.rstrip("]").partition("[")[2] or None

    def walk(self) -> "list[Instruction]":
        """This instruction and everything in its body, in order."""
        return [self, *(inner for child in self.body for inner in child.walk())]


def original(name: str) -> str:
    """The value that a copy is of: a copy on another mesh is called by the value and the mesh, `rollout@ranks0-3`."""
    return name.partition("@")[0]


class Axis(msgspec.Struct, frozen=True):
    """One axis: `name` is `owner.kind`; `parent` names the axis above it."""

    name: str
    kind: str
    parent: str | None = None


class Model(msgspec.Struct, frozen=True):
    """One role. `of`: the role whose weights before step 0 it copies; `trained`: some update changes it."""

    name: str
    kind: str
    path: str
    frozen: bool
    of: str | None
    trained: bool
    replaced: bool
    options: dict[str, Any] = {}


class Parameter(msgspec.Struct, frozen=True):
    name: str
    sees: str
    dtype: str


class Operator(msgspec.Struct, frozen=True):
    """A Python function, by module, name and the hash of its file. `result` lists fields; one unnamed field is a plain
    result. `file` is relative to the flow's folder, or `std/…`."""

    key: str
    file: str
    name: str
    sha256: str
    params: tuple[Parameter, ...]
    result: tuple[Parameter, ...]
    is_async: bool
    draws: bool


class Mesh(msgspec.Struct, frozen=True):
    """The devices that phases run on: `devices` of them from rank `first` on."""

    name: str
    devices: int = 1
    first: int = 0

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.devices)


class Group(msgspec.Struct, frozen=True):
    """Ranks that communicate: all of the named meshes."""

    name: str
    meshes: tuple[str, ...]


class Holding(msgspec.Struct, frozen=True):
    """The weights of a model on a mesh: `dp` copies, each sharded over `fsdp` ranks.

    The one that is called as its model is where the model is trained; the others take their weights from it.
    """

    name: str
    model: str
    mesh: str
    dp: int = 1
    fsdp: int = 1


class Ahead(msgspec.Struct, frozen=True, omit_defaults=True):
    """What runs `staleness` steps ahead of the step that reads it; `keeps` names the values that wait in a queue.

    exchange: the moves of those values to the meshes that will read them. They come after the step, so that the step
    and what runs ahead of it run at the same time where their meshes are apart. source: of a block that makes more of
    draws in a queue, the staleness of those; None of the block that draws.
    """

    staleness: int
    program: tuple[Instruction, ...]
    keeps: tuple[str, ...]
    exchange: tuple[Instruction, ...] = ()
    source: int | None = None


class Plan(msgspec.Struct, frozen=True):
    """meaning: a hash of what a step computes, whatever the target and the placement: commits of one go with another.

    decision: the placement that was searched for, as data. demands: what a run must be able to do to carry it out, in
    words, beyond what every run does; neither is there in a plan without a search.
    """

    schema: int
    flow: str
    doc: str | None
    target: str
    folder: str
    source: str
    params: dict[str, Any]
    axes: tuple[Axis, ...]
    meshes: tuple[Mesh, ...]
    models: tuple[Model, ...]
    states: dict[str, int | float | bool]
    operators: tuple[Operator, ...]
    ahead: tuple[Ahead, ...]
    program: tuple[Instruction, ...]
    meaning: str = ""
    ranks: int = 1
    groups: tuple[Group, ...] = ()
    holdings: tuple[Holding, ...] = ()
    hash: str = ""
    decision: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    demands: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET

    def walk(self) -> list[Instruction]:
        """Every instruction, those that run ahead first."""
        blocks = [*(b for a in self.ahead for b in (a.program, a.exchange)), self.program]
        return [inner for block in blocks for top in block for inner in top.walk()]

    def chain(self, axis: str | None) -> list[str]:
        """An axis and all above it, innermost first."""
        parents = {a.name: a.parent for a in self.axes}
        found = []
        while axis is not None:
            found.append(axis)
            axis = parents.get(axis)
        return found

    def root(self, axis: str | None) -> str | None:
        """The outermost axis above an axis, which may be itself; None of a scalar's."""
        return self.chain(axis)[-1] if axis is not None else None

    def ranks_of(self, group: str) -> list[int]:
        """The ranks of a mesh, or of a group of meshes, ascending."""
        meshes = {m.name: m for m in self.meshes}
        members = next((g.meshes for g in self.groups if g.name == group), (group,))
        return sorted({rank for name in members for rank in meshes[name].ranks})


class PlanError(ValueError):
    """A file that is no plan, or one of another schema."""


def sealed(plan: Plan) -> Plan:
    """The plan with the hash of everything in it."""
    blank = msgspec.structs.replace(plan, hash="")
    return msgspec.structs.replace(plan, hash=hashlib.sha256(encode(blank)).hexdigest())


PLACED = frozenset({"micro", "checkpointing", "compile", "engine"})
"""Attributes that say where and how something is computed, and change no number."""


def meaning(plan: Plan) -> str:
    """The hash of a plan for one process without comments, places, and what the user's functions do."""
    operators = tuple(msgspec.structs.replace(o, file="", sha256="") for o in plan.operators)
    ahead = tuple(msgspec.structs.replace(a, program=_unplaced(a.program)) for a in plan.ahead)
    program = _unplaced(plan.program)
    return sealed(
        msgspec.structs.replace(
            plan, doc=None, folder="", source="", operators=operators, ahead=ahead, program=program, meshes=()
        )
    ).hash


def _unplaced(block: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    kept = ({k: v for k, v in i.attrs.items() if k not in PLACED} for i in block)
    return tuple(
        msgspec.structs.replace(i, attrs=attrs, body=_unplaced(i.body)) for i, attrs in zip(block, kept, strict=True)
    )


def encode(plan: Plan) -> bytes:
    """The plan as JSON: two spaces of indent, a final newline."""
    raw = msgspec.json.encode(plan, order="deterministic")
    return msgspec.json.format(raw, indent=2) + b"\n"


def decode(data: bytes) -> Plan:
    """The plan in a file's bytes. Raises PlanError if it isn't one, or was changed since it was compiled."""
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise PlanError(f"this is no plan: {error}") from None
    if plan.schema != SCHEMA:
        raise PlanError(
            f"this plan has schema {plan.schema}; this version reads schema {SCHEMA}: compile the flow again"
        )
    if sealed(plan).hash != plan.hash:
        raise PlanError("this plan was changed after it was compiled (its hash differs): compile the flow again")
    return plan
