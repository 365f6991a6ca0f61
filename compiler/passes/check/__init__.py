"""Check: everything that types don't say and that must hold before anything starts. All violations are reported."""

from collections.abc import Callable

from ....dsl.diagnostics import Report
from ...facts import Places
from ...graph import Graph
from .batches import check_batches
from .collects import check_collects
from .metrics import check_metrics
from .sampling import check_sampling
from .sources import check_sources
from .updates import check_updates
from .usage import check_usage

Check = Callable[[Graph, Report, Places], None]

CHECKS: tuple[Check, ...] = (check_sources, check_updates, check_batches, check_collects, check_metrics)
ADVICE: tuple[Check, ...] = (check_sampling, check_usage)
"""Warnings that only mean something in a flow without errors."""


def check(graph: Graph, report: Report, places: Places) -> Graph:
    """Run every check; the graph is unchanged."""
    for each in CHECKS:
        each(graph, report, places)
    for each in () if report.has_errors else ADVICE:
        each(graph, report, places)
    return graph
