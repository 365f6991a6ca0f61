"""Small searches with made-up costs, and their best period found by trying everything.

The evaluator shares nothing with the solver but the data: it enumerates where each phase runs, with which candidate,
and in which order the phases of the cluster start.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from hypothesis import strategies as st

from shardflow.compiler.search.decision import Kind, Layout
from shardflow.compiler.search.instance import Area, Candidate, Instance, Moved, Request, Room, Spread
from shardflow.compiler.search.problem import ModelSpec, PhaseSpec, Problem
from shardflow.compiler.search.workload import Workload

WORK = Workload(8, 1, 1, 1)
MEMORY = 10e6


def phase(name: str, after: Sequence[str] = (), ahead: int = 0) -> PhaseSpec:
    """A phase of a model, of the kind that its name says."""
    model, _, op = name.partition(".")
    kind: Kind = "train" if op == "update" else "generate" if op == "generate" else "forward"
    return PhaseSpec(name, model, kind, WORK, (name,), tuple(after), ahead)


def problem(*phases: PhaseSpec) -> Problem:
    trained = {x.model for x in phases if x.kind == "train"}
    models = dict.fromkeys(x.model for x in phases)
    return Problem("f", phases, tuple(ModelSpec(m, "causal_lm", m, m in trained) for m in models))


PROBLEMS = (
    problem(phase("a.generate"), phase("b.logprobs", ["a.generate"]), phase("a.update", ["b.logprobs"])),
    problem(phase("a.generate", ahead=1), phase("b.logprobs"), phase("a.update", ["b.logprobs"])),
    problem(phase("a.generate"), phase("a.logprobs", ["a.generate"]), phase("a.update", ["a.logprobs"])),
    problem(
        phase("a.generate"),
        phase("b.values", ["a.generate"]),
        phase("a.update", ["b.values"]),
        phase("b.update", ["b.values"]),
    ),
    problem(phase("a.logprobs"), phase("b.logprobs"), phase("c.update", ["a.logprobs"])),
)


def moved(model: str, source: Spread, target: Spread, same: bool) -> Moved:
    """Free where weights lie alike on the same slot, else by how many devices take part."""
    if same and source.layout.tp == target.layout.tp:
        return Moved(0, 0)
    seconds = abs(source.layout.tp - target.layout.tp) + (0 if same else 1 + target.devices // source.devices)
    return Moved(seconds, seconds)


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    """Searches of at most four phases on at most four devices; seconds and megabytes are whole.

    Some are on two kinds of devices, with a span across both.
    """
    what = draw(st.sampled_from(PROBLEMS))
    kinds = draw(st.sampled_from([(2,), (3,), (4,), (1, 2), (2, 2), (3, 1)]))
    areas = tuple(Area(sum(kinds[:n]), k, k, draw(st.sampled_from([MEMORY, 7e6]))) for n, k in enumerate(kinds))
    spans = (Area(0, sum(kinds), 1, min(a.memory for a in areas)),) if len(kinds) > 1 else ()
    rooms = [Room(n, s) for n, k in enumerate(kinds) for s in (1, 2, 4) if s <= k]
    rooms += [Room(len(kinds), x.devices) for x in spans]
    choices = {x.name: {r: found for r in rooms if (found := draw(_candidates(r.devices)))} for x in what.phases}
    asked = tuple(draw(st.lists(_requests(what), max_size=2)))
    return Instance(what, areas, choices, moved, asked, draw(st.sampled_from([1, 2, 3, 4])), spans)


def _requests(what: Problem) -> st.SearchStrategy[Request]:
    """Lines that ask for a degree of a phase."""
    names = st.sampled_from([x.name for x in what.phases])
    return st.builds(lambda n, tp: Request(f"{n} tp={tp}", (n,), degrees={"tp": tp}), names, st.sampled_from([1, 2]))


def _candidates(size: int) -> st.SearchStrategy[tuple[Candidate, ...]]:
    tps = [t for t in (1, 2, 4) if size % t == 0]
    each = st.builds(
        _candidate, st.just(size), st.sampled_from(tps), *[st.integers(1, 9)], st.integers(0, 5), st.integers(0, 6)
    )
    return st.lists(each, max_size=2).map(tuple)


def _candidate(size: int, tp: int, seconds: int, kept: int, extra: int) -> Candidate:
    return Candidate(Layout(tp, dp=size // tp), float(seconds), {"weights": kept * 1e6}, {"activations": extra * 1e6})


# ---------------------------------------------------------------- trying everything

Chosen = Mapping[str, tuple[int, Room, Candidate]]
"""A slot's number, what it takes, and a candidate, by phase."""


