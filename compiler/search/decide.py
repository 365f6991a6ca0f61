"""A solution of the search as a decision: slots with ranks, phases in time, what moves between them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from ..cluster import Slice
from ..cost import move_bytes
from .candidates import space
from .decision import Alternative, Decision, Layout, Memory, Operator, Phase, Quantity, Slot, Transfer
from .instance import Instance, Room
from .prices import Prices
from .problem import PhaseSpec
from .solve import Solution

FIELDS = 2
"""Numbers per token that travel with a batch: its id, and one of a log-probability, value or advantage."""


@dataclass(frozen=True)
class Decider:
    """Turns a solution into a decision."""

    instance: Instance
    prices: Prices
    solution: Solution

    def decided(self, alternatives: tuple[Alternative, ...] = ()) -> Decision:
        """The decision, with the alternatives that lost."""
        s, problem, cluster = self.solution, self.instance.problem, self.prices.cluster
        slots = self.slots()
        phases = tuple(self._phase(x.name, slots) for x in problem.phases)
        return Decision(
            problem.flow,
            cluster.name,
            cluster.devices,
            tuple(slots[n] for n in sorted(slots, key=lambda n: slots[n].first)),
            phases,
            tuple(self._operator(o, slots) for o in problem.operators),
            tuple(self._transfers(slots)),
            s.period,
            self._makespan(),
            problem.staleness,
            s.bound,
            s.gap,
            s.optimal,
            space(self.instance, cluster),
            alternatives,
            (*problem.arithmetic, *self._shares(phases)),
            problem.assumptions,
        )

    def slots(self) -> dict[int, Slot]:
        """Slots by their number: where lines put them, the others behind each other, the largest first."""
        rooms = {put.slot: put.room for put in self.solution.puts.values()}
        firsts = dict(self.solution.firsts) if self.solution.firsts else _packed(rooms, self.instance)
        return {n: self._slot(room, firsts[n]) for n, room in rooms.items()}

    def _slot(self, room: Room, first: int) -> Slot:
        part, memory = self.prices.part(room.devices, first), self.instance.area(room).memory
        return Slot(_named(first, room.devices), first, room.devices, part.nodes, part.device.name, memory)

    # ------------------------------------------------------------ phases

    def _phase(self, name: str, slots: Mapping[int, Slot]) -> Phase:
        spec, put = self.instance.problem.phase(name), self.solution.puts[name]
        start, end = self._running(name)
        candidate = put.candidate
        return Phase(
            name,
            spec.model,
            spec.kind,
            slots[put.slot].name,
            candidate.layout,
            end - start,
            {k: v for k, v in candidate.parts.items() if k != "wake"},
            Memory(dict(candidate.resident), dict(candidate.transient)),
            start,
            end,
            spec.after,
            spec.runs,
            spec.ahead,
            spec.work.samples,
            spec.work.tokens,
        )

    def _running(self, name: str) -> tuple[float, float]:
        """From when to when a phase itself runs, without what is brought for it and taken away after it."""
        before, after = self._around(name)
        moved = self.solution.moved.get(name)
        start = self.solution.start[name] + (moved.seconds if moved else 0.0)
        return start + before, self.solution.end[name] - after

    def _around(self, name: str) -> tuple[float, float]:
        """Seconds from the host before a phase, and back to it afterwards: only optimizer state is written back."""
        wake = self.solution.puts[name].candidate.parts.get("wake", 0.0)
        trains = self.instance.problem.phase(name).kind == "train"
        return (wake / 2, wake / 2) if trains else (wake, 0.0)

    def _makespan(self) -> float:
        """From the start of a batch's first phase to the end of its last, `staleness` periods later."""
        s = self.solution
        return max(s.end.values(), default=0.0) + self.instance.problem.staleness * s.period

    def _operator(self, operator: Operator, slots: Mapping[int, Slot]) -> Operator:
        put = self.solution.puts.get(operator.where)
        return replace(operator, where=slots[put.slot].name) if put else operator

    def _shares(self, phases: tuple[Phase, ...]) -> Iterator[Quantity]:
        """What a rank gets of each phase's rows, and in how many micro-batches it has them."""
        for x in phases:
            yield from self._share(self.instance.problem.phase(x.name), x.layout)

    def _share(self, spec: PhaseSpec, layout: Layout) -> Iterator[Quantity]:
        data, work, trains = layout.dp * layout.fsdp, spec.work, spec.kind == "train"
        of = " of the batch" if trains else ""
        yield _dealt(f"rows{of} of {spec.name} per rank", work.samples, data)
        if trains:
            yield _dealt(f"rows of a minibatch of {spec.name} per rank", work.samples * work.epochs / work.steps, data)
        if not layout.micro:
            return
        tokens, count = self.prices.micro_batches(spec, layout)
        micro = f"micro={layout.micro}" if layout.micro >= work.prompt + work.response else "a row, which no micro cuts"
        each = f"{tokens:.0f} tokens of a rank{' in an optimizer step' if trains else ''} ÷ {micro}"
        if not trains:
            yield Quantity(f"micro-batches of {spec.name} per rank", count, "micro-batches", f"{each}, rounded up")
            return
        said = f"{count} ({each}, rounded up) × {work.steps} optimizer steps"
        yield Quantity(f"micro-batches of {spec.name} per rank", count * work.steps, "micro-batches", said)

    # ------------------------------------------------------------ transfers

    def _transfers(self, slots: Mapping[int, Slot]) -> Iterator[Transfer]:
        problem, s = self.instance.problem, self.solution
        for train, generate in problem.sampled_after_training():
            moved, start = s.moved[generate], s.start[generate]
            ends = (slots[s.puts[train].slot].name, slots[s.puts[generate].slot].name)
            model = problem.phase(train).model
            yield Transfer(
                "weights", model, *ends, moved.bytes, moved.seconds, start, start + moved.seconds, generate, (train,)
            )
        for x in problem.phases:
            yield from self._to_host(x.name, slots[s.puts[x.name].slot].name)
            yield from self._rows(x.name, slots)

    def _to_host(self, name: str, slot: str) -> Iterator[Transfer]:
        candidate = self.solution.puts[name].candidate
        before, after = self._around(name)
        if not candidate.layout.sleeps:
            return
        spec = self.instance.problem.phase(name)
        start, end = self._running(name)
        kind = "optimizer" if spec.kind == "train" else "weights"
        size = candidate.transient.get(kind, 0.0)
        if after:
            yield Transfer("reload", spec.model, "host", slot, size, before, start - before, start, name)
            yield Transfer("offload", spec.model, slot, "host", size, after, end, end + after, "", (name,))
        else:
            yield Transfer("wake", spec.model, "host", slot, size, before, start - before, start, name)
            yield Transfer("sleep", spec.model, slot, "host", 0.0, 0.0, end, end, "", (name,))

    def _rows(self, name: str, slots: Mapping[int, Slot]) -> Iterator[Transfer]:
        """Rows from the phases that a phase waits for, where they are on another slot."""
        puts = self.solution.puts
        for source in self.instance.problem.phase(name).after:
            if puts[source].slot != puts[name].slot:
                spec, at = self.instance.problem.phase(source), self.solution.end[source]
                each = spec.work.samples * (spec.work.prompt + spec.work.response)
                size = move_bytes(spec.work.samples, each, FIELDS)
                seconds = self.prices.rows(size, *(self._part(slots[puts[x].slot]) for x in (source, name)))
                ends = (slots[puts[source].slot].name, slots[puts[name].slot].name)
                received = size / puts[name].room.devices
                yield Transfer("rows", spec.model, *ends, received, seconds, at, at + seconds, name, (source,))

    def _part(self, slot: Slot) -> Slice:
        return self.prices.part(slot.devices, slot.first)


def _packed(rooms: Mapping[int, Room], instance: Instance) -> dict[int, int]:
    """First ranks: in each area the largest slots first, so that all are aligned."""
    firsts: dict[int, int] = {}
    free: dict[int, int] = {}
    for number in sorted(rooms, key=lambda n: (-rooms[n].devices, n)):
        room = rooms[number]
        firsts[number] = free.get(room.area, instance.area(room).first)
        free[room.area] = firsts[number] + room.devices
    return firsts


def _named(first: int, size: int) -> str:
    """As the mesh of these ranks is called in a plan."""
    return f"rank{first}" if size == 1 else f"ranks{first}-{first + size - 1}"


def _dealt(name: str, rows: float, data: int) -> Quantity:
    """Rows of the rank that has the most of them."""
    rounded = "" if rows % data == 0 else ", rounded up"
    return Quantity(name, math.ceil(rows / data), "samples", f"{rows:g} samples ÷ {data} (dp × fsdp){rounded}")
