"""From a checked flow and a cluster to a placement decision, and from a decision to what the layout pass reads."""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from msgspec import to_builtins

from ..dsl.diagnostics import Diagnostic, FlowError
from .cluster import Cluster, ClusterError, cluster_of, parse_cluster
from .compilation import Checked, compile_flow
from .passes.check.place import Target, declared_cluster, placed_lines
from .placement import Placement, Spot
from .search.alternatives import alternatives
from .search.assumptions import BadLength, Lengths, parse_lengths
from .search.candidates import Limits, instance_of
from .search.decide import Decider
from .search.decision import Decision
from .search.instance import Instance, Request
from .search.polish import polished
from .search.prices import Prices, prices_of
from .search.problem import Problem, problem_of
from .search.refusal import refusal
from .search.requests import requests_of
from .search.solve import Effort, NoSolver, solve
from .shapes import ModelShape, ShapeError, shape_named
from .targets import BadSetting

RUNNABLE = Limits(tensor=False, pipeline=False, experts=False, sleeps=False)
"""What a run of this version carries out."""

GAP = 0.002
"""Proven gap at which the search of a large cluster stops."""

LARGE = 64
"""Devices from which on a cluster is large."""


@dataclass(frozen=True)
class Wishes:
    """What the command line says of a placement. models: names or paths whose shapes models have, by role."""

    cluster: Cluster
    lengths: Lengths = field(default_factory=Lengths)
    models: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)


def wishes_of(args: argparse.Namespace, checked: Checked) -> Wishes:
    """The wishes of a command line for a flow. Raises BadSetting, also for wishes without `--cluster`."""
    if args.cluster is None:
        given = next(o for o in ("prompt_tokens", "response_tokens", "model", "runnable") if getattr(args, o))
        raise BadSetting(f"`--{given.replace('_', '-')}` is for a placement: give `--cluster 16xH100` too")
    try:
        cluster = _cluster(args.cluster, checked)
        lengths = parse_lengths(args.prompt_tokens, args.response_tokens)
    except (ClusterError, BadLength) as error:
        raise BadSetting(str(error)) from None
    return Wishes(cluster, lengths, _overrides(args.model), RUNNABLE if args.runnable else Limits())


def _cluster(text: str, checked: Checked) -> Cluster:
    """The cluster that the flow's file declares by this name, else the one that the text describes."""
    module, name = checked.source.module, text.strip()
    found = declared_cluster(module, checked.graph, checked.source.places, name)
    if found is None:
        return parse_cluster(text, tuple(module.clusters()))
    return Cluster(name, tuple(n for part in found.parts for n in cluster_of(part.device, part.options, name).nodes))


def _overrides(given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise BadSetting(f"`--model {name}{equals}{value}` isn't ROLE=MODEL, such as `policy=llama-3.1-8b`")
    return {name: value for name, _, value in pairs}


def decide(checked: Checked, wishes: Wishes, with_alternatives: bool = True) -> Decision:
    """The best placement of a flow, and what lost. checked: for one process.

    Raises FlowError where none fits, and BadSetting.
    """
    problem = problem_of(compile_flow(checked), wishes.lengths)
    try:
        shapes = shapes_of(checked, problem, wishes.models)
        prices = prices_of(problem, wishes.cluster, shapes)
        instance = instance_of(problem, prices, _requests(checked, problem, wishes.cluster), wishes.limits)
        found = solve(instance, _effort(instance))
        if found is None:
            raise FlowError([*checked.warnings, _refused(checked, instance, prices, wishes.limits)])
        found = polished(instance, found)
        lost = alternatives(instance, found) if with_alternatives else ()
        return Decider(instance, prices, found).decided(lost)
    except (ShapeError, ClusterError, NoSolver) as error:
        raise BadSetting(str(error)) from None


def _effort(instance: Instance) -> Effort:
    return Effort(gap=0.0 if instance.devices < LARGE else GAP)


def shapes_of(checked: Checked, problem: Problem, models: Mapping[str, str]) -> dict[str, ModelShape]:
    """The shape of each model: as the command line says of it or of the model it copies, else of its path."""
    known = {m.name for m in problem.models}
    for name in models:
        if name not in known:
            raise BadSetting(f"`--model {name}=…`: this flow has no model `{name}`; it has {', '.join(sorted(known))}")
    paths = {m.name: models.get(m.name) or models.get(m.of or "") or m.path for m in problem.models}
    return {name: shape_named(path, checked.source.places) for name, path in paths.items()}


def _requests(checked: Checked, problem: Problem, cluster: Cluster) -> tuple[Request, ...]:
    source = checked.source
    ranks, span, lines = placed_lines(source.module, checked.graph, source.places)
    if ranks not in (None, cluster.devices):
        message = f"`place` is on a cluster of {ranks} devices, but a placement on {cluster.devices} was asked for"
        help = f"`--cluster` of {ranks} devices, or another cluster in the `place` block"
        raise FlowError([Diagnostic("E0505", message, span, help=help)])
    return requests_of(problem, lines, source.loader.sources)


def _refused(checked: Checked, instance: Instance, prices: Prices, limits: Limits) -> Diagnostic:
    told = refusal(instance, prices, limits)
    _, _, lines = placed_lines(checked.source.module, checked.graph, checked.source.places)
    phase = next((r.phases[0] for r in told.requests), None)
    span = lines[phase].span if phase is not None and phase in lines else checked.flow.span
    return Diagnostic(told.code, told.message, span, help=told.help)


# ---------------------------------------------------------------- what a plan is made of


def placement_of(decision: Decision, placement: Placement) -> Placement:
    """Spots of the layout pass for a decision, with what `place` lines say beside it."""
    phases = {name: dict(options) for name, options in placement.phases.items()}
    for x in decision.phases:
        options = phases.setdefault(x.name, {})
        if x.layout.micro:
            options["micro"] = x.layout.micro
        if x.layout.recompute:
            options["checkpointing"] = True
    spots = {x.name: _spot(decision, x.name) for x in decision.phases}
    return Placement(phases, spots, decision.devices)


def _spot(decision: Decision, name: str) -> Spot:
    phase = decision.phase(name)
    slot = decision.slot(phase.slot)
    return Spot(slot.first, slot.devices, slot.devices // phase.layout.fsdp, phase.layout.fsdp)


def demands(decision: Decision) -> tuple[str, ...]:
    """What a run must be able to do, beyond data parallelism, to carry a decision out."""
    return tuple(_demands(decision))


def _demands(decision: Decision) -> Iterator[str]:
    for x in decision.phases:
        for degree in ("tp", "pp", "ep"):
            if getattr(x.layout, degree) > 1:
                yield f"{degree}={getattr(x.layout, degree)} of {x.name}"
        if x.layout.sleeps:
            yield f"state of {x.name} in host memory between its phases"


def placed(checked: Checked, wishes: Wishes) -> Checked:
    """The flow with the best placement for many ranks, which its plan tells of. Raises as `decide` does."""
    decision = decide(checked, wishes)
    extras = {"decision": to_builtins(decision), "demands": demands(decision)}
    placement = placement_of(decision, checked.placement)
    return replace(checked, placement=placement, target=Target("multi", decision.devices), extras=extras)
