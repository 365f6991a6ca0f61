"""`collect`: one `keep` of rows that the block itself reads; what is used after it are kept rows."""

from collections.abc import Iterator, Mapping

from ....dsl.diagnostics import Note, Report
from ...facts import Places
from ...graph import ERROR, Axis, Graph, Node, Ref


def check_collects(graph: Graph, report: Report, places: Places) -> None:
    nodes = graph.by_id()
    for node in graph.nodes:
        if node.op == "collect":
            kept = _check_keep(node, nodes, report)
            if kept:
                _check_used_after(graph, node, kept, nodes, report)


def _check_keep(collect: Node, nodes: Mapping[int, Node], report: Report) -> Axis | None:
    """The axis whose rows the block keeps; None after reporting that there isn't exactly one."""
    keeps = [n for n in collect.body if n.op == "keep_rows"]
    if any(n.op == "error" or n.type == ERROR for n in collect.body):
        return None
    if len(keeps) != 1:
        message = f"a `collect` has one `keep … where`; this one has {len(keeps) or 'none'}"
        help = "join the conditions with `and`" if keeps else "say which rows count: `keep prompts where COND`"
        report.add("E0315", message, keeps[1].span if keeps else collect.span, help=help)
        return None
    rows = keeps[0].args["rows"]
    source = nodes[rows.id] if isinstance(rows, Ref) else None
    if source is None or source.op != "read" or source not in collect.body:
        message = "a round keeps rows that it reads itself" + (f"; `{source.name}` is read once" if source else "")
        help = "move the `read` into the `collect`: each round reads on"
        report.add("E0315", message, keeps[0].span, help=help)
        return None
    if source.attrs["all"]:
        message = f"`{source.name}` reads the whole file: the next round has nothing left to read"
        report.add("E0315", message, source.span, help="read a batch: `batch=64 prompts`")
    return keeps[0].type.axis


def _check_used_after(graph: Graph, collect: Node, kept: Axis, nodes: Mapping[int, Node], report: Report) -> None:
    """A value that isn't made of the kept rows has no meaning after the block."""
    used = {r for n in nodes.values() for r in n.refs()}
    for node in graph.nodes:
        if node.op != "collected" or node.attrs["region"] != collect.id or node.id not in used:
            continue
        if node.type != ERROR and (node.type.axis is None or kept not in node.type.axis.chain()):
            inner = nodes[node.args["value"].id]  # type: ignore[union-attr]
            message = f"`{inner.name}` isn't made of the kept rows: it has no value after the `collect`"
            help = f"compute it after the block, from the kept rows of `{kept.owner}`"
            reader = next(_readers(graph, node.id))
            notes = (Note(f"`{inner.name}` is a value of each round", inner.span),)
            report.add("E0315", message, reader.span, notes=notes, help=help)


def _readers(graph: Graph, id: int) -> Iterator[Node]:
    return (n for n in graph.walk() if id in n.refs())
