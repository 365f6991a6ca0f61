"""`place` lines that change nothing of the step, which shows once it is simplified and scheduled."""

from collections.abc import Sequence

from ....dsl import ast
from ....dsl.diagnostics import Report
from ....dsl.modules import FlowModule
from ....dsl.source import Span
from ...graph import PHASES, Node
from ...placement import Placement
from ..schedule import Scheduled


def check_effects(module: FlowModule, scheduled: Scheduled, placement: Placement, report: Report) -> None:
    """Warn of lines that change nothing of the scheduled step: their values aren't in it, or their phases elsewhere."""
    graph = scheduled.graph
    every = [*graph.walk(), *(inner for a in scheduled.ahead for n in a.nodes for inner in n.walk())]
    names, inside = {n.name for n in every}, _only_in_updates(every)
    for line in (line for block in module.places() if block.flow == graph.flow for line in block.lines):
        match line.target:
            case ast.Name(id=name) if name not in graph.roles and name not in names:
                message = f"this line has no effect: the compiled step computes nothing under the name `{name}`"
                help = "it equals another value, or no output needs it: drop the line, or place what remains"
                report.add("W0501", message, line.span, help=help)
                phases = []
            case ast.Name(id=model):
                phases = [x for x in inside if x.startswith(f"{model}.")]
            case ast.Attr(base=ast.Name(id=model), name=phase):
                phases = [x for x in inside if x == f"{model}.{phase}"]
            case _:
                phases = []
        for phase in phases:
            _warn_of_update(phase, inside[phase], placement, line.span, report)


def _warn_of_update(phase: str, update: str, placement: Placement, span: Span, report: Report) -> None:
    if placement.spots.get(phase) in (None, placement.spot(update)):
        return
    message = f"this line has no effect on `{phase}`: it only runs within `{update}`, where that is"
    report.add("W0501", message, span, help=f"write `with {update}`, or drop the line")


def _only_in_updates(nodes: Sequence[Node]) -> dict[str, str]:
    """The phases that run in one update and nowhere else, and that update."""
    updates = {x.id: f"{n.attrs['model']}.update" for n in nodes if n.op == "update" for x in n.walk()}
    found: dict[str, set[str]] = {}
    for n in (n for n in nodes if n.op in PHASES):
        found.setdefault(f"{n.attrs['model']}.{n.op}", set()).add(updates.get(n.id, ""))
    return {phase: next(iter(where)) for phase, where in found.items() if len(where) == 1 and "" not in where}
