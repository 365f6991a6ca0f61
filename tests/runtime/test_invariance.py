"""Same numbers, whatever the split, the company or the interruption."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shardflow.runtime.values import Record, Value

from .workshop import Result, Workshop, bit_equal, difference, small, untimed

TEXT = small((Path(__file__).parent.parent / "data" / "flows.flow").read_text(encoding="utf-8"))

HEAD = """
from std import k3, whiten, z
from std.scan import discounted
import rewards

flow custom():
    model policy = causal_lm("p")
    model ref = frozen(policy)
    prompts = read("d.jsonl", batch=6 prompts)
    rollout = policy.generate(prompts, n=3, max_new_tokens=6)
    adv = z(rewards.share(rollout.text))
    update policy(adamw(lr=1e-3), minibatch=3 prompts):
        logp = policy.logprobs(rollout)
"""

LOSSES = {
    "linear": "minimize mean(logp * adv) + 0.1 * mean(mean(k3(logp, ref.logprobs(rollout)), over=token)) + 3",
    "sum of sums": "minimize sum(sum(logp, over=token) * adv) / 7 - mean(logp, where=rollout.last)",
    "whitened": "minimize -mean(whiten(logp) * adv)",
    "deviation": "minimize std(logp) + var(mean(logp, over=token))",
    "deviation of a group": "minimize mean(std(sum(logp, over=token), by=prompt))",
    "logarithm of a mean": "minimize -ln(mean(exp(logp)))",
    "product of means": "minimize mean(logp) * mean(logp * adv)",
    "quotient of means": "minimize mean(logp * adv) / (1 + mean(exp(logp)))",
    "counted by the model": "minimize mean(logp * adv, where=exp(logp) < 0.005)",
    "scaled by a count": "minimize mean(logp * adv) * count(logp, where=logp < -5)",
    "quantile": "minimize quantile(logp, q=0.3) + quantile(sum(logp, over=token), q=0.8)",
    "extremes": "minimize max(logp) - min(mean(logp, over=token))",
    "extreme of a group": "minimize mean(max(sum(logp, over=token), by=prompt))",
    "baseline from the model": "minimize mean((adv - stop_gradient(mean(logp))) * logp)",
    "rows of a group": "minimize mean(expand(mean(logp, by=prompt), to=rollout.token) * adv * logp)",
    "a scan": "minimize mean(discounted(logp, 0.9) * adv)",
    "entropy": "minimize mean(logp * adv) - 0.01 * mean(policy.entropy(rollout))",
    "rank in a group": "minimize mean(where(rank(sum(logp, over=token), by=prompt) == 0, sum(logp, over=token), 0))",
    "rank of tokens": "minimize mean(where(rank(logp, by=prompt) < 4, logp, 0))",
    "rank of all": "minimize mean(where(rank(sum(logp, over=token)) < 4, sum(logp, over=token), 0))",
    "ranks of both": "minimize mean(where(rank(logp) < 9 and rank(logp, by=prompt) < 4, logp, 0))",
}

FLOWS = ("grpo", "ppo_adaptive", "dapo", "dpo", "online_dpo", "async_tis", "gspo")


def same_numbers(a: Result, b: Result, tolerance: float = 1e-9) -> None:
    """Equal tokens; losses, metrics and weights within the tolerance."""
    assert [s["text"] for s in a.samples] == [s["text"] for s in b.samples]
    for ours, theirs in zip(untimed(a.metrics), untimed(b.metrics), strict=True):
        assert ours == pytest.approx(theirs, rel=tolerance, abs=tolerance)
    for model in a.meta["optimizer_steps"]:
        assert difference(a.weights(model), b.weights(model)) < tolerance


# ---------------------------------------------------------------- micro-batches


@pytest.mark.parametrize("name", FLOWS)
def test_micro_batches_change_nothing(workshop: Workshop, name: str) -> None:
    plan = workshop.compile(TEXT, name, data="d.jsonl")
    same_numbers(workshop.run(plan, micro=40), workshop.run(plan, micro=100_000))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_a_function_of_global_sums(workshop: Workshop, loss: str) -> None:
    plan = workshop.compile(f"{HEAD}        {LOSSES[loss]}\n        metric seen = mean(exp(logp) * adv)\n")
    same_numbers(workshop.run(plan, 2, micro=25), workshop.run(plan, 2, micro=100_000))
