"""Which engine generates for a role."""

from ..models.loading import Role
from .engine import Engine
from .transformers_engine import TransformersEngine


def make_engine(role: Role, *, snapshot: bool = False) -> Engine:
    """An engine that fits the role, asleep. `engine.reason` says why it is not the fastest one, where it is not."""
    return TransformersEngine(snapshot=snapshot)
