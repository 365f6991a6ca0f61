"""Models in a worker: loading and saving a role, its text, and what its forward pass computes."""

from .batches import Sequences
from .layers import compile_layers, enable_checkpointing
from .loading import ModelError, Role, load_role, save_role
from .scoring import count_passes, evaluate, forward, idle, micro_batches, tie, touch
from .text import TextError, decode, encode_pair, encode_prompt, stop_ids

__all__ = [
    "ModelError",
    "Role",
    "Sequences",
    "TextError",
    "compile_layers",
    "count_passes",
    "decode",
    "enable_checkpointing",
    "encode_pair",
    "encode_prompt",
    "evaluate",
    "forward",
    "idle",
    "load_role",
    "micro_batches",
    "save_role",
    "stop_ids",
    "tie",
    "touch",
]
