"""Why nothing fits: lines that contradict each other, or memory, with what needs it and what would fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..cluster import Cluster, Node, Pool
from .bounds import one_slot
from .candidates import Finder, Limits, finder_of, instance_of
from .decision import Bytes
from .instance import Candidate, Instance, Lie, Request, Room
from .misfits import clash, misfits
from .prices import Prices
from .problem import PhaseSpec
from .requests import conflicting
from .solve import is_possible

GB = 1e9
TIMES = (2, 4, 8, 16, 32)
"""How many times more devices are tried, to say how many are enough."""

ENDLESS = 1e18
"""Bytes of a device for which memory never decides."""


@dataclass(frozen=True)
class Refusal:
    """What to report: a code, the sentence, the help, and the lines it is about."""

    code: str
    message: str
    help: str
    requests: tuple[Request, ...] = ()


def refusal(instance: Instance, prices: Prices, limits: Limits) -> Refusal:
    """Why an instance has no placement: a degree that can't be, lines against each other, or memory."""
    misfit = next(misfits(instance.requests, instance.problem, prices.shapes), None)
    if misfit is not None:
        return Refusal(misfit.code, misfit.message, misfit.help, (misfit.request,))
    lines = conflicting(instance)
    if lines is not None:
        endless = replace(_with_memory(instance, prices, limits), requests=lines)
        return _no_memory(instance, prices, limits, lines) if is_possible(endless) else _contradiction(lines, instance)
    return _no_memory(instance, prices, limits, ())


def _with_memory(instance: Instance, prices: Prices, limits: Limits) -> Instance:
    """The same search on devices whose memory never decides."""
    return instance_of(instance.problem, prices, instance.requests, limits, ENDLESS)


def _contradiction(lines: tuple[Request, ...], instance: Instance) -> Refusal:
    shown = " and ".join(f"`{r.label}`" for r in lines)
    one = len(lines) == 1
    message = f"{shown} can't be met" if one else f"these lines can't be met together: {shown}"
    message += clash(lines, instance.problem)
    return Refusal("E0508", message, "leave it out" if one else "leave one of them out: each by itself can be", lines)


def _no_memory(instance: Instance, prices: Prices, limits: Limits, lines: tuple[Request, ...]) -> Refusal:
    """What the phase that needs the most memory needs at the least, by kind; or what all need together."""
    finder = finder_of(instance.problem, prices, instance.requests, limits, ENDLESS)
    least = [(x.name, *found) for x in instance.problem.phases for found in _leanest(finder, x, instance, lines)]
    name, candidate, room = max(least, key=lambda found: _excess(found[1], found[2], instance))
    size, memory = candidate.kept + candidate.extra, instance.area(room).memory
    has = f"a device has {_gb(memory)} to use"
    if size > memory:
        where = f"`{name}` on {room.devices} device{'s' if room.devices > 1 else ''} ({candidate.layout})"
        kinds = _kinds(candidate.resident, candidate.transient)
        message = f"memory doesn't fit: {where} needs {_gb(size)} per device at the least, {has}: {kinds}"
    else:
        each = ", ".join(f"`{n}` {_gb(c.kept + c.extra)}" for n, c, _ in least)
        message = f"memory doesn't fit: each phase does, but not all on {instance.devices} devices, {has}: {each}"
    return Refusal("E0507", message, _nearest(instance, prices, limits, lines, name), lines)


def _leanest(
    finder: Finder, phase: PhaseSpec, instance: Instance, lines: tuple[Request, ...]
) -> Iterator[tuple[Candidate, Room]]:
    """The candidate of a phase that comes nearest to fitting, among those that its lines allow, and where."""
    asked = [r for r in lines if phase.name in r.phases]
    found = [
        (c, room)
        for room in _rooms(phase.name, finder, instance, lines)
        for c in finder.every(phase, room)
        if all(r.allows(c.layout) for r in asked)
    ]
    if found:
        yield min(found, key=lambda f: _excess(f[0], f[1], instance))


def _excess(candidate: Candidate, room: Room, instance: Instance) -> float:
    """Bytes by which a candidate exceeds what a device has; below 0 where it fits."""
    return candidate.kept + candidate.extra - instance.area(room).memory


