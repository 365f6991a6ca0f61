"""Stages: what a stale draw is scored with may also run ahead, a step or more behind the draw.

A draw with `max_staleness=k` leaves k steps between two things that one step needs. With one step the draw takes it.
With more, what reads nothing but the draw, rows of files and models that nothing trains runs j steps ahead, 0 < j < k:
its values do not depend on when they are made, and on devices of its own it takes no time of the step. Scoring that
reads other scoring is one stage nearer to the step, as far as there are stages.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..graph import PHASES, Graph, Node
from .ahead import Ahead

_PHASES = PHASES - {"generate"}
_LAZY = frozenset({"read", "field", "step"})
"""What is made wherever it is read, instead of waiting in a queue."""

_ROWWISE = frozenset({"map", "reduce", "rank", "expand", "call"})


def stages(step: Graph, draws: Ahead) -> tuple[Ahead, ...]:
    """What of a step runs ahead of it behind its draws, the earliest first; nothing where they are one step ahead."""
    if draws.staleness < 2:
        return ()
    nodes = step.by_id()
    levels = _levels(step, draws)
    hoisted = _useful(levels, nodes)
    by_stage: dict[int, list[Node]] = {}
    for node in (n for n in step.nodes if n.id in hoisted):
        by_stage.setdefault(max(1, draws.staleness - max(1, levels[node.id])), []).append(node)
    cut = _Cut(step, nodes, {n.id: j for j, found in by_stage.items() for n in found}, {*draws.keeps})
    return tuple(cut.stage(j, draws.staleness) for j in sorted(by_stage, reverse=True))


def _levels(step: Graph, draws: Ahead) -> dict[int, int]:
    """Of all that may run ahead behind the draws, how many phases and calls are one after the other up to it."""
    written = {n.attrs["model"] for n in step.walk() if n.op in ("update", "next_model")}
    levels = dict.fromkeys(draws.keeps, 0)
    free: set[int] = set()
    for node in step.nodes:
        inputs = node.inputs()
        if node.op in _LAZY and inputs <= free:
            free.add(node.id)
        elif inputs <= free | levels.keys() and inputs & levels.keys() and _may_wait(node, written):
            takes = node.op in _PHASES or node.op == "call"
            levels[node.id] = max(levels[i] for i in inputs & levels.keys()) + takes
    return levels


def _may_wait(node: Node, written: set[str]) -> bool:
    """Whether a node is the same whenever it is made, and its rows can wait in a queue.

    Means count those of nothing, which is logged in the step that has them.
    """
    if node.op == "field":
        return True
    if node.type.axis is None or node.type.fields or (node.op == "reduce" and node.attrs["fn"] == "mean"):
        return False
    return node.op in _ROWWISE or (node.op in _PHASES and node.attrs["model"] not in written)


def _useful(levels: Mapping[int, int], nodes: Mapping[int, Node]) -> set[int]:
    """The phases and calls among them, and what those are made of: the rest is cheap, and stays in the step."""
    stack = [i for i in levels if i in nodes and (nodes[i].op in _PHASES or nodes[i].op == "call")]
    found: set[int] = set()
    while stack:
        id = stack.pop()
        if id not in found and id in levels and id in nodes:
            found.add(id)
            stack += nodes[id].inputs()
    return {i for i in found if nodes[i].op not in _LAZY}


@dataclass(frozen=True)
class _Cut:
    """A step that is cut into stages. stages: of what runs ahead, by id. queued: what the draws' queue holds."""

    step: Graph
    nodes: Mapping[int, Node]
    stages: Mapping[int, int]
    queued: set[int]

    def stage(self, j: int, source: int) -> Ahead:
        own = {i for i, stage in self.stages.items() if stage == j}
        program = own | {*self._lazy(own)}
        read = {r for n in self.step.nodes if n.id not in own for r in n.inputs()}
        nodes = tuple(n for n in self.step.nodes if n.id in program)
        keeps = tuple(n.id for n in nodes if n.id in own and (n.id in read or n.is_named))
        return Ahead(j, nodes, keeps, source)

    def _lazy(self, ids: Iterable[int]) -> Iterator[int]:
        """What nodes read that is made where it is read."""
        for id in (r for i in ids for r in self.nodes[i].inputs()):
            if id in self.nodes and id not in self.queued and id not in self.stages:
                yield id
                yield from self._lazy([id])
