"""Generation engines: from prompts and keyed noise to sampled tokens."""

from .engine import Engine, EngineError, Generated, Sampling
from .select import make_engine

__all__ = ["Engine", "EngineError", "Generated", "Sampling", "make_engine"]
