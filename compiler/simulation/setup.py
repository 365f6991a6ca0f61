"""From a flow and its decision to what is drawn: the engines of its generations, as the cost model knows them."""

from collections.abc import Iterator

from ..cost import Generate
from ..cost import Layout as Laid
from ..search.candidates import ENGINE_SLOTS
from ..search.decision import Decision, Phase
from ..search.prices import Prices
from ..search.problem import Problem
from .durations import Durations
from .replicas import Replicas


def durations_of(decision: Decision, problem: Problem, prices: Prices, seed: int) -> Durations:
    """Durations with lengths that are drawn for every generation of the decision that the flow has."""
    return Durations(seed, dict(_engines(decision, problem, prices)))


def _engines(decision: Decision, problem: Problem, prices: Prices) -> Iterator[tuple[str, Replicas]]:
    known = {x.name for x in problem.phases}
    for phase in decision.phases:
        if phase.kind == "generate" and phase.name in known:
            yield phase.name, replicas_of(phase, problem, prices)


def replicas_of(phase: Phase, problem: Problem, prices: Prices) -> Replicas:
    """The engines of one phase. How many sequences they run at once, a decision shows by its seconds alone."""
    spec = problem.phase(phase.name)
    part = prices.part(phase.layout.devices)
    laid = Laid(phase.layout.tp, phase.layout.pp, phase.layout.dp, phase.layout.fsdp)
    decided = phase.seconds * spec.work.every
    candidates = []
    for slots in ENGINE_SLOTS:
        work = prices.work(spec, slots)
        assert isinstance(work, Generate)
        candidates.append(Replicas(prices.shapes[phase.model], work, laid, part, prices.constants))
    return min(candidates, key=lambda r: abs(r.expected - decided))
