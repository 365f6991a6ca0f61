"""Infer: every value gets its dtype and its axes; what doesn't fit is reported, and typed `error`."""

from dataclasses import replace

from ....dsl.diagnostics import Note, Report
from ...facts import Places
from ...graph import ERROR, Graph, Node, Type
from .context import Context, Refusal
from .rules import RULES


def infer(graph: Graph, report: Report, places: Places) -> Graph:
    """The same graph with types. Every type error of the flow is reported."""
    context = Context(graph, report, places)
    return graph.with_nodes(tuple(_infer_node(context, n) for n in graph.nodes))


def _infer_node(context: Context, node: Node) -> Node:
    body = tuple(_infer_node(context, n) for n in node.body)
    typed = replace(node, body=body, type=_type(context, node))
    context.nodes[node.id] = typed
    return typed


def _type(context: Context, node: Node) -> Type:
    rule = RULES.get(node.op)
    if rule is None or any(context.type(a) == ERROR for a in node.args.values()):
        return ERROR
    try:
        return rule(context, node)
    except Refusal as refusal:
        notes = list(refusal.notes)
        if node.origin:
            notes.append(Note("in this definition", node.origin))
        span = context.span(refusal.at, node.span)
        if node.origin and (refusal.code, span) in context.said:
            return ERROR  # a definition stumbles over one argument in several places
        context.said.add((refusal.code, span))
        context.report.add(refusal.code, refusal.message, span, label=refusal.label, notes=notes, help=refusal.help)
        return ERROR
