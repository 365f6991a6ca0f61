"""Schedule: an order of the step in which every version of a model is read before it is replaced, and what runs ahead.

All updates of a step are simultaneous: a read of version t comes before the update that makes t+1, a read of `m.next`
after it; where no order does that, version t is read from a snapshot. A draw with `max_staleness=k` runs k steps ahead
of the rest, with everything it is made of, and what only reads it may run between (see `stages`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from ...dsl.diagnostics import Note, Report
from ..dataflow import ancestors, containers
from ..graph import Graph, Node
from ..ordering import Edges, cycle, ordered
from .ahead import Ahead
from .snapshot import Before, reads_snapshot, snapshots, taken, without_snapshots
from .stages import stages


@dataclass(frozen=True)
class Scheduled:
    """A graph in execution order, and what runs ahead of the step, the stalest first."""

    graph: Graph
    ahead: tuple[Ahead, ...]


def schedule(graph: Graph, report: Report) -> Scheduled:
    """Order the graph. A cycle through `m.next` is reported; what another cycle needs twice is kept aside."""
    fresh = count(1 + max((n.id for n in graph.walk()), default=0))
    ordered = graph.with_nodes(_order(graph.nodes, fresh, report))
    ahead = _ahead(ordered, report)
    if len(ahead) == 1:
        ahead = (*ahead, *stages(_without_queued(ordered, ahead), ahead[0]))
    return Scheduled(_without_queued(ordered, ahead), ahead)


# ---------------------------------------------------------------- order


def _order(block: Sequence[Node], fresh: Iterator[int], report: Report) -> tuple[Node, ...]:
    nodes = {n.id: replace(n, body=_order(n.body, fresh, report)) for n in block}
    after, before = _version_edges(block)
    fixed = _data_edges(block) | after
    served = snapshots(list(nodes), fixed, before)
    if served is None:
        _report_cycle(fixed, nodes, report)
        return tuple(nodes.values())
    order = ordered(nodes, {*fixed, *(b.edge for b in before if b not in served)}) or []
    return (*_snapshots(served, nodes, fresh), *(nodes[i] for i in order))


def _snapshots(served: Iterable[Before], nodes: dict[int, Node], fresh: Iterator[int]) -> list[Node]:
    """The statements that take the snapshots; their readers in `nodes` are marked."""
    readers: dict[str, Node] = {}
    for each in served:
        readers.setdefault(each.role, nodes[each.reader])
        nodes[each.reader] = reads_snapshot(nodes[each.reader], each.role)
    return [taken(role, next(fresh), readers[role]) for role in sorted(readers)]


def _data_edges(block: Sequence[Node]) -> set[tuple[int, int]]:
    """A value is made before it is read."""
    holder = {inner.id: n.id for n in block for inner in n.walk()}
    made = {(holder[r], node.id) for node in block for r in node.inputs() if r in holder}
    return {(a, b) for a, b in made if a != b}


def _version_edges(block: Sequence[Node]) -> tuple[set[tuple[int, int]], list[Before]]:
    """What comes after a new version because it reads it, and what reads the old one."""
    after: set[tuple[int, int]] = set()
    before: list[Before] = []
    for writer in block:
        for role in sorted(_writes(writer)):
            for reader in (n for n in block if n.id != writer.id):
                versions = _reads(reader, role)
                if "next" in versions:
                    after.add((writer.id, reader.id))
                if "now" in versions:
                    before.append(Before(reader.id, writer.id, role))
    return after, before


def _writes(node: Node) -> set[str]:
    return {n.attrs["model"] for n in node.walk() if n.op in ("update", "next_model")}


def _reads(node: Node, role: str) -> set[str]:
    found = {
        n.attrs["version"] for n in node.walk() if n.attrs.get("model") == role and n.op not in ("update", "next_model")
    }
    return (found | {n.attrs["version"] for n in node.walk() if n.attrs.get("source") == role}) - {"live"}


def _report_cycle(edges: Edges, nodes: dict[int, Node], report: Report) -> None:
    around = [nodes[i] for i in sorted(cycle(edges))]
    first = next((n for n in around if n.op in ("update", "next_model")), around[0])
    notes = tuple(Note("which waits for this", n.span) for n in around if n is not first)
    message = "these can't be ordered: each needs the other's result, or the version that the other makes"
    report.add("E0306", message, first.span, notes=notes, help="read version t: drop a `.next`")


# ---------------------------------------------------------------- ahead


def _ahead(graph: Graph, report: Report) -> tuple[Ahead, ...]:
    holder = containers(graph)
    stale: dict[int, int] = {}
    for node in graph.walk():
        if node.op == "generate" and node.attrs["max_staleness"] > 0:
            _check_home(graph, node, holder, report)
            _check_version(node, report)
            stale[holder[node.id]] = max(stale.get(holder[node.id], 0), node.attrs["max_staleness"])
    groups = sorted(set(stale.values()), reverse=True)
    return tuple(_one_ahead(graph, k, [i for i, s in stale.items() if s == k], stale, report) for k in groups)


def _check_home(graph: Graph, node: Node, holder: dict[int, int], report: Report) -> None:
    top = next(n for n in graph.nodes if n.id == holder[node.id])
    if top.op in ("when", "every", "update"):
        report.add(
            "E0314",
            f"a draw in `{top.op}` can't be stale: it isn't made in every step",
            node.span,
            help="draw it outside, or drop max_staleness",
        )


def _check_version(node: Node, report: Report) -> None:
    if node.attrs["version"] == "next":
        message = (
            f"`{node.name}` is drawn {node.attrs['max_staleness']} steps ahead, so it can't wait for the next version"
        )
        report.add("E0314", message, node.span, help="drop `.next`, or drop max_staleness")


def _check_versions_read(node: Node, draw: Node, k: int, report: Report) -> None:
    """What a stale draw is made of reads version t alone: t+1 isn't there yet when it runs."""
    for inner in node.walk():
        if inner.attrs.get("version") == "next" and inner.id != draw.id:
            message = f"`{draw.name}` is drawn {k} steps ahead, but is made of a next version"
            notes = (Note("read here", inner.span),)
            report.add("E0314", message, draw.span, notes=notes, help="drop `.next` there, or drop max_staleness")


