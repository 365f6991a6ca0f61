"""The graph in Mermaid's language, which many Markdown viewers draw: lanes as subgraphs."""

from collections.abc import Iterator

from .palette import LIGHT, PALETTE, hue
from .scene import Edge, Node, Scene

ARROW = {"follows": "-->", "rows": "==>", "weights": "-.->"}
SHAPE = {"operator": "([{}])", "source": "[({})]"}
ENTITIES = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;", "\\": "#92;", "|": "#124;"}


def mermaid(scene: Scene) -> str:
    """The scene as a flow chart."""
    return "\n".join(_lines(scene)) + "\n"


def _lines(scene: Scene) -> Iterator[str]:
    yield "flowchart LR"
    ids = {n.id: f"n{i}" for i, n in enumerate(scene.nodes, 1)}
    for index, lane in enumerate(scene.lanes, 1):
        yield f"  subgraph lane{index}[{quoted(lane.name, ', '.join(lane.caption))}]"
        yield from (f"    {ids[n.id]}{_node(n)}:::{hue(n.kind)}" for n in scene.nodes if n.lane == lane.name)
        yield "  end"
    yield from (f"  {ids[e.source]} {_arrow(e)} {ids[e.target]}" for e in scene.edges)
    for kind in dict.fromkeys(hue(n.kind) for n in scene.nodes):
        colour, tint, ink = PALETTE[kind][LIGHT], PALETTE[f"{kind}-tint"][LIGHT], PALETTE["ink"][LIGHT]
        yield f"  classDef {kind} fill:{tint},stroke:{colour},color:{ink}"


def _node(node: Node) -> str:
    number = f"{node.number} " if node.number else ""
    text = quoted(number + node.title, *node.lines, *(c.text for c in node.chips))
    return SHAPE.get(node.kind, "[{}]").replace("{}", text)


def _arrow(edge: Edge) -> str:
    return ARROW[edge.kind] + (f"|{quoted(edge.label)}|" if edge.label else "")


def quoted(*lines: str) -> str:
    """A text of Mermaid in quotes; characters that mean something there are entities."""
    escaped = ("".join(ENTITIES.get(c, c if c.isprintable() else " ") for c in line) for line in lines)
    return f'"{"<br/>".join(escaped)}"'
