"""A scene in the format that a file's name asks for."""

from collections.abc import Callable, Mapping

from .dot import dot
from .mermaid import mermaid
from .page import page
from .scene import Scene
from .still import still


class BadPicture(ValueError):
    """A format that pictures don't have, or a scene that can't be drawn."""


FORMATS: Mapping[str, Callable[[Scene], str]] = {".html": page, ".svg": still, ".dot": dot, ".mmd": mermaid}
"""By the ending of the file's name."""


def draw(scene: Scene, ending: str) -> str:
    """The picture as text. Raises BadPicture."""
    write = FORMATS.get(ending.lower())
    if write is None:
        raise BadPicture(f"a picture is written as {', '.join(FORMATS)}, not as `{ending or 'a name without ending'}`")
    if not scene.nodes:
        raise BadPicture(f"`{scene.title}` has nothing to draw: no phase, no operator")
    return write(scene)
