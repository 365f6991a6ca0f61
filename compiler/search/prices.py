"""What the cost model says of a phase, a move of weights, or a way to the host, in the words of the search."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .. import cost as c
from ..cluster import Cluster, Slice
from ..shapes import ModelShape
from .decision import Layout
from .instance import Moved
from .problem import PhaseSpec, Problem
from .workload import Workload

HEADS: Mapping[str, c.work.Head] = {"causal_lm": "logprobs", "value_model": "values", "reward_model": "score"}


@dataclass(frozen=True)
class Prices:
    """Costs on one cluster. shapes: of models by their names. kinds: of model, by its name."""

    cluster: Cluster
    shapes: Mapping[str, ModelShape]
    kinds: Mapping[str, str] = field(default_factory=dict)
    constants: c.Constants = c.DEFAULT
    _parts: dict[tuple[int, int], Slice] = field(default_factory=dict, init=False, repr=False, compare=False)

    def part(self, devices: int, first: int = 0) -> Slice:
        """So many ranks from `first` on."""
        if (devices, first) not in self._parts:
            self._parts[devices, first] = self.cluster.slice(devices, first)
        return self._parts[devices, first]

    def phase(self, phase: PhaseSpec, layout: Layout, part: Slice, slots: int = 0) -> c.Cost:
        """Seconds and bytes of a phase in one step. slots: sequences that an engine runs at once at most."""
        shape = self.shapes[phase.model]
        work = self.work(phase, slots)
        found = c.phase_cost(shape, work, _layout(layout, phase.work), part, self.constants)
        scale = (phase.work.passes + 2) / 3 if phase.kind == "train" else 1.0
        scale /= phase.work.every
        parts = {k: v * scale for k, v in found.parts.items() if v > 0}
        return c.Cost(parts, found.memory, found.slots)

    def work(self, phase: PhaseSpec, slots: int = 0) -> c.Work:
        """What a phase does in one step, as the cost model has it. slots: as in `phase`."""
        w = phase.work
        lengths = _lengths(w)
        head = HEADS.get(self.kinds.get(phase.model, ""), "logprobs")
        batch = c.Batch.of(w.samples, w.prompt, lengths)
        match phase.kind:
            case "train":
                return c.Train(batch, max(1, w.steps // w.epochs), w.epochs, head)
            case "forward":
                return c.Forward(batch, head)
        shared = max(1, w.samples // max(1, w.prompts))
        return c.Generate(w.samples, w.prompt, lengths, shared, slots or 1024)

    def micro_batches(self, phase: PhaseSpec, layout: Layout) -> tuple[float, int]:
        """Tokens that a rank has of a phase, of an update in an optimizer step; in how many micro-batches it has them.

        They are those that the phase's seconds and bytes are of.
        """
        work = self.work(phase)
        if isinstance(work, c.Generate):
            raise c.CostError(f"`{phase.name}` generates: it has no micro-batches")
        steps = work.steps if isinstance(work, c.Train) else 1
        return c.dealt(work.batch, steps, _layout(layout, phase.work))[1:]

    def host(self, size: float, part: Slice) -> float:
        """Seconds to bring bytes of each device to the host, or back."""
        return c.host_seconds(size, part, self.constants)

    def move(self, model: str, source: tuple[Layout, Slice], target: tuple[Layout, Slice], same: bool) -> Moved:
        """Bytes into a device, and seconds, of new weights on their way to an engine. same: on the same devices."""
        shape = self.shapes[model]
        moved = c.Reshard(_layout(source[0]), _layout(target[0]), same)
        seconds = c.reshard_seconds(shape, moved, source[1], target[1], self.constants)
        return Moved(c.reshard_bytes(shape, moved), seconds)

    def rows(self, size: float, source: Slice, target: Slice) -> float:
        """Seconds of `size` bytes of rows from a slot to another."""
        return c.move_seconds(size, source, target, False, self.constants)


def prices_of(problem: Problem, cluster: Cluster, shapes: Mapping[str, ModelShape]) -> Prices:
    """The costs of a problem's phases on a cluster."""
    return Prices(cluster, shapes, {m.name: m.kind for m in problem.models})


def by_kind(memory: c.Memory) -> dict[str, float]:
    """Bytes by kind, those that are none left out."""
    found = ((kind.replace("_", " "), float(getattr(memory, kind))) for kind in c.KINDS)
    return {kind: size for kind, size in found if size > 0}


def _lengths(w: Workload) -> c.Lengths:
    if w.longest <= w.response:
        return c.Lengths.fixed(max(1, w.response))
    return c.Lengths(max(1, w.response), w.longest)


def _layout(layout: Layout, work: Workload | None = None) -> c.Layout:
    """As the cost model has it. work: what has rows, of which a micro-batch has at least one."""
    recompute: c.work.Recompute = "full" if layout.recompute else "none"
    micro = max(layout.micro or 8192, work.prompt + work.response if work else 1)
    return c.Layout(layout.tp, layout.pp, layout.dp, layout.fsdp, ep=layout.ep, micro=micro, recompute=recompute)
