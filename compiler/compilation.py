"""The public stages of a compilation: a source file, its checked graph, its plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ..dsl import ast
from ..dsl.diagnostics import Diagnostic, FlowError, Report, in_order, suggest
from ..dsl.modules import FlowModule, FlowSymbol, Loader
from .facts import Places
from .graph import Constant, Graph
from .limits import bounded
from .passes.check import check
from .passes.check.effects import check_effects
from .passes.check.place import Target, check_placed_flows, place_flow
from .passes.elaborate import elaborate
from .passes.emit import emit
from .passes.infer import infer
from .passes.layout import lay_out
from .passes.prune import prune
from .passes.record import record
from .passes.schedule import Scheduled, schedule
from .passes.simplify import simplify
from .placement import Placement
from .plan import Plan, sealed

UNREADABLE = "E00"
"""How the codes of the front ends begin: a part of a file couldn't be read."""


@dataclass(frozen=True)
class Source:
    """A loaded file: its module, what was found wrong so far, and texts for quoting."""

    module: FlowModule
    report: Report
    loader: Loader

    @property
    def places(self) -> Places:
        return Places((self.module.path.parent, Path.cwd()))


@dataclass(frozen=True)
class Checked:
    """A flow that passed every check, with its typed graph, the order of its step, and its warnings.

    extras: what a search for its placement adds to its plan.
    """

    source: Source
    flow: ast.Flow
    graph: Graph
    scheduled: Scheduled
    placement: Placement
    target: Target
    warnings: tuple[Diagnostic, ...]
    extras: Mapping[str, Any] = field(default_factory=dict)


def load_source(path: Path, flow: str | None = None) -> Source:
    """Load a `.flow` file, or trace flow `flow` of a Python file. Raises OSError if the file can't be read."""
    report = Report()
    loader = Loader(report)
    if path.suffix == ".py":
        from ..dsl.tracing import load_flow

        tree = load_flow(str(path), flow or "")
        loader.sources[str(path)] = path.read_text(encoding="utf-8")
        return Source(loader.load_tree(tree, path, path.stem), report, loader)
    return Source(loader.load_file(path), report, loader)


def choose_flow(source: Source, name: str | None) -> FlowSymbol:
    """The flow of that name, or the only one of the file. Raises FlowError."""
    flows = source.module.flows()
    if name is None and len(flows) == 1:
        return next(iter(flows.values()))
    if name in flows:
        return flows[name]
    source.report.raise_if_errors()
    path = source.module.path.name
    if not flows:
        source.report.add("E0115", f"`{path}` holds no flow", help="it starts with `flow NAME():`")
    elif name is None:
        help = f"name one: {', '.join(f'`{path}:{f}`' for f in flows)}"
        source.report.add("E0115", f"`{path}` holds {len(flows)} flows", help=help)
    else:
        source.report.add("E0115", f"`{path}` holds no flow `{name}`", help=suggest(name, flows))
    raise FlowError(in_order(source.report.diagnostics))


def check_flow(
    source: Source, chosen: FlowSymbol, settings: Mapping[str, Constant], target: Target | None = None
) -> Checked:
    """Type and check one flow for a target. Raises FlowError with everything found, if any of it is an error."""
    target = target or Target()
    report = source.report
    if any(d.code.startswith(UNREADABLE) for d in report.diagnostics):
        report.raise_if_errors()  # what couldn't be read is missing: its names would only be reported as unknown
    with bounded(report, chosen.flow.span):
        graph = infer(elaborate(chosen.module, chosen.flow, settings, report), report, source.places)
        check(graph, report, source.places)
        check_placed_flows(source.module, report)
        placement = place_flow(source.module, graph, report, source.places, target)
        report.raise_if_errors()  # a graph in error has no order to speak of
        scheduled = schedule(prune(record(simplify(graph))), report)
        if target.is_multi:
            check_effects(source.module, scheduled, placement, report)
    report.raise_if_errors()
    return Checked(source, chosen.flow, graph, scheduled, placement, target, tuple(in_order(report.diagnostics)))


def compile_flow(checked: Checked) -> Plan:
    """The plan of a checked flow for its target."""
    source = checked.source
    text = "\0".join(source.loader.sources[path] for path in sorted(source.loader.sources))
    plan = emit(checked.scheduled, source.module.path.parent, text, checked.placement)
    plan = lay_out(plan, checked.placement) if checked.target.is_multi else plan
    return sealed(msgspec.structs.replace(plan, **checked.extras)) if checked.extras else plan
