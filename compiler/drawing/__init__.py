"""Pictures of a placement: a scene (what is drawn) → a layout (where) → HTML, SVG, DOT or Mermaid (how)."""

from .draw import FORMATS, BadPicture, draw
from .scene import Scene

__all__ = ["FORMATS", "BadPicture", "Scene", "draw"]
