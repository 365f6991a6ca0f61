"""Batch arithmetic: who needs which divisor, and where each number came from."""

import math
from collections.abc import Mapping

from ....dsl.diagnostics import Note, Report
from ...dataflow import Loss, loss_of
from ...facts import Places
from ...graph import Axis, Graph, Node, Size

Counts = Mapping[str, tuple[int | None, Node]]
"""Rows of each root axis by its owner, and the node that decides them. None: not known at compile time."""


def check_batches(graph: Graph, report: Report, places: Places) -> None:
    nodes = graph.by_id()
    counts = row_counts(graph)
    for update in graph.walk():
        loss = loss_of(update, nodes) if update.op == "update" else None
        if loss:
            _check_update(update, loss, counts, report)


def row_counts(graph: Graph) -> Counts:
    """How many rows each read (or the `collect` around it) gives."""
    counts: dict[str, tuple[int | None, Node]] = {}
    for node in graph.walk():
        if node.op == "read":
            counts[node.name] = (node.attrs["batch"].value if node.attrs["batch"] else None, node)
    for node in graph.walk():
        if node.op == "collect":
            for read in (n for n in node.body if n.op == "read"):
                counts[read.name] = (node.attrs["target"], node)
    return counts


def _check_update(update: Node, loss: Loss, counts: Counts, report: Report) -> None:
    size: Size | None = update.attrs["minibatch"]
    number: int | None = update.attrs["minibatches"]
    if size and number:
        message = "an update takes `minibatch=` or `minibatches=`, not both"
        report.add("E0109", message, update.span, help="`minibatches=` is for a loss with several roots")
    elif size and len(loss.roots) > 1:
        roots = " and ".join(f"`{r.owner}`" for r in loss.roots)
        message = f"`minibatch={size}` is ambiguous: the loss reads rows of {roots}"
        report.add("E0403", message, update.span, help=_number_instead(loss, size.value, counts))
    elif size:
        for root in loss.roots:
            _check_divides(update, root, size.value, counts, report)
    elif number:
        _check_parts(update, loss, number, counts, report)


def _check_divides(update: Node, root: Axis, size: int, counts: Counts, report: Report) -> None:
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


def _check_parts(update: Node, loss: Loss, number: int, counts: Counts, report: Report) -> None:
    known = _known(loss, counts)
    wrong = [(root, rows, source) for root, rows, source in known if rows % number]
    if wrong:
        shown = " and ".join(f"the {rows} prompts of `{root.owner}`" for root, rows, _ in wrong)
        common = math.gcd(*(rows for _, rows, _ in known))
        nearest = " or ".join(f"`minibatches={d}`" for d in nearest_divisors(common, number))
        report.add(
            "E0401",
            f"`minibatches={number}` doesn't divide {shown}",
            update.span,
            notes=tuple(Note(f"{rows} prompts come from here", source.span) for _, rows, source in wrong),
            help=f"nearest that divide {' and '.join(str(rows) for _, rows, _ in known)}: {nearest}",
        )


def _number_instead(loss: Loss, size: int, counts: Counts) -> str:
    """The `minibatches=` nearest to a `minibatch=` that fits all roots of a loss."""
    rows = [rows for _, rows, _ in _known(loss, counts)]
    number = 4 if not rows else _nearest(math.gcd(*rows), max(1, max(rows) // size))
    return f"write `minibatches={number}`: the same number for each"


def _nearest(rows: int, wanted: int) -> int:
    """The divisor of `rows` nearest to `wanted`."""
    return wanted if rows % wanted == 0 else min(nearest_divisors(rows, wanted), key=lambda d: abs(d - wanted))


def _known(loss: Loss, counts: Counts) -> list[tuple[Axis, int, Node]]:
    found = [(root, *counts[root.owner]) for root in loss.roots if root.owner in counts]
    return [(root, rows, source) for root, rows, source in found if rows is not None]


def nearest_divisors(rows: int, wanted: int) -> list[int]:
    """The divisors of `rows` next below and next above `wanted`."""
    small = [d for d in range(1, math.isqrt(rows) + 1) if rows % d == 0]
    divisors = sorted({*small, *(rows // d for d in small)})
    below = [d for d in divisors if d < wanted][-1:]
    return below + [d for d in divisors if d > wanted][:1]
