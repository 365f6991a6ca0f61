"""Why nothing fits: lines that contradict each other, or memory, with what needs it and what would fit."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..cluster import Cluster, Node
from .bounds import one_slot
from .candidates import Finder, Limits, instance_of, slot_sizes
from .decision import Bytes
from .instance import Candidate, Instance, Request
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
    finder = Finder(instance.problem, prices, lines, limits, ENDLESS)
    least = [(x.name, *found) for x in instance.problem.phases for found in _leanest(finder, x, instance)]
    name, candidate, devices = max(least, key=lambda found: found[1].kept + found[1].extra)
    size, has = candidate.kept + candidate.extra, f"a device has {_gb(instance.memory)} to use"
    if size > instance.memory:
        where = f"`{name}` on {devices} device{'s' if devices > 1 else ''} ({candidate.layout})"
        kinds = _kinds(candidate.resident, candidate.transient)
        message = f"memory doesn't fit: {where} needs {_gb(size)} per device at the least, {has}: {kinds}"
    else:
        each = ", ".join(f"`{n}` {_gb(c.kept + c.extra)}" for n, c, _ in least)
        message = f"memory doesn't fit: each phase does, but not all on {instance.devices} devices, {has}: {each}"
    return Refusal("E0507", message, _nearest(instance, prices, limits, lines, name), lines)


def _leanest(finder: Finder, phase: PhaseSpec, instance: Instance) -> Iterator[tuple[Candidate, int]]:
    """The candidate of a phase that needs the least memory, among those that its lines allow, and where others do."""
    asked = [r for r in finder.requests if phase.name in r.phases]
    found = [
        (c, size)
        for size in _sizes(phase.name, instance, finder.requests)
        for c in finder.every(phase, size)
        if all(r.allows(c.layout) for r in asked)
    ]
    if found:
        yield min(found, key=lambda f: f[0].kept + f[0].extra)


def _sizes(phase: str, instance: Instance, lines: tuple[Request, ...]) -> tuple[int, ...]:
    """Sizes of slots that lines leave a phase: its own line's, or a slot of another line, or what is beside them."""
    named = {r.ranks for r in lines if r.ranks is not None}
    own = {len(r.ranks) for r in lines if phase in r.phases and r.ranks is not None}
    if own:
        return tuple(sorted(own))
    left = instance.devices - len(set[int]().union(*named))
    every = instance.sizes or (instance.devices,)
    return tuple(s for s in every if s <= left or s in {len(r) for r in named}) or every


def _nearest(instance: Instance, prices: Prices, limits: Limits, lines: tuple[Request, ...], largest: str) -> str:
    """What would fit: the lines' degrees changed, or more devices. largest: the phase that needs the most memory."""
    if lines:
        finder = Finder(instance.problem, prices, (), limits, instance.memory)
        for request in lines:
            for name in request.phases:
                size = len(request.ranks) if request.ranks is not None else instance.devices
                fitting = finder.of(instance.problem.phase(name), size)
                if fitting and not any(request.allows(c.layout) for c in fitting):
                    near = sorted(fitting, key=lambda c: _distance(c, request))
                    shown = list(dict.fromkeys(str(c.layout) for c in near))[:2]
                    return f"`{name}` fits with {' or with '.join(shown)}"
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
        if is_possible(one_slot(instance_of(instance.problem, more, (), limits, instance.memory))):
            return more.cluster.devices
    return None


def _needed(phase: str, instance: Instance, prices: Prices, limits: Limits, lines: tuple[Request, ...]) -> int | None:
    """The smallest slot on which a phase by itself fits with the degrees of its lines, wherever they put it."""
    spec, asked = instance.problem.phase(phase), [r for r in lines if phase in r.phases]
    for times in (1, *TIMES):
        finder = Finder(instance.problem, _larger(prices, times), lines, limits, instance.memory)
        for size in slot_sizes(finder.prices.cluster):
            if any(all(r.allows(c.layout) for r in asked) for c in finder.of(spec, size)):
                return size
    return None


def _larger(prices: Prices, times: int) -> Prices:
    """The same on so many times as many devices, in nodes that are no smaller."""
    if times == 1:
        return prices
    node, devices = prices.cluster.nodes[0], times * prices.cluster.devices
    each = min(devices, max(node.device.per_node, node.devices))
    larger = Cluster(f"{devices}x{node.device.name}", (Node(node.device, each),) * (devices // each))
    return replace(prices, cluster=larger)


def _distance(candidate: Candidate, request: Request) -> tuple[float, float]:
    """How far a candidate is from what a line asks for: degrees as factors, then seconds."""
    far = 0.0
    for name, asked in request.degrees.items():
        given = getattr(candidate.layout, name)
        far += max(given, asked) / min(given, asked) - 1
    return far, candidate.seconds


def _kinds(resident: Bytes, transient: Bytes) -> str:
    sizes = sorted(((v, k) for k, v in {**transient, **resident}.items() if v >= 5e3), reverse=True)
    return ", ".join(f"{k} {_gb(v)}" for v, k in sizes)


def _gb(size: float) -> str:
    return f"{size / GB:.1f} GB" if size >= 5e7 else f"{size / 1e6:.2f} MB"
