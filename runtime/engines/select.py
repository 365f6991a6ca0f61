"""Which engine generates for a role."""

from ..models.loading import Role
from .engine import Engine
from .folding import unsupported
from .functional import FunctionalEngine, mismatch
from .transformers_engine import TransformersEngine


def make_engine(role: Role, *, snapshot: bool = False) -> Engine:
    """An engine for the role, asleep: the functional decoder where it fits and agrees with the model's own forward.

    snapshot: the engine must keep its weights while the role is trained on (the functional one always does).
    `engine.reason` says why it is the slower one, where it is.
    """
    reason = unsupported(role) or mismatch(role)
    return TransformersEngine(reason, snapshot) if reason else FunctionalEngine()
