"""Questions about a graph that several passes ask: what depends on what, and what an update's loss is made of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .graph import Axis, Graph, Node, Ref, is_scoped

NO_GRADIENT = frozenset({"==", "!=", "<", "<=", ">", ">=", "and", "or", "not", "//", "stop_gradient", "count", "comb"})
"""Functions, and reductions, whose result has no gradient."""


def ancestors(ids: Iterable[int], nodes: Mapping[int, Node]) -> set[int]:
    """The given nodes and everything they are computed from."""
    seen: set[int] = set()
    stack = list(ids)
    while stack:
        id = stack.pop()
        if id not in seen:
            seen.add(id)
            stack += list(nodes[id].refs())
    return seen


def named(nodes: Mapping[int, Node], ref: object) -> str:
    """How a message calls a value: the user's name, or `value.field`."""
    if not isinstance(ref, Ref):
        return str(ref)
    node = nodes[ref.id]
    if node.op == "field" and not node.is_named:
        return f"{named(nodes, node.args['record'])}.{node.attrs['field']}"
    return node.name


@dataclass(frozen=True)
class Loss:
    """An update's loss.

    live: ids of the phases of the trained model. dependent: everything computed from them.
    roots: the root axes of all values in it. uncut: for each root of the live phases, the axis whose rows a micro-batch
        may not cut.
    two_passes: why one more pass without gradients is needed; None if one pass is enough.
    """

    minimize: Node
    live: tuple[int, ...]
    dependent: frozenset[int]
    roots: tuple[Axis, ...]
    uncut: tuple[Axis, ...]
    two_passes: str | None


def loss_of(update: Node, nodes: Mapping[int, Node]) -> Loss | None:
    """The loss of an update; None if it has none, or it is in error."""
    minimize = next((n for n in update.body if n.op == "minimize"), None)
    if minimize is None or not isinstance(minimize.args["value"], Ref):
        return None
    inside = {n.id for n in update.body}
    needed = ancestors([minimize.args["value"].id], nodes)
    live = tuple(sorted(i for i in needed if nodes[i].attrs.get("version") == "live"))
    dependent = depending(live, [n for n in update.body if n.id in needed])
    roots = _roots(nodes[i] for i in _boundary(needed, inside, nodes))
    chain = [nodes[i] for i in sorted(dependent)]
    return Loss(minimize, live, dependent, roots, _uncut(chain, live, nodes), _two_passes(chain, dependent, minimize))


GRADIENT_RESULTS = frozenset({"sequence", "ragged", "per_sequence"})
"""Results of Python operators that are tensors of torch, and so may carry a gradient; others are plain numbers."""


def cuts_gradient(node: Node) -> bool:
    """Whether this is a Python operator whose results are plain numbers."""
    if node.op != "call":
        return False
    result = node.attrs["operator"].result
    hints = [h for _, h in result] if isinstance(result, tuple) else [result]
    return not any(h.sees in GRADIENT_RESULTS for h in hints)


def carries_gradient(live: Iterable[int], body: Iterable[Node]) -> frozenset[int]:
    """The nodes through which the gradient of the live phases flows."""
    reached = set(live)
    for node in body:
        stops = node.op == "rank" or node.attrs.get("fn") in NO_GRADIENT or cuts_gradient(node)
        condition = "0" if node.attrs.get("fn") == "where" else "where"
        values = [a for name, a in node.args.items() if isinstance(a, Ref) and name != condition]
        if not stops and any(a.id in reached for a in values):
            reached.add(node.id)
    return frozenset(reached)


def depending(live: Iterable[int], body: Iterable[Node]) -> frozenset[int]:
    """The given nodes of a block, and everything in it that is computed from them."""
    reached = set(live)
    for node in body:
        if any(r in reached for r in node.refs()):
            reached.add(node.id)
    return frozenset(reached)


def _boundary(needed: set[int], inside: set[int], nodes: Mapping[int, Node]) -> set[int]:
    """What the update's block reads from outside, and the values it makes of it."""
    direct = {r for i in needed & inside for r in nodes[i].refs()}
    return (direct & needed) | (needed & inside)


def _roots(nodes: Iterable[Node]) -> tuple[Axis, ...]:
    found = {n.type.axis.root for n in nodes if n.type.axis}
    return tuple(sorted(found, key=str))


def _uncut(chain: list[Node], live: Iterable[int], nodes: Mapping[int, Node]) -> tuple[Axis, ...]:
    axes: list[Axis | None] = []
    for id in live:
        sequences = nodes[id].args["sequences"]
        axes.append(nodes[sequences.id].type.axis if isinstance(sequences, Ref) else None)
    joining = (n for n in chain if n.op in ("reduce", "rank", "call") and not _sees_all(n))
    axes += [_joined(node, node.type.axis) for node in joining if node.type.axis is not None]
    uncut: dict[Axis, Axis] = {}
    for axis in axes:
        if axis is not None:
            uncut[axis.root] = common(uncut.get(axis.root, axis), axis) or axis.root
    return tuple(sorted(uncut.values(), key=str))


def _joined(node: Node, axis: Axis) -> Axis:
    """The axis whose rows hold together everything that one result of a node on `axis` is made of."""
    if node.op == "reduce":
        return axis
    by = node.attrs.get("by") if node.op == "rank" else None
    if by is None:
        return axis.parent or axis
    return next((a for a in reversed(axis.chain()) if a.kind == by.kind), axis)


def _sees_all(node: Node) -> bool:
    """Whether a result is made of all rows of the minibatch, so that no cut leaves it whole."""
    return is_scoped(node) and (
        node.type.axis is None or (node.op == "rank" and node.attrs.get("by") is None) or node.op == "call"
    )


def common(a: Axis | None, b: Axis | None) -> Axis | None:
    """The innermost axis above both."""
    if a is None or b is None:
        return None
    return next((x for x in a.chain() if x in b.chain()), None)


def _two_passes(chain: list[Node], dependent: frozenset[int], minimize: Node) -> str | None:
    """Why a loss needs the full sums before any gradient; None if it is linear in them (see `Loss`)."""
    sums: set[int] = set()
    for node in chain:
        reason = _pooled(node, dependent) if _sees_all(node) else _mixed(node, sums)
        if reason:
            return reason
        if node.type.axis is None:
            sums.add(node.id)
    return None


def _pooled(node: Node, dependent: frozenset[int]) -> str | None:
    if node.op != "reduce":
        return f"`{node.name}` sees the whole minibatch"
    where = node.args.get("where")
    if isinstance(where, Ref) and where.id in dependent:
        return f"what `{node.attrs['fn']}` counts depends on the trained model"
    if node.attrs["fn"] not in ("mean", "sum"):
        return f"`{node.attrs['fn']}` over the minibatch isn't linear"
    return None


def _mixed(node: Node, sums: set[int]) -> str | None:
    used = [k for k, a in node.args.items() if isinstance(a, Ref) and a.id in sums]
    if not used:
        return None
    if node.type.axis is not None:
        return "a sum over the minibatch is read by its rows again"
    fn = node.attrs.get("fn")
    linear = fn in ("+", "-", "neg") or (fn == "*" and len(used) == 1) or (fn == "/" and used == ["0"])
    return None if linear else f"`{fn}` of sums over the minibatch isn't linear"


def containers(graph: Graph) -> dict[int, int]:
    """For every node, the node of the flow's own block that holds it (or is it)."""
    return {n.id: top.id for top in graph.nodes for n in top.walk()}
