"""Which column a node stands in, and in what order nodes of one lane and column stand below each other."""

from collections.abc import Mapping, Sequence

import networkx as nx

from .scene import Edge, Node, Scene

Cell = tuple[str, int]
"""A lane and a column."""

SWEEPS = 4


def forward(scene: Scene) -> tuple[Edge, ...]:
    """The edges that go from left to right."""
    return tuple(e for e in scene.edges if not e.back)


def columns(scene: Scene) -> dict[str, int]:
    """The column of each node: one more than that of the last node it follows."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(n.id for n in scene.nodes)
    graph.add_edges_from((e.source, e.target) for e in forward(scene))
    return {n: c for c, generation in enumerate(nx.topological_generations(graph)) for n in generation}


def cells(scene: Scene, column: Mapping[str, int]) -> dict[Cell, list[str]]:
    """The nodes of each lane and column from top to bottom, ordered so that few edges cross.

    Sugiyama's barycenter method: a node wants to stand at the mean height of its neighbours.
    """
    found: dict[Cell, list[str]] = {}
    for node in scene.nodes:
        found.setdefault((node.lane, column[node.id]), []).append(node.id)
    lanes = [lane.name for lane in scene.lanes]
    for sweep in range(SWEEPS):
        before = _neighbours(scene, forwards=sweep % 2 == 0)
        for cell in sorted(found, key=lambda c: c[1], reverse=sweep % 2 == 1):
            height = _heights(found, lanes)
            found[cell].sort(key=lambda n: _mean([height[x] for x in before[n]], height[n]))
    return found


def _neighbours(scene: Scene, *, forwards: bool) -> dict[str, list[str]]:
    """The sources of each node, or its targets."""
    found: dict[str, list[str]] = {n.id: [] for n in scene.nodes}
    for e in forward(scene):
        near, far = (e.target, e.source) if forwards else (e.source, e.target)
        found[near].append(far)
    return found


def _heights(found: Mapping[Cell, Sequence[str]], lanes: Sequence[str]) -> dict[str, float]:
    """How far down each node stands, in lanes."""
    return {
        node: lanes.index(lane) + (row + 0.5) / len(nodes)
        for (lane, _), nodes in found.items()
        for row, node in enumerate(nodes)
    }


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def order_of(nodes: Sequence[Node], column: Mapping[str, int]) -> list[Node]:
    """Nodes as they are read: by column, then as given."""
    return sorted(nodes, key=lambda n: column[n.id])
