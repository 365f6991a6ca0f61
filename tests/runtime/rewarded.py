"""A flow with one reward, for tests of what a user meets."""

from typing import Any

from shardflow.runtime.values import Record, Value

from .workshop import Result, Workshop

FLOW = """
import rewards
flow test(batch=4 prompts):
    model policy = causal_lm("p")
    prompts = read("d.jsonl", batch=batch, shuffle=false)
    rollout = policy.generate(prompts, n=3, max_new_tokens=4)
    reward = {reward}
    update policy(adamw(lr=1e-3)):
        minimize -mean(policy.logprobs(rollout) * reward)
"""
PLAIN = FLOW.format(reward="rewards.share(rollout.text)")


def with_function(workshop: Workshop, source: str, reward: str, **options: Any) -> Result:
    """One step of a flow whose reward is a function of the given source."""
    add_function(workshop, source)
    return workshop.run(FLOW.format(reward=reward), 1, **options)


def add_function(workshop: Workshop, source: str) -> None:
    with (workshop.folder / "rewards.py").open("a") as file:
        file.write("\n" + source)


def column(result: Result, name: str) -> list[Any]:
    value = result.values[0][name]
    assert isinstance(value, Value)
    return value.rows


def rollout_of(result: Result) -> Record:
    value = result.values[0]["rollout"]
    assert isinstance(value, Record)
    return value
