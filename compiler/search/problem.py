"""What is to be placed: the model phases of a plan, what each has to do in a step, and what waits for what.

Everything is read from the plan's own instructions: which phases there are, how many rows each sees, and which values
they hand on. Lengths of texts are the only assumption.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from .. import plan as p
from .assumptions import Lengths
from .decision import Kind, Operator, Quantity
from .dependencies import Found, dependencies
from .workload import Counts, Workload, arithmetic, combined, counted, limits_of, workload_of


@dataclass(frozen=True)
class PhaseSpec:
    """A phase to place.

    name: as `place` calls it. after: phases of the same period that must have ended. ahead: how many steps ahead of
    the step that reads its result it runs. beside: the phase whose slot it must share because it runs inside it.
    """

    name: str
    model: str
    kind: Kind
    work: Workload
    runs: tuple[str, ...]
    after: tuple[str, ...] = ()
    ahead: int = 0
    beside: str | None = None


@dataclass(frozen=True)
class ModelSpec:
    """A model of the flow. path: of the weights it starts with. trained: a phase updates it. of: whose copy it is."""

    name: str
    kind: str
    path: str
    trained: bool
    of: str | None = None


@dataclass(frozen=True)
class Problem:
    """All that the search needs to know of a flow.

    phases: in an order in which each comes after those it waits for. staleness: of the stalest draw, in steps.
    """

    flow: str
    phases: tuple[PhaseSpec, ...]
    models: tuple[ModelSpec, ...]
    operators: tuple[Operator, ...] = ()
    staleness: int = 0
    arithmetic: tuple[Quantity, ...] = ()
    assumptions: tuple[str, ...] = ()

    def phase(self, name: str) -> PhaseSpec:
        return next(x for x in self.phases if x.name == name)

    def update_of(self, model: str) -> str | None:
        """The phase that trains a model."""
        return next((x.name for x in self.phases if x.model == model and x.kind == "train"), None)

    def sampled_after_training(self) -> tuple[tuple[str, str], ...]:
        """(train phase, generate phase) of each model whose new weights go to an engine in every step."""
        pairs = ((self.update_of(x.model), x.name) for x in self.phases if x.kind == "generate")
        return tuple((update, name) for update, name in pairs if update)

    def followers(self) -> dict[str, tuple[str, ...]]:
        """Of each phase, all that wait for it in a period, directly or not."""
        before: dict[str, set[str]] = {}
        for x in self.phases:
            before[x.name] = {*x.after}.union(*(before[a] for a in x.after))
        return {x.name: tuple(y.name for y in self.phases if x.name in before[y.name]) for x in self.phases}

    def sharing(self) -> tuple[tuple[str, str], ...]:
        """(holder, other) of phases that use the same weights in the same layout: all of a model but generation.

        The holder trains the model, or reads it first.
        """
        pairs = []
        for model in self.models:
            own = [x.name for x in self.phases if x.model == model.name and x.kind != "generate"]
            holder = self.update_of(model.name) or next(iter(own), None)
            pairs += [(holder, name) for name in own if holder is not None and name != holder]
        return tuple(pairs)


def problem_of(plan: p.Plan, lengths: Lengths | None = None) -> Problem:
    """The placement problem of a plan for one process."""
    lengths = lengths or Lengths()
    counts = counted(plan, lengths)
    found = dependencies(plan)
    several = (combined(f.name, f.instructions, counts) for f in found.phases)
    return Problem(
        plan.flow,
        tuple(_phase(f, counts) for f in found.phases),
        tuple(ModelSpec(m.name, m.kind, m.path, m.trained, m.of) for m in plan.models),
        found.operators,
        max((a.staleness for a in plan.ahead), default=0),
        arithmetic(plan, counts, {f.name: f.instructions for f in found.phases}),
        (
            *lengths.stated(limits_of(plan)),
            *counts.assumptions,
            *filter(None, several),
            *found.assumptions,
            *_engines(found.phases),
        ),
    )


def _engines(phases: Iterable[Found]) -> tuple[str, ...]:
    if not any(x.kind == "generate" for x in phases):
        return ()
    return ("an engine such as vLLM generates, and nothing is compiled: `engine=` and `compile=` change no cost",)


def _phase(found: Found, counts: Counts) -> PhaseSpec:
    return PhaseSpec(
        found.name,
        found.model,
        found.kind,
        workload_of(found.instructions, counts),
        tuple(i.out for i in found.instructions),
        found.after,
        found.ahead,
        found.beside,
    )
