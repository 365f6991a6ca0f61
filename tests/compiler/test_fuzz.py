"""Damaged flows are refused, never crashed on: tokens and lines of the acceptance set changed at random."""

import re
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardflow.dsl.diagnostics import render

from .workbench import Workbench

TEXT = (Path(__file__).parent.parent / "data" / "flows.flow").read_text(encoding="utf-8")
HEAD, *FLOWS = re.split(r"^(?=flow |place )", TEXT, flags=re.MULTILINE)
TOKEN = re.compile(r'"[^"\n]*"|\w+|\*\*|[=<>]=|[^\w\s]|\s+')
WORDS = sorted({t for t in TOKEN.findall(TEXT) if t.strip()})
ODD = ["0", "-1", "1.5", "1e999", "9" * 30, "3 prompts", "64 tokens", "true", '""', "self.next", "x[0]", "not", "\t"]


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """One flow with up to three tokens replaced, dropped or added, and perhaps two lines swapped."""
    tokens = TOKEN.findall(draw(st.sampled_from(FLOWS)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(tokens) - 1))
        new = draw(st.sampled_from(WORDS) | st.sampled_from(ODD))
        tokens[at : at + draw(st.integers(0, 1))] = [new, " "] if draw(st.booleans()) else [new]
    lines = "".join(tokens).split("\n")
    if draw(st.booleans()):
        a, b = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        lines[a], lines[b] = lines[b], lines[a]
    return HEAD + "\n".join(lines)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged())
def test_damaged_flows_are_refused_not_crashed_on(bench: Workbench, text: str) -> None:
    for found in bench.found(text):
        shown = render(found, {str(bench.folder / "case.flow"): text})
        assert found.code in shown and "Ref(" not in shown and not re.search(r"%\d", found.message)
