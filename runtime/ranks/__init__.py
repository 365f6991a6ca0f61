"""Several processes that run one plan: how they find each other, talk, and end together.

Names are imported when they are asked for: the launcher starts its compiler before it imports torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .channel import Alone, Channel, PeerError
    from .world import ALONE, World

__all__ = ["ALONE", "Alone", "Channel", "PeerError", "World"]


def __getattr__(name: str) -> Any:
    if name in ("ALONE", "World"):
        from . import world

        return getattr(world, name)
    if name in __all__:
        from . import channel

        return getattr(channel, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
