"""Wishes that can't hold together are found, and no more of them than it takes."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardflow.compiler.search.instance import Instance, Request
from shardflow.compiler.search.requests import conflicting
from shardflow.compiler.search.solve import is_possible, solve

from .flows import ppo
from .instances import instances

pytest.importorskip("ortools")

NODE = 8


def on(first: int, count: int, *phases: str) -> Request:
    ranks = range(first * NODE, (first + count) * NODE)
    return Request(f"{', '.join(phases)} on {first}+{count}", phases, ranks)


def _tp(phase: str, tp: int) -> Request:
    return Request(f"{phase} tp={tp}", (phase,), degrees={"tp": tp})


def test_wishes_hold_in_what_is_found() -> None:
    wishes = (on(1, 1, "critic.update"), _tp("policy.update", 4))
    found = solve(replace(ppo("llama-2-7b", 16), requests=wishes))
    assert found is not None
    critic = found.puts["critic.update"]
    assert critic.room.devices == NODE and found.firsts[critic.slot] == NODE
    assert found.puts["policy.update"].candidate.layout.tp == 4


def test_the_lines_at_fault_are_named_and_no_others() -> None:
    wishes = (
        on(0, 1, "policy.update"),
        on(0, 1, "critic.values"),
        _tp("policy.generate", 2),
        on(1, 1, "critic.update"),
    )
    assert conflicting(replace(ppo("llama-2-7b", 16), requests=wishes)) == (wishes[1], wishes[3])


def test_ranks_that_overlap_without_being_the_same_are_at_fault() -> None:
    wishes = (on(0, 2, "policy.update"), on(0, 1, "critic.update"))
    assert conflicting(replace(ppo("llama-2-7b", 16), requests=wishes)) == wishes


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(instances(), st.data())
def test_without_any_one_of_the_lines_at_fault_there_is_a_placement(instance: Instance, data: st.DataObject) -> None:
    names = [x.name for x in instance.problem.phases]
    each = st.builds(_tp, st.sampled_from(names), st.sampled_from([1, 2, 4]))
    asked = replace(instance, requests=tuple(data.draw(st.lists(each, min_size=1, max_size=4))))
    if solve(asked) is not None:
        return
    found = conflicting(asked)
    assert (found is None) == (solve(replace(instance, requests=())) is None)
    for request in found or ():
        others = tuple(r for r in found or () if r is not request)
        assert is_possible(replace(instance, requests=others))
    assert found is None or not is_possible(replace(instance, requests=found))