def best_period(instance: Instance) -> float | None:
    """The shortest period of all placements; None if there is none."""
    return min((_period(instance, c) for c in _placements(instance)), default=None)


def _placements(instance: Instance) -> Iterator[Chosen]:
    names = [x.name for x in instance.problem.phases]
    for slots in itertools.product(range(min(instance.slots, len(names))), repeat=len(names)):
        for rooms in itertools.product(instance.rooms, repeat=max(slots, default=0) + 1):
            if not _has_room(instance, [rooms[s] for s in set(slots)]):
                continue
            options = [instance.choices[n].get(rooms[s], ()) for n, s in zip(names, slots, strict=True)]
            for found in itertools.product(*options):
                where = ((s, rooms[s], c) for s, c in zip(slots, found, strict=True))
                chosen = dict(zip(names, where, strict=True))
                if _is_legal(instance, chosen):
                    yield chosen


def _has_room(instance: Instance, rooms: Sequence[Room]) -> bool:
    """Whether slots that take these are apart: a span is the whole cluster."""
    if any(r.area == len(instance.areas) for r in rooms):
        return len(rooms) == 1
    return all(sum(r.devices for r in rooms if r.area == n) <= a.devices for n, a in enumerate(instance.areas))


def _is_legal(instance: Instance, chosen: Chosen) -> bool:
    if not all(r.allows(chosen[name][2].layout) for r in instance.requests for name in r.phases):
        return False
    for holder, other in instance.problem.sharing():
        if chosen[holder][0] != chosen[other][0] or chosen[holder][2].key != chosen[other][2].key:
            return False
    for slot, room in {(s, r) for s, r, _ in chosen.values()}:
        here = [c for s, _, c in chosen.values() if s == slot]
        kept = sum(sum(c.resident.values()) for c in here)
        memory = (*instance.areas, *instance.spans)[room.area].memory
        if any(kept + sum(c.transient.values()) > memory for c in here):
            return False
    return True


def _period(instance: Instance, chosen: Chosen) -> float:
    """The shortest of all orders in which phases may start, each as early as it can."""
    names = [x.name for x in instance.problem.phases]
    return min(_ending(instance, chosen, order) for order in itertools.permutations(names) if _follows(instance, order))


def _follows(instance: Instance, order: Sequence[str]) -> bool:
    return all(order.index(a) < order.index(x.name) for x in instance.problem.phases for a in x.after)


def _ending(instance: Instance, chosen: Chosen, order: Sequence[str]) -> float:
    """The end of the last phase, if they take their slots in this order."""
    busy: dict[int, float] = {}
    end: dict[str, float] = {}
    trained = {g: t for t, g in instance.problem.sampled_after_training()}
    for name in order:
        slot, room, candidate = chosen[name]
        start = max([busy.get(slot, 0.0), *(end[a] for a in instance.problem.phase(name).after)])
        way = 0.0
        if name in trained:
            other, there, source = chosen[trained[name]]
            ends = (Spread(there, source.layout), Spread(room, candidate.layout))
            way = moved("", *ends, slot == other).seconds
            if way:
                start = max(start, busy.get(other, 0.0))
                busy[other] = start + way
        end[name] = busy[slot] = start + way + candidate.seconds
    return max(end.values())
