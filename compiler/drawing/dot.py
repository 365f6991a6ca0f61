"""The graph in Graphviz's language: lanes as clusters."""

from collections.abc import Iterator

from .palette import LIGHT, PALETTE, hue
from .scene import Edge, Node, Scene

STYLE = {"follows": "solid", "rows": "bold", "weights": "dashed"}
SHAPE = {"operator": "oval", "source": "cylinder"}


def dot(scene: Scene) -> str:
    """The scene for `dot`. Edges to the next step don't decide where nodes stand."""
    return "\n".join(_lines(scene)) + "\n"


def _lines(scene: Scene) -> Iterator[str]:
    yield f"digraph {quoted(scene.title)} {{"
    says = f"{scene.title}, {scene.subtitle}: " + ", ".join(f"{f.label.lower()} {f.value}" for f in scene.facts)
    yield f"  graph [label={quoted(says)}, labelloc=t, rankdir=LR, newrank=true, nodesep=0.3, ranksep=0.8];"
    yield '  graph [fontname="Helvetica"];'
    yield '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=11];'
    yield '  edge [fontname="Helvetica", fontsize=10];'
    ids = {n.id: f"n{i}" for i, n in enumerate(scene.nodes, 1)}
    for index, lane in enumerate(scene.lanes, 1):
        label = "\n".join([lane.name, ", ".join(lane.caption)])
        yield f"  subgraph cluster_{index} {{"
        yield f"    label={quoted(label)}; style=filled; color={quoted(PALETTE['lane'][LIGHT])};"
        yield from (f"    {ids[n.id]} {_node(n)};" for n in scene.nodes if n.lane == lane.name)
        yield "  }"
    yield from (f"  {ids[e.source]} -> {ids[e.target]} {_edge(e)};" for e in scene.edges)
    yield "}"


def _node(node: Node) -> str:
    number = f"{node.number} " if node.number else ""
    label = "\n".join([number + node.title, *node.lines, *(c.text for c in node.chips)])
    colour, tint = PALETTE[hue(node.kind)][LIGHT], PALETTE[f"{hue(node.kind)}-tint"][LIGHT]
    shape = f", shape={SHAPE[node.kind]}, style=filled" if node.kind in SHAPE else ""
    return f"[label={quoted(label)}, color={quoted(colour)}, fillcolor={quoted(tint)}{shape}]"


def _edge(edge: Edge) -> str:
    label = f"label={quoted(edge.label)}, " if edge.label else ""
    back = ", constraint=false" if edge.back else ""
    return f"[{label}style={STYLE[edge.kind]}{back}]"


def quoted(text: str) -> str:
    """A string of Graphviz: backslashes, quotes and line ends escaped, without control characters."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    escaped = "".join(c if c.isprintable() else " " for c in escaped)
    return f'"{escaped}"'
