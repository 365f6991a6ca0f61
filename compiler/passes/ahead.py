"""What runs ahead of the step that reads it."""

from dataclasses import dataclass

from ..graph import Node


@dataclass(frozen=True)
class Ahead:
    """Nodes that run `staleness` steps before the step that reads what they make: a stale draw, or what is made of it.

    keeps: ids of the values that wait in a queue: draws, and what a `collect` gave. The rest is computed again.
    source: of what is made of a draw, how many steps ahead that is drawn, in whose queue it waits.
    """

    staleness: int
    nodes: tuple[Node, ...]
    keeps: tuple[int, ...]
    source: int | None = None
