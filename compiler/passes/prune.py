"""Prune: what no output needs isn't computed, draws included."""

from collections.abc import Sequence
from dataclasses import replace

from ..dataflow import ancestors
from ..graph import EFFECTS, Graph, Node


def prune(graph: Graph) -> Graph:
    """The graph with only its statements and what they are made of."""
    nodes = graph.by_id()
    kept = ancestors([n.id for n in nodes.values() if n.op in EFFECTS], nodes)

    def needed(block: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(replace(n, body=needed(n.body)) for n in block if n.id in kept)

    return graph.with_nodes(needed(graph.nodes))
