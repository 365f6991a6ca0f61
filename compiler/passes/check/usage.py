"""Values, models and parameters that nothing reads."""

from ....dsl.diagnostics import Report
from ...dataflow import ancestors
from ...facts import Places
from ...graph import EFFECTS, ERROR, Graph
from ..record import is_recorded


def check_usage(graph: Graph, report: Report, places: Places) -> None:
    nodes = graph.by_id()
    wanted = [n.id for n in nodes.values() if n.op in EFFECTS or n.type == ERROR or is_recorded(n)]
    used = ancestors(wanted, nodes)
    collected = {n.id for n in nodes.values() if n.op == "collected"}
    for node in nodes.values():
        if node.is_named and node.id not in used | collected and node.op != "error":
            report.add("W0101", f"`{node.name}` is never used", node.span, help="drop it, or record it with `metric`")
    _unused_roles(graph, report)
    _idle_states(graph, report)


def _idle_states(graph: Graph, report: Report) -> None:
    """States that nothing reads, or that never change."""
    read = {n.attrs["state"] for n in graph.walk() if n.op == "state"}
    changed = {n.attrs["state"] for n in graph.walk() if n.op == "next_state"}
    for name, state in graph.states.items():
        if name not in read:
            report.add("W0101", f"state `{name}` is never used", state.span, help="drop it, or record it with `metric`")
        elif name not in changed:
            help = f"write `next {name} = …`, or make it a parameter of the flow"
            report.add("W0103", f"state `{name}` never changes", state.span, help=help)


def _unused_roles(graph: Graph, report: Report) -> None:
    used = {n.attrs.get("model") for n in graph.walk()} | {n.attrs.get("source") for n in graph.walk()}
    used |= {n.attrs.get("tokenizer_of") for n in graph.walk()} | {r.of for r in graph.roles.values()}
    for role in graph.roles.values():
        if role.frozen and role.name not in used:
            report.add(
                "W0101", f"model `{role.name}` is never used", role.span, help="drop it: it would be loaded for nothing"
            )
