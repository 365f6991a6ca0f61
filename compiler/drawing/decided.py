"""The scene of a placement decision."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import networkx as nx

from ..search.decision import Decision, Operator, Phase, Transfer
from .scene import Bar, Chip, Edge, EdgeKind, Lane, Node, Scene, Timeline, periods
from .told import (
    about_operator,
    about_phase,
    about_transfer,
    chip_text,
    facts,
    lane_caption,
    lane_memory,
    lost,
    notes,
    phase_lines,
    phase_parts,
    transfer_label,
)
from .words import counted

CONTROLLER = "controller"
HOST = "host"
ARRIVING = frozenset({"wake", "reload", "weights", "rows"})
"""Transfers shown with the phase that waits for them; the others are shown with the phase they follow."""


@dataclass(frozen=True)
class Link:
    """That one phase or operator reads what another made. queued: for how many steps it waits in between."""

    source: str
    target: str
    queued: int = 0


def decided(decision: Decision, links: Iterable[Link] = ()) -> Scene:
    """The picture of a decision: its slots as lanes, phases and operators as nodes, transfers as edges and chips.

    links: what its plan knows besides of what reads what, such as a phase an operator's result.
    """
    edges = tuple(_edges(decision, tuple(links)))
    nodes = (*_phases(decision, edges), *_operators(decision))
    lanes = [Lane(s.name, lane_caption(decision, s), lane_memory(decision, s.name)) for s in decision.slots]
    if any(n.lane == CONTROLLER for n in nodes):
        lanes.append(Lane(CONTROLLER, ("one process", "beside the ranks")))
    return Scene(
        decision.flow,
        "placement of one step",
        facts(decision),
        tuple(lanes),
        nodes,
        edges,
        _timeline(decision) if decision.period > 0 else None,
        notes(decision),
        lost(decision),
    )


# ---------------------------------------------------------------- nodes


def value_id(name: str) -> str:
    """The id of the node of an operator; phases go by their names, which have a dot."""
    return f"value {name}"


def _phases(decision: Decision, edges: Iterable[Edge]) -> Iterator[Node]:
    shown = {e.id for e in edges}
    chips: dict[str, list[Chip]] = {}
    for index, transfer in enumerate(decision.transfers):
        if transfer_id(index) not in shown:
            chip = Chip(transfer_id(index), transfer.kind, chip_text(transfer), about_transfer(transfer))
            chips.setdefault(_keeper(decision, transfer), []).append(chip)
    for phase in decision.phases:
        yield Node(
            phase.name,
            phase.slot,
            phase.kind,
            phase.name,
            _numbers(decision)[phase.name],
            phase_lines(phase),
            tuple(chips.get(phase.name, ())),
            about_phase(decision, phase),
            phase_parts(decision, phase),
        )


def _numbers(decision: Decision) -> dict[str, int]:
    """Phases counted from 1 in the order in which a batch meets them."""
    order = sorted(decision.phases, key=lambda x: (-x.ahead, x.start, x.name))
    return {x.name: number for number, x in enumerate(order, 1)}


def _operators(decision: Decision) -> Iterator[Node]:
    for x in decision.operators:
        yield Node(
            value_id(x.name),
            _where(decision, x.where),
            "operator",
            _title(x),
            lines=(x.function,),
            details=about_operator(x),
        )


def _title(operator: Operator) -> str:
    """The name of its value, or of the function where the value has none."""
    return operator.function.split(".")[-1] if operator.name.startswith("%") else operator.name


def _where(decision: Decision, where: str) -> str:
    """The lane of an operator: a slot, that of a phase, or the controller's."""
    if where in {s.name for s in decision.slots}:
        return where
    return next((x.slot for x in decision.phases if x.name == where), CONTROLLER)


def _keeper(decision: Decision, transfer: Transfer) -> str:
    """The phase that a transfer from or to host memory is shown with."""
    known = {x.name for x in decision.phases}
    ends = [transfer.before, *transfer.after]
    found = [n for n in (ends if transfer.kind in ARRIVING else [*ends[1:], ends[0]]) if n in known]
    slot = transfer.target if transfer.source == HOST else transfer.source
    return (found or [x.name for x in decision.on(slot)] or [x.name for x in decision.phases])[0]


# ---------------------------------------------------------------- edges


def transfer_id(index: int) -> str:
    """The id of a transfer, an edge or a chip."""
    return f"transfer {index}"


