"""The Plan: the compiled artifact. Data only, the same bytes for the same input, its size independent of ranks.

`program` is one step. Instructions name values, models and meshes; `spec` says what each operator may hold.
"""

import hashlib
from typing import Any, TypeAlias

import msgspec

SCHEMA = 1


class Value(msgspec.Struct, frozen=True):
    """An operand that names a value of the program."""

    ref: str


Operand: TypeAlias = Value | int | float | bool | str | None


class Instruction(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operator application on a mesh.

    out: the name of its result. type: `dtype[axis]`. args: operands by parameter. attrs: what is static.
    """

    op: str
    out: str
    type: str = ""
    args: dict[str, Operand] = {}
    attrs: dict[str, Any] = {}
    body: tuple["Instruction", ...] = ()
    mesh: str = "local"

    def walk(self) -> "list[Instruction]":
        """This instruction and everything in its body, in order."""
        return [self, *(inner for child in self.body for inner in child.walk())]


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
    """A set of devices that phases run on."""

    name: str
    devices: int = 1
    options: dict[str, Any] = {}


class Ahead(msgspec.Struct, frozen=True):
    """What runs `staleness` steps ahead of the step that reads it; `keeps` names the values that wait in a queue."""

    staleness: int
    program: tuple[Instruction, ...]
    keeps: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
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
    hash: str = ""

    def walk(self) -> list[Instruction]:
        """Every instruction, those that run ahead first."""
        blocks = [*(a.program for a in self.ahead), self.program]
        return [inner for block in blocks for top in block for inner in top.walk()]


class PlanError(ValueError):
    """A file that is no plan, or one of another schema."""


def sealed(plan: Plan) -> Plan:
    """The plan with the hash of everything in it."""
    blank = msgspec.structs.replace(plan, hash="")
    return msgspec.structs.replace(plan, hash=hashlib.sha256(encode(blank)).hexdigest())


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