def _rooms(phase: str, finder: Finder, instance: Instance, lines: tuple[Request, ...]) -> tuple[Room, ...]:
    """Rooms that lines leave a phase: its own line's, or that of another line, or what is beside them."""
    named = {r.ranks for r in lines if r.ranks is not None}
    own = {r.ranks for r in lines if phase in r.phases and r.ranks is not None}
    if own:
        return tuple(room for room in finder.rooms() if any(instance.is_on(room, x) for x in own))
    left = instance.devices - len(set[int]().union(*named))
    every = instance.rooms or finder.rooms()[-1:]
    return tuple(r for r in every if r.devices <= left or any(instance.is_on(r, x) for x in named)) or every


def _nearest(instance: Instance, prices: Prices, limits: Limits, lines: tuple[Request, ...], largest: str) -> str:
    """What would fit: the lines' degrees changed, or more devices. largest: the phase that needs the most memory."""
    if lines:
        finder = finder_of(instance.problem, prices, instance.requests, limits)
        for request in lines:
            ranks = request.ranks or range(instance.devices)
            rooms = [room for room in finder.rooms() if instance.is_on(room, ranks)]
            for name in request.phases:
                fitting = [c for room in rooms for c in finder.of(instance.problem.phase(name), room)]
                if fitting and not any(request.allows(c.layout) for c in fitting):
                    near = sorted(fitting, key=lambda c: _distance(c, request))
                    shown: dict[Lie, str] = {}
                    for c in near:
                        shown.setdefault(c.key, str(c.layout))
                    return f"`{name}` fits with {' or with '.join(list(shown.values())[:2])}"
        needs = _needed(largest, instance, prices, limits, lines)
        more = f"give `{largest}` {needs} of these devices" if needs else "give more devices"
        return f"leave a line out, or {more}"
    enough = _enough(instance, prices, limits)
    if enough is not None:
        return f"it fits on {enough} of these devices; fewer may do with shorter sequences"
    return "give more devices or larger ones, or shorter sequences"


def _enough(instance: Instance, prices: Prices, limits: Limits) -> int | None:
    """How many devices of that kind are enough, among twice, four times, … as many."""
    for times in TIMES:
        more = _larger(prices, times)
        if is_possible(one_slot(instance_of(instance.problem, more, (), limits))):
            return more.cluster.devices
    return None


def _needed(phase: str, instance: Instance, prices: Prices, limits: Limits, lines: tuple[Request, ...]) -> int | None:
    """The smallest slot on which a phase by itself fits with the degrees of its lines, wherever they put it."""
    spec, asked = instance.problem.phase(phase), [r for r in lines if phase in r.phases]
    for times in (1, *TIMES):
        finder = finder_of(instance.problem, _larger(prices, times), lines, limits)
        for room in sorted(finder.rooms(), key=lambda r: r.devices):
            if any(all(r.allows(c.layout) for r in asked) for c in finder.of(spec, room)):
                return room.devices
    return None


def _larger(prices: Prices, times: int) -> Prices:
    """The same on so many times as many devices, in nodes that are no smaller."""
    if times == 1:
        return prices
    nodes = tuple(node for pool in prices.cluster.pools for node in _more_nodes(pool, times))
    return replace(prices, cluster=Cluster(f"{prices.cluster.name} {times} times", nodes))


def _more_nodes(pool: Pool, times: int) -> Sequence[Node]:
    devices = times * pool.devices
    each = min(devices, max(pool.device.per_node, pool.per_node))
    return (Node(pool.device, each),) * (devices // each)


def _distance(candidate: Candidate, request: Request) -> tuple[float, bool, float]:
    """How far a candidate is from what a line asks for: degrees as factors, whether it sleeps, then seconds."""
    far = 0.0
    for name, asked in request.degrees.items():
        given = getattr(candidate.layout, name)
        far += max(given, asked) / min(given, asked) - 1
    return far, candidate.layout.sleeps, candidate.seconds


def _kinds(resident: Bytes, transient: Bytes) -> str:
    sizes = sorted(((v, k) for k, v in {**transient, **resident}.items() if v >= 5e3), reverse=True)
    return ", ".join(f"{k} {_gb(v)}" for v, k in sizes)


def _gb(size: float) -> str:
    return f"{size / GB:.1f} GB" if size >= 5e7 else f"{size / 1e6:.2f} MB"
