"""How large a flow may be: beyond this it is a mistake, and is refused before it exhausts the machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..dsl.diagnostics import FlowError, Report, in_order
from ..dsl.source import Span

LARGEST_GRAPH = 20_000
"""Operator applications of one flow. The library's largest flow has about a hundred."""

DEEPEST = 5000
"""Python frames; an expression or a chain of names takes a few for each level."""


class TooLarge(Exception):
    """The graph has more nodes than any flow needs."""


@contextmanager
def bounded(report: Report, span: Span) -> Iterator[None]:
    """Refuse a flow that grows or nests without end."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, DEEPEST))
    try:
        yield
    except (RecursionError, TooLarge) as error:
        nested = isinstance(error, RecursionError)
        message = "this flow nests too deeply" if nested else f"this flow has more than {LARGEST_GRAPH} operations"
        help = "give parts of a long expression names" if nested else "a definition that calls another twice doubles it"
        report.add("E0116", message, span, help=help)
        raise FlowError(in_order(report.diagnostics)) from None
    finally:
        sys.setrecursionlimit(limit)
