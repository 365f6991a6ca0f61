"""Flows of every shape: each is the same in any micro-batches, and when it is broken off and resumed."""

import json

import pytest

from .test_invariance import same_numbers
from .workshop import Workshop, bit_equal, untimed

USER = """
import numpy as np
from shardflow.dsl.ragged import Batch, Group

def dice(text: str, rng: np.random.Generator) -> float:
    return float(rng.random())

def centred(x: Group[float]) -> Group[float]:
    return [v - sum(x) / len(x) for v in x]

def below(x: Batch[float]) -> Batch[float]:
    return [v - max(x) for v in x]

async def later(text: str) -> float:
    return len(text) / 5
"""

HEAD = """
from std import preference_loss, whiten, z
from std.scan import discounted, gae
import rewards
flow test():
    model policy = causal_lm("p")
    model other = causal_lm("t")
    model critic = value_model("p")
    model a = frozen(b)
    model b = frozen(policy)
    state temperature = 1.0
    prompts = read("d.jsonl", batch=6 prompts)
    rollout = policy.generate(prompts, n=2, max_new_tokens=5)
    reward = rewards.share(rollout.text)
"""

FLOWS = {
    "two roots": """
    d = read("d.jsonl", batch=9 prompts, stream="b")
    update policy(adamw(lr=1e-2), minibatches=3):
        minimize -mean(policy.logprobs(rollout) * reward) - mean(policy.logprobs(d.prompt, d.answer))
""",
    "pairs": """
    model rm = reward_model("p")
    d = read("d.jsonl", batch=8 prompts, stream="b")
    update rm(adamw(lr=1e-2), minibatch=4 prompts):
        good = rm.score(d.prompt, d.chosen)
        bad = rm.score(d.prompt, d.rejected)
        minimize mean(preference_loss(good, bad)) + 0.01 * mean((good + bad) ** 2)
        metric accuracy = mean(good > bad)
        metric spread = std(good - bad)
    update policy(adamw(lr=1e-2)):
        minimize -mean(policy.logprobs(rollout) * rm.next.score(rollout))
""",
    "actor and critic": """
    old = critic.values(rollout)
    adv = gae(where(rollout.last, reward, 0), old, 1.0, 0.9)
    update critic(adamw(lr=1e-2), minibatch=3 prompts, epochs=2):
        minimize mean((critic.values(rollout) - (old + adv)) ** 2)
    update policy(adamw(lr=1e-2), minibatch=3 prompts):
        minimize -mean(policy.logprobs(rollout) * whiten(adv))
        metric entropy = mean(policy.entropy(rollout))
""",
    "one update reads another's next version": """
    update policy(adamw(lr=1e-2)):
        minimize -mean(policy.logprobs(rollout) * reward)
    update other(adamw(lr=1e-2), epochs=2):
        minimize mean(-other.logprobs(rollout) * exp(policy.next.logprobs(rollout)))
""",
    "copies of copies": """
    update policy(adamw(lr=1e-2)):
        minimize mean(policy.logprobs(rollout) * (a.logprobs(rollout) - b.logprobs(rollout) + reward))
    every 2 steps:
        next b = policy
""",
    "temperatures by row": """
    most = 3 + count(reward, by=prompt)
    heat = where(prompts.answer == "36", 0, 0.7)
    tried = policy.generate(prompts, n=2, max_new_tokens=most, temperature=heat)
    update policy(adamw(lr=1e-2), minibatch=3 prompts):
        minimize -mean(policy.logprobs(tried))
        metric gap = max(abs(policy.logprobs(tried) - tried.logprobs))
""",
    "a draw from samples": """
    more = policy.generate(rollout.text, n=2, max_new_tokens=3)
    update policy(adamw(lr=1e-2), minibatch=3 prompts):
        minimize -mean(policy.logprobs(more) * mean(reward, by=prompt))
""",
    "a stale draw with a state": """
    late = policy.generate(prompts, n=3, max_new_tokens=5, temperature=temperature, max_staleness=1)
    best = keep(late, where=rank(rewards.share(late.text), by=prompt) == 0)
    next temperature = temperature * 0.9
    update policy(adamw(lr=1e-2), minibatch=3 prompts):
        minimize -mean(policy.logprobs(best))
""",
    "functions of the user": """
    luck = rewards.dice(rollout.text)
    update policy(adamw(lr=1e-2), minibatch=3 prompts):
        weight = rewards.centred(reward) + rewards.below(reward) + rewards.later(rollout.text) + luck
        minimize -mean(policy.logprobs(rollout) * weight)
""",
    "conditions": """
    update policy(adamw(lr=1e-2), minibatch=2 prompts):
        logp = policy.logprobs(rollout)
        kept = mean(logp * reward, where=prompts.answer != "36")
        minimize -kept + mean(sum(logp, over=token), where=rollout.truncated) + mean(reward * logp, where=reward > 0.2)
""",
    "chat": """
    d = read("chat.jsonl", batch=4 prompts)
    said = policy.generate(d, n=2, max_new_tokens=4)
    update policy(adamw(lr=1e-2)):
        minimize -mean(policy.logprobs(said)) - mean(mean(policy.logprobs(d.prompt, d.answer), over=token))
""",
}


@pytest.mark.parametrize("name", FLOWS)
def test_it_is_the_same_run(workshop: Workshop, name: str) -> None:
    with (workshop.folder / "rewards.py").open("a") as file:
        file.write(USER)
    rows = [{"prompt": [{"role": "user", "content": f"{i}+{i}"}], "answer": str(2 * i)} for i in range(12)]
    (workshop.folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = workshop.compile(used_models(HEAD, FLOWS[name]) + FLOWS[name])
    whole, cut = (workshop.run(plan, 3, micro=micro) for micro in (100_000, 30))
    same_numbers(cut, whole)
    broken = workshop.interrupted(plan, at=1, steps=3, save_every=1, micro=30)
    resumed = workshop.run(plan, 3, resume=True, out=broken.out, micro=30)
    assert untimed(resumed.metrics) == untimed(cut.metrics)
    assert bit_equal(resumed.state, cut.state)


def used_models(head: str, body: str) -> str:
    """The head without the models that a body never names: a model must be trained or frozen."""
    lines = head.splitlines(keepends=True)
    optional = {f"    model {m} =": m for m in ("other", "critic", "a", "b")}
    unused = [start for start, model in optional.items() if f"{model}." not in body and f"update {model}" not in body]
    return "".join(line for line in lines if not line.startswith(tuple(unused) or ("\0",)))
