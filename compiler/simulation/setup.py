"""From a flow and its decision to what is drawn: the engines of its generations, as the cost model knows them."""

from collections.abc import Iterator
from dataclasses import replace

from ..cost import Generate
from ..cost import Layout as Laid
from ..search.decision import Decision, Phase, Slot
from ..search.prices import Prices
from ..search.problem import Problem
from .durations import Durations
from .replicas import Replicas

CACHE = "kv cache"
"""The kind of memory that shows how many sequences an engine runs at once."""


def durations_of(decision: Decision, problem: Problem, prices: Prices, seed: int) -> Durations:
    """Durations with lengths that are drawn for every generation of the decision that the flow has."""
    return Durations(seed, dict(_engines(decision, problem, prices)))


def _engines(decision: Decision, problem: Problem, prices: Prices) -> Iterator[tuple[str, Replicas]]:
    known = {x.name for x in problem.phases}
    for phase in decision.phases:
        if phase.kind == "generate" and phase.name in known:
            yield phase.name, replicas_of(phase, decision.slot(phase.slot), problem, prices)


def replicas_of(phase: Phase, slot: Slot, problem: Problem, prices: Prices) -> Replicas:
    """The engines of one phase on its slot, with as many sequences at once as their cache was decided for."""
    work = prices.work(problem.phase(phase.name))
    assert isinstance(work, Generate)
    laid = Laid(phase.layout.tp, phase.layout.pp, phase.layout.dp, phase.layout.fsdp, ep=phase.layout.ep)
    part = prices.part(slot.devices, slot.first)
    found = Replicas(prices.shapes[phase.model], work, laid, part, prices.constants)
    cache = phase.memory.resident.get(CACHE, 0.0) + phase.memory.transient.get(CACHE, 0.0)
    each = (work.prompt + work.lengths.weighted / 2) * found.engine.kv_bytes
    return replace(found, work=replace(work, slots=max(1, round(cache / each)))) if cache else found
