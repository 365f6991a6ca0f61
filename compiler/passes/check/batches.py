"""Batch arithmetic: who needs which divisor, and where each number came from."""

import math
from collections.abc import Mapping

from ....dsl.diagnostics import Note, Report
from ...dataflow import Loss, loss_of
from ...facts import Places
from ...graph import Axis, Graph, Node, Size


def check_batches(graph: Graph, report: Report, places: Places) -> None:
    nodes = graph.by_id()
    counts = row_counts(graph)
    for update in graph.walk():
        loss = loss_of(update, nodes) if update.op == "update" else None
        if loss:
            _check_update(update, loss, counts, report)


def row_counts(graph: Graph) -> dict[str, tuple[int | None, Node]]:
    """Rows of each root axis by its owner, and the node that decides it. None: not known at compile time."""
    counts: dict[str, tuple[int | None, Node]] = {}
    for node in graph.walk():
        if node.op == "read":
            counts[node.name] = (node.attrs["batch"].value if node.attrs["batch"] else None, node)
    for node in graph.walk():
        if node.op == "collect":
            for read in (n for n in node.body if n.op == "read"):
                counts[read.name] = (node.attrs["target"], node)
    return counts


def _check_update(update: Node, loss: Loss, counts: Mapping[str, tuple[int | None, Node]], report: Report) -> None:
    size: Size | None = update.attrs["minibatch"]
    number: int | None = update.attrs["minibatches"]
    if size and number:
        message = "an update takes `minibatch=` or `minibatches=`, not both"
        report.add("E0109", message, update.span, help="`minibatches=` is for a loss with several roots")
    elif size and len(loss.roots) > 1:
        roots = " and ".join(f"`{r.owner}`" for r in loss.roots)
        message = f"`minibatch={size}` is ambiguous: the loss reads rows of {roots}"
        report.add("E0403", message, update.span, help="write `minibatches=4`: the same number for each")
    elif size:
        for root in loss.roots:
            _check_divides(update, root, size.value, counts, report)
    elif number:
        for root in loss.roots:
            _check_parts(update, root, number, counts, report)


def _check_divides(
    update: Node, root: Axis, size: int, counts: Mapping[str, tuple[int | None, Node]], report: Report
) -> None:
    rows, source = counts.get(root.owner, (None, update))
    if rows is not None and rows % size:
        nearest = nearest_divisors(rows, size)
        rest = f"{rows} = {rows // size} × {size} + {rows % size}"
        report.add(
            "E0401",
            f"`minibatch={size} prompts` doesn't divide the {rows} prompts of `{root.owner}` ({rest})",
            update.span,
            notes=(Note(f"{rows} prompts come from here", source.span),),
            help=f"nearest that divide {rows}: {' or '.join(f'`minibatch={d} prompts`' for d in nearest)}",
        )


def _check_parts(
    update: Node, root: Axis, number: int, counts: Mapping[str, tuple[int | None, Node]], report: Report
) -> None:
    rows, source = counts.get(root.owner, (None, update))
    if rows is not None and rows % number:
        nearest = nearest_divisors(rows, number)
        report.add(
            "E0401",
            f"`minibatches={number}` doesn't divide the {rows} prompts of `{root.owner}`",
            update.span,
            notes=(Note(f"{rows} prompts come from here", source.span),),
            help=f"nearest that divide {rows}: {' or '.join(f'`minibatches={d}`' for d in nearest)}",
        )


def nearest_divisors(rows: int, wanted: int) -> list[int]:
    """The divisors of `rows` next below and next above `wanted`."""
    small = [d for d in range(1, math.isqrt(rows) + 1) if rows % d == 0]
    divisors = sorted({*small, *(rows // d for d in small)})
    below = [d for d in divisors if d < wanted][-1:]
    return below + [d for d in divisors if d > wanted][:1]
