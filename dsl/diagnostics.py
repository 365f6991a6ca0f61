"""Diagnostics: what the compiler refuses or warns of, as data, and how a person reads it."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .source import Span


@dataclass(frozen=True)
class Note:
    """A second place that explains the first (`k3` is defined here, the other axis was opened here)."""

    message: str
    span: Span | None = None


@dataclass(frozen=True)
class Diagnostic:
    """One refusal (`E….`) or warning (`W….`).

    message: a headline that stands alone, naming the offending value.
    label: what to say under the underlined span.
    help: what to do, with the nearest valid spelling or value where there is one.
    """

    code: str
    message: str
    span: Span | None = None
    label: str = ""
    notes: tuple[Note, ...] = ()
    help: str | None = None

    @property
    def is_error(self) -> bool:
        return self.code.startswith("E")


class FlowError(Exception):
    """Compilation stopped; `diagnostics` holds everything found, errors and warnings."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(f"{d.code}: {d.message}" for d in self.diagnostics))


@dataclass
class Report:
    """Gathers diagnostics so that all violations of a file are shown together, each once."""

    diagnostics: list[Diagnostic] = field(default_factory=list)

    def add(
        self,
        code: str,
        message: str,
        span: Span | None = None,
        *,
        label: str = "",
        notes: Iterable[Note] = (),
        help: str | None = None,
    ) -> None:
        found = Diagnostic(code, message, span, label, tuple(notes), help)
        if found not in self.diagnostics:
            self.diagnostics.append(found)

    @property
    def has_errors(self) -> bool:
        return any(d.is_error for d in self.diagnostics)

    def raise_if_errors(self) -> None:
        """Raise FlowError with everything gathered, if any of it is an error."""
        if self.has_errors:
            raise FlowError(in_order(self.diagnostics))


def in_order(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Errors and warnings by place in the file."""
    return sorted(diagnostics, key=lambda d: (d.span.path, d.span.line, d.span.column) if d.span else ("", 0, 0))


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate a person most likely meant, or None."""
    found = difflib.get_close_matches(name, sorted(set(candidates)), n=1, cutoff=0.6)
    return found[0] if found else None


def suggest(name: str, candidates: Iterable[str]) -> str | None:
    """A help sentence: the nearest spelling if there is one, else all that is allowed."""
    allowed = sorted(set(candidates))
    close = nearest(name, allowed)
    if close:
        return f"did you mean `{close}`?"
    return f"allowed: {', '.join(f'`{a}`' for a in allowed)}" if allowed else None


def render(diagnostic: Diagnostic, sources: Mapping[str, str]) -> str:
    """The diagnostic as a person reads it: headline, the line with its span underlined, notes, help.

    sources: text by path, for the quoted lines; a path that is missing is named without a quote.
    """
    kind = "error" if diagnostic.is_error else "warning"
    parts = [f"{kind}[{diagnostic.code}]: {diagnostic.message}"]
    if diagnostic.span:
        parts += _quote(diagnostic.span, diagnostic.label, sources)
    for note in diagnostic.notes:
        parts.append(f"  note: {note.message}")
        if note.span:
            parts += _quote(note.span, "", sources)
    if diagnostic.help:
        parts.append(f"  help: {diagnostic.help}")
    return "\n".join(parts)


def _quote(span: Span, label: str, sources: Mapping[str, str]) -> list[str]:
    lines = sources.get(span.path, "").splitlines()
    where = f"  --> {span}"
    if not 1 <= span.line <= len(lines):
        return [where]
    text = lines[span.line - 1]
    end = span.end_column if span.end_line == span.line else len(text) + 1
    marks = "^" * max(1, end - span.column)
    gutter = str(span.line)
    pad = " " * len(gutter)
    return [
        where,
        f" {pad} |",
        f" {gutter} | {text}",
        f" {pad} | {' ' * (span.column - 1)}{marks} {label}".rstrip(),
    ]


def to_json(diagnostic: Diagnostic) -> dict[str, Any]:
    """The diagnostic as plain data, for `--format json` and editors."""
    return {
        "code": diagnostic.code,
        "severity": "error" if diagnostic.is_error else "warning",
        "message": diagnostic.message,
        "span": _span_json(diagnostic.span),
        "label": diagnostic.label,
        "notes": [{"message": n.message, "span": _span_json(n.span)} for n in diagnostic.notes],
        "help": diagnostic.help,
    }


def _span_json(span: Span | None) -> dict[str, Any] | None:
    if span is None:
        return None
    return {
        "path": span.path,
        "start": {"line": span.line, "column": span.column},
        "end": {"line": span.end_line, "column": span.end_column},
    }
