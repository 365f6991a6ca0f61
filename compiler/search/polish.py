"""A placement near the best, made better one phase at a time as far as that goes: a gap is left to large searches."""

from collections.abc import Iterator
from dataclasses import replace

from .bounds import as_asked
from .instance import Instance
from .solve import ROUNDING, Put, Solution, excess, moves, timed


def polished(instance: Instance, best: Solution) -> Solution:
    """The solution with other candidates of single phases as long as that makes its period shorter."""
    instance = as_asked(instance)
    while best.gap > ROUNDING:
        others = (instead(instance, best, name, put) for name in best.puts for put in _others(instance, best, name))
        better = min(others, key=lambda s: s.period, default=None)
        if better is None or better.period >= best.period * (1 - 1e-9):
            break
        best = better
    return _settled(instance, best)


def _settled(instance: Instance, best: Solution) -> Solution:
    """Of ways to run a phase that make no step longer, the plainest: awake, then fast, then uncut."""
    for name in best.puts:
        ways = _others(instance, best, name)
        free = [p for p in ways if instead(instance, best, name, p).period <= best.period * (1 + 1e-9)]
        plainest = min((best.puts[name], *free), key=_plainness)
        if _plainness(plainest) < _plainness(best.puts[name]):
            best = instead(instance, best, name, plainest)
    return best


def _plainness(put: Put) -> tuple[bool, float, int]:
    layout = put.candidate.layout
    return layout.sleeps, round(put.candidate.seconds, 6), layout.tp * layout.pp * layout.ep * layout.fsdp


def _others(instance: Instance, best: Solution, name: str) -> Iterator[Put]:
    """Other ways for a phase to run where it is; if it shares weights, with the weights as they lie."""
    put, is_shared = best.puts[name], any(name in pair for pair in instance.problem.sharing())
    for c in instance.choices[name][put.room]:
        other = replace(put, candidate=c)
        is_free = c is not put.candidate and (not is_shared or c.key == put.candidate.key)
        if is_free and excess({**best.puts, name: other}, instance) <= 0:
            yield other


def instead(instance: Instance, best: Solution, name: str, put: Put) -> Solution:
    """The solution with a phase put so, all in the same order."""
    puts = {**best.puts, name: put}
    order = sorted(puts, key=lambda x: (best.start[x], list(puts).index(x)))
    moved = moves(instance, puts)
    start, end = timed(instance, puts, moved, order)
    return replace(best, puts=puts, moved=moved, start=start, end=end, period=max(end.values()))
