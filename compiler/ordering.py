"""Orders of things that must come one before another."""

from collections.abc import Collection, Iterable

import networkx as nx

Edges = Collection[tuple[int, int]]
"""(a, b): a comes before b."""


def ordered(nodes: Iterable[int], edges: Edges) -> list[int] | None:
    """The nodes in order, of those that are free the smallest first; None if the edges go round in a circle."""
    graph = _graph(edges)
    graph.add_nodes_from(nodes)
    try:
        return list(nx.lexicographical_topological_sort(graph))
    except nx.NetworkXUnfeasible:
        return None


def path(edges: Edges, start: int, end: int) -> list[int] | None:
    """The nodes of a shortest way from `start` to `end`, both included; None if there is none.

    From a node to itself it is the shortest circle, not the way of no steps.
    """
    graph = _graph(edges)
    if start not in graph or end not in graph:
        return None
    ways = [_shortest(graph, following, end) for following in graph.successors(start)]
    found = min((w for w in ways if w is not None), key=len, default=None)
    return [start, *found] if found is not None else None


def cycle(edges: Edges) -> list[int]:
    """The nodes of a circle, in order; empty if there is none."""
    try:
        return [a for a, _ in nx.find_cycle(_graph(edges))]
    except nx.NetworkXNoCycle:
        return []


def _shortest(graph: "nx.DiGraph[int]", start: int, end: int) -> list[int] | None:
    try:
        return list(nx.shortest_path(graph, start, end))
    except nx.NetworkXNoPath:
        return None


def _graph(edges: Edges) -> "nx.DiGraph[int]":
    return nx.DiGraph(sorted(set(edges)))
