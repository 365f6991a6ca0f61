"""Sampling and training run at the same time where their ranks are apart and the draw is stale."""

import argparse
import re
from collections.abc import Callable
from typing import Any

import pytest

from shardflow.compiler.plan import Instruction, encode
from shardflow.runtime.execution.interpreter import HANDLERS, Env
from shardflow.runtime.ranks.world import World
from shardflow.runtime.run import run_plan

from ..test_flows import TEXT
from ..workshop import Workshop
from .equivalence import alone, assert_same, compiled, together
from .pool import Pool

PLACED = """
place async_tis on cpu(nodes=2, devices=1):
    policy.update on nodes[0]
    policy.generate on nodes[1]
"""
STALENESS = 2
STEPS = 4


def meeting(world: World, plan: bytes, args: argparse.Namespace) -> None:
    """Run a plan in which the update of a step and the draw made meanwhile wait for each other to have begun."""
    store = world.store
    assert store is not None

    def meets(handler: Callable[..., Any], own: str, other: str, ahead: int) -> Callable[[Instruction, Env], Any]:
        def apply(i: Instruction, env: Env) -> Any:
            step = env.step.number - ahead
            if 0 <= step < STEPS:
                store.set(f"{own} {step}", "")
                store.wait([f"{other} {step}"])
            return handler(i, env)

        return apply

    before = dict(HANDLERS)
    HANDLERS["update"] = meets(HANDLERS["update"], "update", "generate", 0)
    HANDLERS["generate"] = meets(HANDLERS["generate"], "generate", "update", STALENESS)
    try:
        run_plan(plan, args, world)
    finally:
        HANDLERS.update(before)


def scoring(world: World, plan: bytes, args: argparse.Namespace) -> None:
    """Run a plan in which the update of a step and the reference's scoring of the next wait for each other to begin."""
    store = world.store
    assert store is not None
    before = dict(HANDLERS)

    def update(i: Instruction, env: Env) -> Any:
        if env.step.number < STEPS - 1:
            store.set(f"update {env.step.number}", "")
            store.wait([f"score {env.step.number}"])
        return before["update"](i, env)

    def logprobs(i: Instruction, env: Env) -> Any:
        if i.attrs["model"] == "ref" and env.step.number > 0:
            store.set(f"score {env.step.number - 1}", "")
            store.wait([f"update {env.step.number - 1}"])
        return before["logprobs"](i, env)

    HANDLERS.update(update=update, logprobs=logprobs)
    try:
        run_plan(plan, args, world)
    finally:
        HANDLERS.update(before)


def test_a_step_and_the_scoring_of_the_next_run_at_the_same_time(workshop: Workshop, pool: Pool) -> None:
    placed = PLACED.replace("async_tis", "grpo").replace(
        "    policy.generate", "    ref on nodes[1]\n    policy.generate"
    )
    stale = re.sub(
        r"(flow grpo\(.*?policy\.generate\([^)]*)\)", r"\1, max_staleness=2)", TEXT, count=1, flags=re.DOTALL
    )
    plan = compiled(workshop.folder, stale + placed, "grpo", 2, data="d.jsonl")
    pool.run(scoring, encode(plan), workshop.options(steps=STEPS), ranks=2)


def test_a_step_and_the_draw_of_a_later_one_run_at_the_same_time(workshop: Workshop, pool: Pool) -> None:
    plan = compiled(workshop.folder, TEXT + PLACED, "async_tis", 2, data="d.jsonl")
    pool.run(meeting, encode(plan), workshop.options(steps=STEPS), ranks=2)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_numbers_are_those_of_one_process(workshop: Workshop, pool: Pool, ranks: int) -> None:
    one = alone(workshop, compiled(workshop.folder, TEXT, "async_tis", None, data="d.jsonl"), steps=STEPS)
    text = TEXT + PLACED.replace("devices=1", f"devices={ranks // 2}")
    plan = compiled(workshop.folder, text, "async_tis", ranks, data="d.jsonl")
    assert_same(one, together(pool, workshop, plan, steps=STEPS))
