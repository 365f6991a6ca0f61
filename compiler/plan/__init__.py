"""The Plan's schema and everything that both the compiler and the runtime ask of it. No torch here."""

from . import schema
from .schema import (
    Ahead,
    Axis,
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
    sealed,
)

__all__ = [
    "Ahead",
    "Axis",
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
    "schema",
    "sealed",
]
