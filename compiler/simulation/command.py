"""`flowc simulate`: a flow on a cluster, or a decision that was found before."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...dsl.diagnostics import FlowError
from ..cluster import Cluster, Node
from ..commands import checked_to_plan, report
from ..compilation import Checked, load_source
from ..planning import Wishes, wishes_of
from ..search.decision import Decision, decode
from ..targets import BadSetting, split_target
from .durations import Durations
from .report import as_json, report_json, report_text
from .result import Options, Result
from .scaling import PICTURES, Point, draw_scaling, scaling_json, scaling_text
from .searched import searched
from .setup import durations_of
from .simulation import Simulation
from .trace import trace_json

HOUR = 3600.0
NO_ROOM = "E0507"
TOO_LITTLE = "every phase takes its decided time: of lengths a decision says too little (simulate the flow instead)"


def simulate_command(args: argparse.Namespace) -> int:
    """Simulate, and report. Returns 1 if the flow or its placement is refused. Raises BadSetting."""
    _check(args)
    options = _options(args)
    if args.flow.endswith(".json"):
        return _one(args, options, _read(args.flow))
    path, name = split_target(args.flow)
    source = None
    try:
        source = load_source(path, name)
        checked = checked_to_plan(source, name, args.set)
        report(checked.warnings, source.loader.sources, args.format, quiet_json=True)
        if args.vary:
            return _scaling(args, options, checked)
        return _one(args, options, _of_flow(checked, wishes_of(args, checked), args.seed))
    except FlowError as error:
        report(error.diagnostics, source.loader.sources if source else {}, args.format)
        return 1


def _check(args: argparse.Namespace) -> None:
    """Raise BadSetting for options that say nothing together."""
    is_decision = args.flow.endswith(".json")
    if is_decision and (args.cluster or args.set or args.vary):
        raise BadSetting("a decision is for its own flow, parameters and cluster: simulate the flow instead")
    if not is_decision and args.cluster is None:
        raise BadSetting("`flowc simulate FLOW` needs --cluster, such as --cluster 64xH100")
    if args.output and not args.vary:
        raise BadSetting("`-o` is for the picture of a curve: give --vary nodes=1,2,4 too, or --trace FILE")
    if args.trace and args.vary:
        raise BadSetting("`--trace` is of one run: leave out --vary")
    if args.output and args.output.suffix.lower() not in PICTURES:
        raise BadSetting(f"`-o {args.output}`: the picture is a {' or a '.join(PICTURES)}")


def _options(args: argparse.Namespace) -> Options:
    try:
        return Options(
            args.steps,
            args.seed,
            not args.as_decided,
            not args.free,
            args.mtbf * HOUR if args.mtbf is not None else None,
            args.save_every,
            args.commit,
            args.restart,
        )
    except ValueError as error:
        raise BadSetting(str(error)) from None


# ---------------------------------------------------------------- one run


@dataclass(frozen=True)
class Given:
    """What is simulated: a decision, the durations of its phases, and what was assumed of them."""

    decision: Decision
    durations: Durations
    assumptions: tuple[str, ...]


def _one(args: argparse.Namespace, options: Options, given: Given) -> int:
    result = _run(given, options)
    if args.trace:
        args.trace.write_text(trace_json(result, given.decision), encoding="utf-8")
    if args.format == "json":
        sys.stdout.write(as_json(report_json(result, given.decision, given.assumptions)))
        return 0
    sys.stdout.write(report_text(result, given.decision, given.assumptions))
    if args.trace:
        print(f"\n{args.trace}: open it in https://ui.perfetto.dev")
    return 0


def _run(given: Given, options: Options) -> Result:
    """Simulate. Raises BadSetting for a decision that can't run."""
    drawn = options.drawn and bool(given.durations.engines)
    durations = given.durations if drawn else Durations()
    try:
        return Simulation(given.decision, replace(options, drawn=drawn), durations).run()
    except ValueError as error:
        raise BadSetting(f"this run can't be simulated: {error}") from None


def _of_flow(checked: Checked, wishes: Wishes, seed: int) -> Given:
    found = searched(checked, wishes)
    durations = durations_of(found.decision, found.problem, found.prices, seed)
    return Given(found.decision, durations, found.decision.assumptions)


def _read(path: str) -> Given:
    """A decision, or the one in a plan that was compiled with `--cluster`. Raises BadSetting."""
    data = Path(path).read_bytes()
    try:
        whole = json.loads(data)
        if isinstance(whole, dict) and "program" in whole:
            if "decision" not in whole:
                raise ValueError("this plan has no decision: compile it with --cluster")
            data = json.dumps(whole["decision"]).encode()
        decision = decode(data)
    except ValueError as error:
        raise BadSetting(f"`{path}`: {error}") from None
    return Given(decision, Durations(), (*decision.assumptions, TOO_LITTLE))


# ---------------------------------------------------------------- scaling


def _scaling(args: argparse.Namespace, options: Options, checked: Checked) -> int:
    wishes = wishes_of(args, checked)
    pools = wishes.cluster.pools
    if len(pools) > 1:
        kinds = " and ".join(f"{p.per_node} × {p.device.name}" for p in pools)
        raise BadSetting(f"`--vary nodes=…` is for nodes of one kind, but {wishes.cluster.name} has some of {kinds}")
    node = wishes.cluster.nodes[0]
    points = [_point(checked, wishes, options, node, n) for n in _counts(args.vary)]
    title = f"{checked.graph.flow} on nodes of {node.devices} × {node.device.name}"
    if args.format == "json":
        sys.stdout.write(as_json(scaling_json(points)))
    else:
        sys.stdout.write(f"{title}: {options.steps} steps each\n\n{scaling_text(points)}")
    if args.output:
        draw_scaling(points, args.output, title)
    return 0


def _point(checked: Checked, wishes: Wishes, options: Options, node: Node, count: int) -> Point:
    """One number of nodes. What fits on none of them is a point without a result; another error is one of all."""
    name = f"{count}x{node.devices}x{node.device.name}"
    there = replace(wishes, cluster=Cluster(name, (node,) * count))
    try:
        given = _of_flow(checked, there, options.seed)
    except FlowError as error:
        if any(d.is_error and d.code != NO_ROOM for d in error.diagnostics):
            raise
        return Point(count, None, None, "doesn't fit: too little memory")
    return Point(count, given.decision, _run(given, options))


def _counts(text: str) -> Sequence[int]:
    """The numbers of `nodes=1,2,4`."""
    name, _, numbers = text.partition("=")
    counts = [int(n) if n.strip().isdigit() else 0 for n in numbers.split(",")]
    if name != "nodes" or not all(counts):
        raise BadSetting(f"`--vary {text}`: write nodes=1,2,4, the numbers of nodes")
    return sorted(set(counts))
