"""`place` lines as requests of the search, and which of them can't be met together."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ...dsl.source import Span
from ..graph import Size
from .instance import Instance, Request
from .problem import Problem
from .solve import Effort, is_possible

DEGREES = ("tp", "pp", "dp", "fsdp")


class Line(Protocol):
    """A checked `place` line: its ranks where it says `on`, its options, and whose place it shares."""

    @property
    def ranks(self) -> range | None: ...
    @property
    def options(self) -> Mapping[str, object]: ...
    @property
    def span(self) -> Span: ...
    @property
    def beside(self) -> str | None: ...
    @property
    def is_on(self) -> bool: ...


def requests_of(problem: Problem, lines: Mapping[str, Line], texts: Mapping[str, str]) -> tuple[Request, ...]:
    """One request per line, for its phases that a step runs. lines: by phase. texts: of the files they are in."""
    known = {x.name for x in problem.phases}
    by_span: dict[Span, list[str]] = {}
    for name, line in lines.items():
        if name in known:
            by_span.setdefault(line.span, []).append(name)
    return tuple(_request(names, lines[names[0]], known, texts) for names in by_span.values())


def _request(names: Sequence[str], line: Line, known: set[str], texts: Mapping[str, str]) -> Request:
    options = line.options
    micro = options.get("micro")
    recompute = options.get("checkpointing")
    offload = options.get("offload")
    return Request(
        _quoted(line.span, texts),
        tuple(names),
        line.ranks if line.is_on else None,
        {d: v for d in DEGREES if isinstance(v := options.get(d), int)},
        micro.value if isinstance(micro, Size) else None,
        recompute if isinstance(recompute, bool) and any(n.endswith(".update") for n in names) else None,
        offload if isinstance(offload, bool) else None,
        line.beside if line.beside in known else None,
    )


def _quoted(span: Span, texts: Mapping[str, str]) -> str:
    """The line as it was written."""
    lines = texts.get(span.path, "").splitlines()
    return lines[span.line - 1].strip() if 0 < span.line <= len(lines) else "a `place` line"


def conflicting(instance: Instance) -> tuple[Request, ...] | None:
    """A smallest set of requests that can't be met together: without any one of them, the others can.

    None if nothing is possible even without requests.
    """
    if not is_possible(replace(instance, requests=())):
        return None
    kept = list(instance.requests)
    for request in instance.requests:
        others = [r for r in kept if r is not request]
        if not is_possible(replace(instance, requests=tuple(others)), Effort(5.0)):
            kept = others
    return tuple(kept)