def _one_ahead(graph: Graph, k: int, draws: Sequence[int], stale: dict[int, int], report: Report) -> Ahead:
    nodes, holder = graph.by_id(), containers(graph)
    needed = {holder[i] for d in draws for i in ancestors(nodes[d].inputs() | {d}, nodes)}
    top = [n for n in graph.nodes if n.id in needed]
    for node in top:
        _check_versions_read(node, nodes[draws[0]], k, report)
        for draw in (n for n in node.walk() if n.op == "generate" and stale.get(holder[n.id]) != k):
            message = f"`{nodes[draws[0]].name}` is drawn {k} steps ahead, but is made of `{draw.name}`, which isn't"
            report.add(
                "E0314",
                message,
                nodes[draws[0]].span,
                notes=(Note("drawn here", draw.span),),
                help=f"give both `max_staleness={k}`",
            )
    given = [n for n in graph.nodes if n.op == "collected" and n.attrs["region"] in draws]
    keeps = [d for d in draws if nodes[d].op != "collect"] + [n.id for n in given]
    program = (*top, *(n for n in given if n.id not in needed))
    return Ahead(k, tuple(without_snapshots(n) for n in program), tuple(keeps))


def _without_queued(graph: Graph, ahead: Iterable[Ahead]) -> Graph:
    """The step itself: what comes out of a queue isn't computed again, nor is what only it needed."""
    nodes, queued = graph.by_id(), {i for a in ahead for i in a.keeps}
    regions = {n.attrs["region"] for n in graph.nodes if n.op == "collected" and n.id in queued}

    def is_root(node: Node) -> bool:
        return node.id not in queued | regions and node.op in _KEPT

    wanted: set[int] = set()
    stack = [n for n in graph.nodes if is_root(n)]
    holder = containers(graph)
    while stack:
        node = stack.pop()
        if node.id in wanted or node.id in queued:
            continue
        wanted.add(node.id)
        stack += [
            next(t for t in graph.nodes if t.id == holder[r])
            for r in node.inputs()
            if r not in queued and nodes[r].op != "error"
        ]
    return graph.with_nodes(tuple(n for n in graph.nodes if n.id in wanted))


_KEPT = frozenset({"snapshot", "update", "when", "every", "collect", "metric", "record", "next_state", "next_model"})
