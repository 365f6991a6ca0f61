"""A run from commit to commit: segments of steps, commits between them, failures that break segments off.

A commit stops all slots (every rank writes), so what happens between two of them depends on nothing before. A failure
of anything ends the whole run; it starts again at the last commit, whose queues hold the rollouts made ahead, and draws
the same lengths again, because noise is keyed by the row.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from .events import Network, Ran, Seconds, play, unrolled
from .result import Incident, Options
from .tasks import Period

MOST = 2000
"""Failures and restarts without a commit after which a run is given up."""


@dataclass(frozen=True)
class Segment:
    """Steps that count, `first` on, between `start` and `end`: the end of their last task."""

    first: int
    start: float
    end: float
    ran: tuple[Ran, ...]


@dataclass
class Timeline:
    """What happened, in order of time. events: starts and ends, of lost work too."""

    segments: list[Segment] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    lost: list[Ran] = field(default_factory=list)
    events: int = 0
    end: float = 0.0


def timeline(period: Period, seconds: Seconds, options: Options) -> Timeline:
    """Run all steps of a period, with its failures."""
    found = Timeline()
    failures = _failures(options)
    failure = next(failures)
    networks: dict[tuple[bool, int], Network] = {}
    step, now = 0, 0.0
    while step < options.steps:
        count = min(options.interval, options.steps - step)
        segment, events = _segment(period, seconds, options, networks, step, count, now)
        if failure < segment.end + options.commit:
            needed = segment.end + options.commit - now
            found.events += _break_off(found, segment, failure, step)
            now = failure
            failure, now = _restart(found, failures, now, step, options, needed)
            continue
        found.events += events
        found.segments.append(segment)
        step, now = step + count, segment.end + options.commit
        if options.commit:
            found.incidents.append(Incident("commit", segment.end, now, step))
    found.end = now
    return found


def _failures(options: Options) -> Iterator[float]:
    """Times of failures: a Poisson process."""
    rng, now = random.Random(f"failures {options.seed}"), 0.0
    while True:
        now += rng.expovariate(1 / options.mtbf) if options.mtbf else float("inf")
        yield now


def _segment(
    period: Period,
    seconds: Seconds,
    options: Options,
    networks: dict[tuple[bool, int], Network],
    first: int,
    count: int,
    now: float,
) -> tuple[Segment, int]:
    """Simulate steps `first` to `first + count` − 1. The network of equal segments is made once."""
    is_start = first == 0
    base = 0 if is_start else 1
    key = (is_start, count)
    if key not in networks:
        networks[key] = unrolled(period, base, base + count, together=options.together)
    ran = play(networks[key], period, seconds, now, shift=first - base)
    return Segment(first, now, max((r.end for r in ran), default=now), tuple(ran)), 2 * len(ran)


def _check_progress(found: Timeline, step: int, options: Options, needed: float) -> None:
    """Raise ValueError for a run that doesn't come to its next commit."""
    if len(found.incidents) >= MOST and all(i.step == step for i in found.incidents[-MOST:]):
        raise ValueError(
            f"the commit after step {step} is never reached: a failure comes every {options.mtbf or 0:.4g} s, a "
            f"restart takes {options.restart:.4g} s and the steps to it {needed:.4g} s: --save-every can be less"
        )


def _break_off(found: Timeline, segment: Segment, failure: float, step: int) -> int:
    """Note what a failure took. Returns the events there were before it."""
    broken = [r for r in segment.ran if r.start < failure]
    found.lost += (Ran(r.task, r.period, r.start, min(r.end, failure)) for r in broken)
    found.incidents.append(Incident("failure", failure, failure, step, failure - segment.start))
    return len(broken) + sum(r.end <= failure for r in broken)


def _restart(
    found: Timeline, failures: Iterator[float], now: float, step: int, options: Options, needed: float
) -> tuple[float, float]:
    """Start again after a failure, and again if that fails too. Returns the next failure and the time."""
    failure = next(failures)
    while failure < now + options.restart:
        found.incidents.append(Incident("restart", now, failure, step))
        found.incidents.append(Incident("failure", failure, failure, step))
        now, failure = failure, next(failures)
        _check_progress(found, step, options, needed)
    found.incidents.append(Incident("restart", now, now + options.restart, step))
    _check_progress(found, step, options, needed)
    return failure, now + options.restart
