"""What executes plans, and evaluates definitions eagerly. Names are imported when they are asked for: torch is slow."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .eager import Axes, load

__all__ = ["Axes", "load"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import eager

        return getattr(eager, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