def _edges(decision: Decision, links: Sequence[Link]) -> Iterator[Edge]:
    """Transfers between phases, and what follows what without one and isn't implied by others."""
    ends = {i: e for i, t in enumerate(decision.transfers) if (e := _ends(decision, t))}
    order = _order(decision, links)
    flow = order.copy()
    for index, (source, target) in ends.items():
        transfer = decision.transfers[index]
        back = source == target or _goes_back(order, transfer, source, target)
        if not back:
            flow.add_edge(source, target)
        kind: EdgeKind = "weights" if transfer.kind == "weights" else "rows"
        label = transfer_label(decision, transfer, back)
        yield Edge(transfer_id(index), kind, source, target, label, back, about_transfer(transfer))
    carried = set(ends.values())
    queued = {(_id(decision, x.source), _id(decision, x.target)): x.queued for x in links}
    for source, target in order.edges:
        if (source, target) not in carried and not implied(flow, source, target):
            steps = queued.get((source, target), 0)
            label = f"queued {counted(steps, 'step')}" if steps > 0 else ""
            yield Edge(f"{source} → {target}", "follows", source, target, label)


def _id(decision: Decision, name: str) -> str:
    """The id of a phase's or an operator's node."""
    return name if any(x.name == name for x in decision.phases) else value_id(name)


def _order(decision: Decision, links: Iterable[Link]) -> "nx.DiGraph[str]":
    """What follows what in the flow of one batch."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(x.name for x in decision.phases)
    names = set(graph)
    graph.add_edges_from((a, x.name) for x in decision.phases for a in x.after if a in names)
    for x in decision.operators:
        graph.add_node(value_id(x.name))
        names.add(value_id(x.name))
    for x in decision.operators:
        sources = (a if a in names else value_id(a) for a in x.after)
        graph.add_edges_from((a, value_id(x.name)) for a in sources if a in names)
    for link in links:
        source, target = _id(decision, link.source), _id(decision, link.target)
        if {source, target} <= names and not nx.has_path(graph, target, source):
            graph.add_edge(source, target)
    return graph


def implied(graph: "nx.DiGraph[str]", source: str, target: str) -> bool:
    """Whether a longer way leads from one node to the other too."""
    return any(nx.has_path(graph, n, target) for n in graph.successors(source) if n != target)


def _ends(decision: Decision, transfer: Transfer) -> tuple[str, str] | None:
    """The phases that a transfer goes between; None if one of its ends is host memory or no phase."""
    known = {x.name: x for x in decision.phases}
    sources = [known[n] for n in transfer.after if n in known]
    if not sources and transfer.kind == "weights":
        sources = [x for x in known.values() if x.model == transfer.model and x.kind == "train"]
    if HOST in (transfer.source, transfer.target) or not sources or transfer.before not in known:
        return None
    there = [x for x in sources if x.slot == transfer.source] or sources
    return max(there, key=lambda x: x.start).name, transfer.before


def _goes_back(order: "nx.DiGraph[str]", transfer: Transfer, source: str, target: str) -> bool:
    """Whether a transfer is for the next step: weights, unless they are read in this one, and what would be a cycle."""
    if transfer.kind == "weights":
        return not nx.has_path(order, source, target)
    return bool(nx.has_path(order, target, source))


# ---------------------------------------------------------------- time


def _timeline(decision: Decision) -> Timeline:
    numbers = _numbers(decision)
    bars = [_phase_bar(decision, x, numbers[x.name]) for x in decision.phases]
    bars += [b for i, t in enumerate(decision.transfers) if (b := _transfer_bar(decision, t, i)) is not None]
    lanes = tuple(s.name for s in decision.slots)
    return Timeline(decision.period, lanes, tuple(bars), tuple(_busy(decision, bars, lane) for lane in lanes))


def _phase_bar(decision: Decision, x: Phase, number: int) -> Bar:
    step = x.ahead - periods(x.start, decision.period)
    return Bar(x.name, x.kind, x.name, number, (x.slot,), x.start, x.end, step)


def _transfer_bar(decision: Decision, t: Transfer, index: int) -> Bar | None:
    """The bar of a transfer; None of one that takes no time."""
    slots = {s.name for s in decision.slots}
    lanes = tuple(dict.fromkeys(n for n in (t.source, t.target) if n in slots))
    if t.end <= t.start or not lanes:
        return None
    waits = next((x.ahead for x in decision.phases if x.name == t.before), 0)
    step = waits - periods(t.start, decision.period)
    return Bar(transfer_id(index), t.kind, f"{t.model} {t.kind}".strip(), 0, lanes, t.start, t.end, step)


def _busy(decision: Decision, bars: Iterable[Bar], lane: str) -> float:
    """The fraction of a period in which something runs on a lane; what overlaps counts once."""
    pieces = sorted(p for b in bars if lane in b.lanes for p in b.pieces(decision.period))
    total, reached = 0.0, 0.0
    for start, end in pieces:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return min(1.0, total / decision.period)
