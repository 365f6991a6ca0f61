"""The Flow language: its syntax in two front ends, its vocabulary and its diagnostics.

A flow in Python is written with these names: `from shardflow.dsl import flow, mean, minimize, read, update`. Some hide
Python's own (`sum`, `max`, `min`, `abs`); `import shardflow.dsl as fl` and `fl.sum(...)` avoids that.
"""

# ruff: noqa: F405  (a linter does not look into the star import)
from importlib import import_module
from typing import TYPE_CHECKING

from .ragged import Batch, Group, PerSequence, Ragged

if TYPE_CHECKING:
    from .tracing import *  # noqa: F403

__all__ = [
    "Batch", "Group", "PerSequence", "Ragged",  # hints of Python operators
    "Definition", "FlowDefinition", "Model", "Prompts", "Samples", "State", "Steps", "Tokens", "Value", "a100",
    "a100_40", "a100_80", "a800", "abs", "adamw", "b200", "causal_lm", "clamp", "cluster", "collect", "comb", "count",
    "cpu", "define", "ema", "every", "exp", "expand", "flow", "flows_of", "frozen", "gb200", "h100", "h100_96", "h20",
    "h200", "h800", "keep", "keep_rows", "l40s", "ln", "load_flow", "local", "log_sigmoid", "max", "maximum", "mean",
    "metric", "min", "minimize", "minimum", "nodes", "place", "put", "quantile", "rank", "read", "reward_model",
    "sigmoid", "sqrt", "state", "std", "step", "stop_gradient", "sum", "update", "use", "value_model", "var", "when",
    "where",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """The Python front end, loaded when one of its names is asked for: those who read text need none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".tracing", __name__), name)
