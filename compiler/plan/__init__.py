"""The Plan's schema and everything that both the compiler and the runtime ask of it. No torch here."""

from . import schema
from .project import project
from .schema import (
    Ahead,
    Axis,
    Group,
    Holding,
    Instruction,
    Mesh,
    Model,
    Operand,
    Operator,
    Parameter,
    Plan,
    PlanError,
    Value,
    decode,
    encode,
    meaning,
    original,
    sealed,
)

__all__ = [
    "Ahead",
    "Axis",
    "Group",
    "Holding",
    "Instruction",
    "Mesh",
    "Model",
    "Operand",
    "Operator",
    "Parameter",
    "Plan",
    "PlanError",
    "Value",
    "decode",
    "encode",
    "meaning",
    "original",
    "project",
    "schema",
    "sealed",
]
