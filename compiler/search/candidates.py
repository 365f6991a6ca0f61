"""The legal ways to run a phase on a slot, with their costs. Only what another equals or beats in all is left out."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from ..cluster import Cluster, Slice
from ..cost import KINDS, Cost, CostError
from ..shapes import ModelShape
from .areas import areas_of, slot_sizes, spans_of
from .decision import Bytes, Layout
from .instance import MOST_SLOTS, Area, Candidate, Instance, Moved, Mover, Request, Room, Spread, lie_of, pareto
from .prices import Prices, by_kind
from .problem import PhaseSpec, Problem

MICRO = (4096, 16384)
"""Tokens of a micro-batch that are tried where no line says how many; the longest sequence is in one anyway."""

PIPELINES = (1, 2, 4, 8)
MOST_TENSOR = 16
EXPERT_PARALLEL = (8, 16, 32, 64)
WAVES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
"""Into how many parts an engine's sequences are cut at most: fewer are faster, and take more of its cache."""

RESIDENT = ("weights", "optimizer")


@dataclass(frozen=True)
class Limits:
    """What a run can carry out: degrees beyond these aren't tried. sleeps: whether state may go to the host."""

    tensor: bool = True
    pipeline: bool = True
    experts: bool = True
    sleeps: bool = True


@dataclass(frozen=True)
class Finder:
    """Finds the candidates of phases. areas: of the cluster; spans: across them."""

    problem: Problem
    prices: Prices
    requests: tuple[Request, ...]
    limits: Limits
    areas: tuple[Area, ...]
    spans: tuple[Area, ...] = ()

    def rooms(self) -> tuple[Room, ...]:
        """What slots may take: usual sizes, those that lines name, and each span."""
        asked = {len(r.ranks) for r in self.requests if r.ranks is not None}
        areas = (
            Room(number, size)
            for number, area in enumerate(self.areas)
            for size in sorted({*slot_sizes(area), *(n for n in asked if n <= area.devices)})
        )
        return (*areas, *(Room(n, x.devices) for n, x in enumerate(self.spans, len(self.areas))))

    def of(self, phase: PhaseSpec, room: Room) -> tuple[Candidate, ...]:
        """The candidates of a phase in a room that fit a device by themselves, without the dominated."""
        memory = self.area(room).memory
        fitting = (c for c in self.every(phase, room) if c.kept + c.extra <= memory)
        return pareto(fitting, self._matters(phase), (r for r in self.requests if phase.name in r.phases))

    def every(self, phase: PhaseSpec, room: Room) -> Iterator[Candidate]:
        """All candidates, those that don't fit included."""
        part = self.part(room)
        for layout in self._layouts(phase, part, self.area(room).unit):
            yield from self._priced(phase, layout, part)

    def move(self, model: str, source: Spread, target: Spread, same: bool) -> Moved:
        """New weights on their way to an engine."""
        here, there = ((x.layout, self.part(x.room)) for x in (source, target))
        return self.prices.move(model, here, there, same)

    def area(self, room: Room) -> Area:
        return (*self.areas, *self.spans)[room.area]

    def part(self, room: Room) -> Slice:
        """The devices of a room, as they lie at the beginning of its area."""
        return self.prices.part(room.devices, self.area(room).first)

    def _matters(self, phase: PhaseSpec) -> bool:
        """Whether something else depends on how the weights of a phase lie."""
        pairs = [*self.problem.sharing(), *self.problem.sampled_after_training()]
        return any(phase.name in pair for pair in pairs)

    # ------------------------------------------------------------ layouts

    def _layouts(self, phase: PhaseSpec, part: Slice, node: int) -> Iterator[Layout]:
        shape, rows = self.prices.shapes[phase.model], _rows(phase)
        for tp, pp in self._cuts(shape, phase, part):
            data = part.devices // (tp * pp)
            for fsdp in self._shards(phase, data, node):
                for ep in self._experts(shape, data, node // tp) if data <= rows else ():
                    yield from self._finished(phase, Layout(tp, pp, data // fsdp, fsdp, ep=ep))

    def _experts(self, shape: ModelShape, data: int, inside: int) -> list[int]:
        """Degrees of ep: none, within a node, several nodes, all. inside: devices of a node beside tp."""
        if shape.experts is None or not self.limits.experts:
            return [1]
        total = shape.experts.total
        wanted = {1, inside, *EXPERT_PARALLEL, data}
        return sorted(d for d in wanted if 0 < d <= data and data % d == 0 and total % d == 0)

    def _cuts(self, shape: ModelShape, phase: PhaseSpec, part: Slice) -> Iterator[tuple[int, int]]:
        degrees = [t for t in range(1, min(MOST_TENSOR, part.per_node) + 1) if fits_tensor(t, shape)]
        for tp in sorted({*degrees, *self._asked(phase, "tp")}):
            for pp in sorted({*PIPELINES, *self._asked(phase, "pp")}):
                allowed = (tp == 1 or self.limits.tensor) and (pp == 1 or self.limits.pipeline)
                if allowed and pp <= shape.layers and part.devices % (tp * pp) == 0 and fits_tensor(tp, shape):
                    yield tp, pp

    def _shards(self, phase: PhaseSpec, data: int, node: int) -> list[int]:
        """Degrees of fsdp: none, within a node, all. An engine holds whole weights."""
        if phase.kind == "generate":
            return [1]
        inside = [d for d in (node, node // 2) if 0 < d < data and data % d == 0]
        return sorted({1, *inside, data, *(d for d in self._asked(phase, "fsdp") if data % d == 0)})

    def _asked(self, phase: PhaseSpec, degree: str) -> list[int]:
        """Degrees that lines name for a phase: they are candidates, wherever else they come from."""
        return [r.degrees[degree] for r in self.requests if phase.name in r.phases and degree in r.degrees]

    def _finished(self, phase: PhaseSpec, layout: Layout) -> Iterator[Layout]:
        if phase.kind == "generate":
            yield layout
            return
        asked = {r.micro for r in self.requests if phase.name in r.phases and r.micro is not None}
        longest = phase.work.prompt + phase.work.longest
        for micro in sorted(asked or {max(m, longest) for m in MICRO}):
            for recompute in (False, True) if phase.kind == "train" else (False,):
                yield replace(layout, micro=micro, recompute=recompute)

    # ------------------------------------------------------------ costs

    def _priced(self, phase: PhaseSpec, layout: Layout, part: Slice) -> Iterator[Candidate]:
        seen: set[int] = set()
        for slots in _waves(phase, layout, part) if phase.kind == "generate" else (0,):
            try:
                found = self.prices.phase(phase, layout, part, slots)
            except CostError:
                return
            if found.slots not in seen or not slots:
                seen.add(found.slots)
                yield from self._variants(phase, layout, found, part)

    def _variants(self, phase: PhaseSpec, layout: Layout, cost: Cost, part: Slice) -> Iterator[Candidate]:
        """As it is, and with what can wait in host memory there while other phases run."""
        memory = by_kind(cost.memory)
        stays = memory if phase.kind == "generate" else {k: v for k, v in memory.items() if k in RESIDENT}
        stays = {} if self._is_guest(phase) else stays
        parts = dict(cost.parts)
        yield _candidate(layout, parts, memory, stays)
        leaves = {"train": ("optimizer",), "forward": ("weights",), "generate": (*KINDS, "kv cache")}[phase.kind]
        gone = {k: v for k, v in stays.items() if k in leaves}
        if gone and self.limits.sleeps:
            parts["wake"] = self._waking(phase, gone, part) / phase.work.every
            yield _candidate(
                replace(layout, sleeps=True), parts, memory, {k: v for k, v in stays.items() if k not in gone}
            )

    def _is_guest(self, phase: PhaseSpec) -> bool:
        """Whether a phase reads weights that another phase holds."""
        return any(phase.name == other for _, other in self.problem.sharing())

    def _waking(self, phase: PhaseSpec, gone: Bytes, part: Slice) -> float:
        """Seconds per step: weights are read from the host; optimizer state is written back too."""
        size = gone["weights"] if phase.kind == "generate" else sum(gone.values())
        return self.prices.host(size * (2 if phase.kind == "train" else 1), part)


def _waves(phase: PhaseSpec, layout: Layout, part: Slice) -> Iterable[int]:
    """Sequences that an engine runs at once: its part of the largest draw, in so many waves, as many as it may."""
    each = math.ceil(phase.work.at_once / (layout.dp * layout.fsdp))
    return dict.fromkeys(min(math.ceil(each / w), int(part.device.sequences)) for w in WAVES if w <= each)


def _candidate(layout: Layout, parts: Mapping[str, float], memory: Bytes, stays: Bytes) -> Candidate:
    transient = {k: v for k, v in memory.items() if k not in stays}
    return Candidate(layout, sum(parts.values()), stays, transient, dict(parts))


def instance_of(
    problem: Problem,
    prices: Prices,
    requests: Iterable[Request] = (),
    limits: Limits | None = None,
    memory: float | None = None,
) -> Instance:
    """The search of a problem on a cluster, under the lines of a `place` block. memory: bytes that a device may use."""
    finder = finder_of(problem, prices, requests, limits, memory)
    rooms = finder.rooms()
    choices = {x.name: {r: found for r in rooms if (found := finder.of(x, r))} for x in problem.phases}
    return Instance(problem, finder.areas, choices, _cached(finder.move), finder.requests, spans=finder.spans)


def finder_of(
    problem: Problem,
    prices: Prices,
    requests: Iterable[Request] = (),
    limits: Limits | None = None,
    memory: float | None = None,
) -> Finder:
    """Finds candidates on a cluster, under the lines of a `place` block. memory: bytes that a device may use."""
    requests, areas = tuple(requests), areas_of(prices.cluster, memory)
    spans = spans_of(prices.cluster, areas, requests)
    return Finder(problem, prices, requests, limits or Limits(), areas, spans)


def _cached(move: Mover) -> Mover:
    """The same, each way once: micro-batches and the like don't matter to it."""
    found: dict[tuple[object, ...], Moved] = {}

    def cached(model: str, source: Spread, target: Spread, same: bool) -> Moved:
        ends = ((x.room, lie_of(x.layout)) for x in (source, target))
        key = (model, same, *ends)
        if key not in found:
            found[key] = move(model, source, target, same)
        return found[key]

    return cached


def _rows(phase: PhaseSpec) -> int:
    """Sequences that can be dealt out: of an update, those of a minibatch."""
    w = phase.work
    return max(1, w.samples * w.epochs // w.steps) if phase.kind == "train" else max(1, w.samples)


def fits_tensor(degree: int, shape: ModelShape) -> bool:
    """Heads and the vocabulary are cut evenly; key-value heads too, or each is held by as many devices as others."""
    even = shape.heads % degree == 0 and shape.vocab % degree == 0
    return even and (shape.kv_heads % degree == 0 or degree % shape.kv_heads == 0)


def space(instance: Instance, cluster: Cluster) -> tuple[str, ...]:
    """What was searched, in words."""
    number = sum(len(cs) for by in instance.choices.values() for cs in by.values())
    return (
        f"{len(instance.problem.phases)} phases on at most {min(MOST_SLOTS, instance.most_slots)} groups of devices, "
        f"each of {_sizes(instance, cluster)}",
        f"tp that divides heads and vocabulary, within a node; pp of {', '.join(map(str, PIPELINES))}; the rest dp × "
        "fsdp, with fsdp 1, half a node, a node or all",
        f"micro-batches of {' or '.join(map(str, MICRO))} tokens where no line says how many, with and without "
        "recomputation; optimizer states, frozen weights and engines awake or in host memory between their phases",
        "phases that share the weights of a model, generation left out, are on one group and lie alike; groups don't "
        "overlap; every order of phases on a group",
        f"{number} candidates: all but those that another equals or beats in seconds, resident and transient memory; "
        "those left unsearched are in no placement faster than the bound",
        f"an engine runs at most {_most_sequences(cluster)} sequences at once (`engine_sequences` of a cluster)",
        "of experts also ep, within a node, 8 to 64, and all of dp × fsdp",
        "not searched: context parallelism, interleaved pipelines, rows' way between groups",
    )


def _most_sequences(cluster: Cluster) -> str:
    return " or ".join(dict.fromkeys(f"{pool.device.sequences:g}" for pool in cluster.pools))


def _sizes(instance: Instance, cluster: Cluster) -> str:
    """The sizes of slots, by where they are."""
    said = []
    for number, (area, pool) in enumerate(zip(instance.areas, cluster.pools, strict=True)):
        sizes = ", ".join(str(r.devices) for r in instance.rooms if r.area == number)
        of = cluster.name if len(instance.areas) == 1 else f"the {area.devices} {pool.device.name}"
        said += [f"{sizes} devices of {of}"] if sizes else []
    spans = [r for r in instance.rooms if r.area >= len(instance.areas)]
    said += [f"{r.devices} of {cluster.name}, where all wait for the slowest" for r in spans]
    return ", or ".join(said)
