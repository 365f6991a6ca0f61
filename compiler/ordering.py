"""Orders of things that must come one before another. Few lines of it, so that `flowc check` loads no graph library."""

import heapq
from collections.abc import Collection, Iterable

Edges = Collection[tuple[int, int]]
"""(a, b): a comes before b."""


def ordered(nodes: Iterable[int], edges: Edges) -> list[int] | None:
    """The nodes in order, of those that are free the smallest first; None if the edges go round in a circle."""
    after = _successors(edges)
    waits = dict.fromkeys(nodes, 0)
    for _, b in edges:
        waits[b] += 1
    free = [n for n, count in waits.items() if not count]
    heapq.heapify(free)
    found: list[int] = []
    while free:
        node = heapq.heappop(free)
        found.append(node)
        for following in after.get(node, ()):
            waits[following] -= 1
            if not waits[following]:
                heapq.heappush(free, following)
    return found if len(found) == len(waits) else None


def path(edges: Edges, start: int, end: int) -> list[int] | None:
    """The nodes of a shortest way from `start` to `end`, both included; None if there is none."""
    after = _successors(edges)
    came_from: dict[int, int] = {}
    layer = [start]
    while layer and end not in came_from:
        reached = {b: a for a in layer for b in after.get(a, ()) if b not in came_from}
        came_from |= reached
        layer = list(reached)
    if end not in came_from:
        return None
    way = [end]
    while len(way) == 1 or way[-1] != start:
        way.append(came_from[way[-1]])
    return way[::-1]


def cycle(edges: Edges) -> list[int]:
    """The nodes of a circle, in order; empty if there is none."""
    left = set(edges)
    while True:  # what nothing comes before, or after, is in no circle
        ends = {a for a, _ in left} & {b for _, b in left}
        inner = {(a, b) for a, b in left if a in ends and b in ends}
        if len(inner) == len(left):
            break
        left = inner
    if not left:
        return []
    before = {b: a for a, b in sorted(left, reverse=True)}
    way = [min(before)]
    seen = set(way)
    while before[way[-1]] not in seen:
        way.append(before[way[-1]])
        seen.add(way[-1])
    return way[way.index(before[way[-1]]) :][::-1]


def _successors(edges: Edges) -> dict[int, list[int]]:
    after: dict[int, list[int]] = {}
    for a, b in sorted(set(edges)):
        after.setdefault(a, []).append(b)
    return after
