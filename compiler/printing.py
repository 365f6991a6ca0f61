"""The graph as text, as each pass left it."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..dsl.operators import Operator
from .dataflow import named
from .graph import AxisName, Graph, Node, Ref, Role, Size


def graph_text(graph: Graph) -> str:
    """One line per node, bodies indented."""
    nodes = graph.by_id()
    params = ", ".join(f"{k}={_constant(v)}" for k, v in graph.params.items())
    lines = [f"graph {graph.flow}({params})"]
    lines += [f"  model {_role(r)}" for r in graph.roles.values()]
    lines += [f"  state {s.name} = {s.initial}" for s in graph.states.values()]
    return "\n".join([*lines, *_block(graph.nodes, nodes, 1)]) + "\n"


def graph_json(graph: Graph) -> dict[str, Any]:
    """The same as plain data."""
    nodes = graph.by_id()
    return {
        "flow": graph.flow,
        "params": {k: _json(v, nodes) for k, v in graph.params.items()},
        "models": {r.name: _role(r).split(" = ", 1)[1] for r in graph.roles.values()},
        "states": {s.name: s.initial for s in graph.states.values()},
        "nodes": [_node_json(n, nodes) for n in graph.nodes],
    }


def _node_json(node: Node, nodes: Mapping[int, Node]) -> dict[str, Any]:
    return {
        "op": node.op,
        "name": node.name,
        "args": {k: {"ref": nodes[v.id].name} if isinstance(v, Ref) else _json(v, nodes) for k, v in node.args.items()},
        "attrs": {k: _json(v, nodes) for k, v in node.attrs.items() if v is not None},
        "type": str(node.type),
        "body": [_node_json(n, nodes) for n in node.body],
    }


def _json(value: Any, nodes: Mapping[int, Node]) -> Any:
    if isinstance(value, dict):
        return {k: _json(v, nodes) for k, v in value.items()}
    return value if isinstance(value, int | float | str | None) else _attr(value, nodes)


def _role(role: Role) -> str:
    made = f"start of {role.of}" if role.of else f"{role.kind}({role.path!r})"
    return f"{role.name} = {f'frozen({made})' if role.frozen else made}"


def _block(block: Iterable[Node], nodes: Mapping[int, Node], indent: int) -> list[str]:
    lines: list[str] = []
    for node in block:
        lines.append("  " * indent + _line(node, nodes))
        lines += _block(node.body, nodes, indent + 1)
    return lines


def _line(node: Node, nodes: Mapping[int, Node]) -> str:
    args = [f"{k}={_operand(v, nodes)}" if not k.isdigit() else _operand(v, nodes) for k, v in node.args.items()]
    attrs = [f"{k}={_attr(v, nodes)}" for k, v in node.attrs.items() if v is not None]
    typed = "" if node.type.dtype in ("none", "any") and node.type.axis is None else f"   : {node.type}"
    return f"{node.name} = {node.op}({', '.join([*args, *attrs])}){typed}"


def _operand(value: object, nodes: Mapping[int, Node]) -> str:
    return nodes[value.id].name if isinstance(value, Ref) else _constant(value)


def _constant(value: object) -> str:
    return str(value) if isinstance(value, Size) or not isinstance(value, str) else repr(value)


def _attr(value: Any, nodes: Mapping[int, Node]) -> str:
    match value:
        case AxisName(kind=kind, owner=owner):
            return f"{named(nodes, owner)}.{kind}" if owner else kind
        case Operator():
            return f"{value.module}.{value.name}"
        case dict():
            return (
                f"{value['name']}({', '.join(f'{k}={v}' for k, v in value.items() if k != 'name' and v is not None)})"
            )
    return _constant(value)
