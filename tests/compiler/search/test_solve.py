"""The search finds the shortest period there is, proves it, and gives the same placement in every run."""

import pytest
from hypothesis import HealthCheck, given, settings

from shardflow.compiler.search.bounds import as_asked
from shardflow.compiler.search.instance import Instance
from shardflow.compiler.search.solve import Effort, any_placement, excess, moves, solve, timed

from .instances import best_period, instances

pytest.importorskip("ortools")


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(instances())
def test_it_finds_what_trying_everything_finds(instance: Instance) -> None:
    found, best = solve(instance, Effort(gap=0.0)), best_period(instance)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert found.period == pytest.approx(best, rel=1e-4)
        assert found.bound == pytest.approx(best, rel=1e-3) and found.optimal


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(instances())
def test_what_is_found_without_time_fits(instance: Instance) -> None:
    """Where a search gives up, some placement is there all the same, if there is any."""
    found = any_placement(as_asked(instance))
    assert (found is None) == (best_period(instance) is None)
    if found is not None:
        best = best_period(instance)
        assert excess(found.puts, instance) <= 0 and best is not None and found.period >= best - 1e-9


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(instances())
def test_two_runs_are_the_same(instance: Instance) -> None:
    assert solve(instance) == solve(instance)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(instances())
def test_its_times_are_those_of_its_phases(instance: Instance) -> None:
    found = solve(instance)
    if found is not None:
        order = sorted(found.puts, key=lambda x: (found.start[x], found.end[x]))
        start, end = timed(instance, found.puts, moves(instance, found.puts), order)
        assert max(end.values()) == pytest.approx(found.period)
        for phase in instance.problem.phases:
            assert all(start[phase.name] >= end[a] for a in phase.after)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(instances())
def test_the_period_holds_every_load_and_every_cycle(instance: Instance) -> None:
    """A period is no shorter than what a slot has to do, nor than the cycle of weights divided by k + 1."""
    found = solve(instance)
    if found is not None:
        for slot in {put.slot for put in found.puts.values()}:
            load = sum(put.candidate.seconds for put in found.puts.values() if put.slot == slot)
            assert found.period >= load - 1e-9
        for train, generate in instance.problem.sampled_after_training():
            ahead = instance.problem.phase(generate).ahead
            around = sum(found.puts[x].candidate.seconds for x in (train, generate)) + found.moved[generate].seconds
            assert found.period >= around / (ahead + 1) - 1e-9
