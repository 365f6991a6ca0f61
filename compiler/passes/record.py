"""Record: what every run logs without being asked, made visible as nodes.

Scalar results of Python operators and of `score` are recorded as means under their names; one of them is the run's
`reward`.
"""

from collections.abc import Sequence
from dataclasses import replace

from ...dsl.operators import Hint
from ..graph import Graph, Node, Ref, Type

NUMBERS = frozenset({"float", "int", "bool"})


def is_recorded(node: Node) -> bool:
    """Whether the mean of a value is logged by itself: numbers that a function or a reward model gave, one per call."""
    if node.type.dtype not in NUMBERS:
        return False
    if node.op == "call":
        result = node.attrs["operator"].result
        return isinstance(result, Hint) and result.sees == "row"
    return node.op == "score" and node.attrs["version"] != "live"


def _name(node: Node) -> str:
    """The user's name, else the function's."""
    if node.is_named:
        return node.name
    return str(node.attrs["operator"].name) if node.op == "call" else node.op


def record(graph: Graph) -> Graph:
    """The graph with a `record` node after each value that is logged by itself."""
    taken = {n.attrs["metric"] for n in graph.walk() if n.op == "metric"}
    reward = _reward(graph)
    told = _told(graph)
    fresh = max((n.id for n in graph.walk()), default=0)

    def fill(block: Sequence[Node]) -> tuple[Node, ...]:
        nonlocal fresh
        out: list[Node] = []
        for node in block:
            inside = node.op != "update"  # a minibatch's rewards are recorded where they were made
            out.append(replace(node, body=fill(node.body)) if inside else node)
            names = [_name(node)] if is_recorded(node) and (node.is_named or node.id not in told) else []
            names += ["reward"] if node is reward and "reward" not in names else []
            for name in names:
                if name not in taken:
                    fresh += 1
                    taken.add(name)
                    out.append(_record(fresh, node, name))
        return tuple(out)

    return graph.with_nodes(fill(graph.nodes))


def _record(id: int, node: Node, name: str) -> Node:
    return Node(id, "record", f"%{id}", {"value": Ref(node.id)}, {"metric": name}, Type("float"), (), node.span)


def _told(graph: Graph) -> set[int]:
    """Ids of the values whose plain mean is a metric already."""
    nodes = graph.by_id()
    told = [nodes[v.id] for n in nodes.values() if n.op == "metric" and isinstance(v := n.args["value"], Ref)]
    plain = [
        n
        for n in told
        if n.op == "reduce" and n.attrs["fn"] == "mean" and n.type.axis is None and "where" not in n.args
    ]
    return {n.args["x"].id for n in plain if isinstance(n.args["x"], Ref)}


def _reward(graph: Graph) -> Node | None:
    """What the console calls `reward`: the value of that name, one per sample or prompt; else the first recorded one.

    A value per token of that name is a reward already shaped, by a KL penalty for example: no score of the task.
    """
    main = [n for top in graph.nodes if top.op not in ("when", "every", "update") for n in top.walk()]
    exact = [n for n in main if n.name == "reward" and n.type.dtype in NUMBERS]
    whole = [n for n in exact if n.type.axis is None or n.type.axis.kind != "token"]
    return next(iter([*whole, *(n for n in main if is_recorded(n)), *exact]), None)
