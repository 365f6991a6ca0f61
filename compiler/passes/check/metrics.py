"""Metrics: a step records one number under each name."""

from collections.abc import Iterator, Sequence

from ....dsl.diagnostics import Note, Report
from ...facts import Places
from ...graph import Graph, Node

TAKEN = frozenset({"step", "seconds", "tokens_per_second"})
"""What a run writes under these names of each step."""

SOMETIMES = frozenset({"when", "every"})
"""Blocks that don't run in every step, so that two of them may record the same name in turn."""


def check_metrics(graph: Graph, report: Report, places: Places) -> None:
    seen: dict[str, tuple[Node, Node | None]] = {}
    for metric, block in _metrics(graph.nodes, None):
        name = metric.attrs["metric"]
        if name in TAKEN:
            message = f"metric `{name}` is already what every step records of itself"
            report.add("E0103", message, metric.span, help="give it another name")
        first, its_block = seen.setdefault(name, (metric, block))
        in_turn = block is not its_block and block is not None and its_block is not None
        if first is not metric and not in_turn:
            notes = (Note("first recorded here", first.span),)
            message = f"metric `{name}` is recorded twice in a step"
            report.add("E0102", message, metric.span, notes=notes, help="give the second another name")


def _metrics(block: Sequence[Node], within: Node | None) -> Iterator[tuple[Node, Node | None]]:
    """Every metric, with the innermost block around it that may be skipped."""
    for node in block:
        if node.op == "metric":
            yield node, within
        yield from _metrics(node.body, node if node.op in SOMETIMES else within)
