"""Simplify: equal pure calls are computed once; what an update's minibatches can't change is computed before it.

Reads are pure too, but each opens its own axis, so they stay apart. Reductions and ranks see the rows in scope, so
they are shared only within one block. A value stays in a `when`, `every` or `collect` it was written in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..graph import EFFECTS, AxisName, Graph, Node, Operand, Ref, is_draw, is_scoped


@dataclass
class _Block:
    """The block being rebuilt: its nodes so far, and which computations it already holds."""

    kind: str
    parent: "_Block | None" = None
    nodes: list[Node] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    ids: set[int] = field(default_factory=set)


def simplify(graph: Graph) -> Graph:
    renamed: dict[int, int] = {}
    block = _Block("flow")
    for node in graph.nodes:
        _place(node, block, renamed)
    return graph.with_nodes(tuple(block.nodes))


def _place(node: Node, block: _Block, renamed: dict[int, int]) -> None:
    """Put a node into the block it belongs to, or reuse an equal one."""
    node = _rename(node, renamed)
    home = _home(node, block)
    if node.op in EFFECTS or is_draw(node) or node.op in ("read", "collected", "error"):
        inner = _Block(node.op, home)
        for child in node.body:
            _place(child, inner, renamed)
        home.nodes.append(replace(node, body=tuple(inner.nodes)))
        home.ids.add(node.id)
        return
    key = _key(node)
    twin = _known(key, home, is_scoped(node) or node.attrs.get("version") == "live")
    if twin is not None:
        renamed[node.id] = twin
        _take_name(home, twin, node)
        return
    home.known[key] = node.id
    home.nodes.append(node)
    home.ids.add(node.id)


def _home(node: Node, block: _Block) -> _Block:
    """The outermost block, out of updates only, in which everything the node reads is known."""
    if node.op in EFFECTS or is_draw(node) or is_scoped(node) or node.attrs.get("version") == "live":
        return block
    while block.kind == "update" and block.parent and not any(r in block.ids for r in node.refs()):
        block = block.parent
    return block


def _rename(node: Node, renamed: Mapping[int, int]) -> Node:
    def operand(value: Operand) -> Operand:
        return Ref(renamed.get(value.id, value.id)) if isinstance(value, Ref) else value

    def attr(value: Any) -> Any:
        return (
            AxisName(value.kind, Ref(renamed.get(value.owner.id, value.owner.id)))
            if isinstance(value, AxisName) and value.owner
            else value
        )

    args = {k: operand(v) for k, v in node.args.items()}
    return replace(node, args=args, attrs={k: attr(v) for k, v in node.attrs.items()})


def _key(node: Node) -> str:
    """Equal for equal computations; a `keep` opens an axis of its own."""
    own = node.name if node.op == "keep" else ""
    attrs = sorted(node.attrs.items(), key=lambda i: i[0])
    return repr((node.op, sorted(node.args.items()), attrs, str(node.type), own))


def _known(key: str, block: _Block, local: bool) -> int | None:
    here: _Block | None = block
    while here:
        if key in here.known:
            return here.known[key]
        here = None if local else here.parent
    return None


def _take_name(block: _Block, id: int, other: Node) -> None:
    """An unnamed twin takes the user's name of the node it stands for."""
    if not other.is_named:
        return
    here: _Block | None = block
    while here:
        for i, node in enumerate(here.nodes):
            if node.id == id and not node.is_named:
                here.nodes[i] = replace(node, name=other.name)
        here = here.parent
