"""Several processes that run one plan: how they find each other, talk, and end together."""

from .channel import Alone, Channel, PeerError
from .world import ALONE, World

__all__ = ["ALONE", "Alone", "Channel", "PeerError", "World"]
