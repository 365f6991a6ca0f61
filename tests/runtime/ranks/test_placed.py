"""A value that `place` puts somewhere is computed there, and the numbers stay those of one process."""

import pytest

from ..test_flows import TEXT
from ..workshop import Workshop
from .equivalence import alone, assert_same, compiled, together
from .pool import Pool

PLACED = {
    "dapo/round": ("policy.update on nodes[0]", "policy.generate on nodes[1]", "right on controller"),
    "async_tis": (
        "policy.update on nodes[0]",
        "policy.generate on nodes[1]",
        "adv on controller",
        "w with policy.generate",
    ),
    "grpo": ("policy.update on nodes[0], fsdp=2", "policy.generate on nodes[1]", "reward on controller"),
    "ppo_adaptive": ("policy on nodes[0], fsdp=2", "adv on nodes[1]", "critic.values on nodes[1]", "ref with policy"),
    "dapo": ("policy.update on nodes[0]", "adv with policy.generate"),
}


@pytest.mark.parametrize("case", PLACED)
def test_values_are_computed_where_they_are_placed(workshop: Workshop, pool: Pool, case: str) -> None:
    lines, flow = "".join(f"\n    {line}" for line in PLACED[case]), case.partition("/")[0]
    text = f"{TEXT}\nplace {flow} on cpu(nodes=2, devices=2):{lines}\n"
    one = alone(workshop, compiled(workshop.folder, TEXT, flow, None, data="d.jsonl"), steps=3)
    plan = compiled(workshop.folder, text, flow, 4, data="d.jsonl")
    four = together(pool, workshop, plan, steps=3)
    assert_same(one, four)
    assert [row.keys() for row in four.result.samples] == [row.keys() for row in one.result.samples]


WITHIN = """
import rewards

flow within(data: str):
    model policy = causal_lm("p")
    model rival = causal_lm("p")
    model ref = frozen(policy)
    prompts = read(data, batch=6 prompts)
    rollout = policy.generate(prompts, n=2, max_new_tokens=6)
    reward = rewards.exact_match(rollout.text, prompts.answer) + rollout.length
    update rival(adamw(lr=1e-3)):
        minimize -mean(rival.logprobs(rollout) * reward)
    update policy(adamw(lr=1e-3), minibatch=3 prompts):
        best = keep(rollout, where=reward >= mean(reward))
        minimize -mean(policy.logprobs(best) * (ref.logprobs(best) - rival.logprobs(best)))
"""


def test_other_models_within_an_update_come_to_it(workshop: Workshop, pool: Pool) -> None:
    lines = ("policy.update on nodes[0], fsdp=2", "rival.update on nodes[1]", "policy.generate on nodes[1]")
    text = f"{WITHIN}\nplace within on cpu(nodes=2, devices=2):" + "".join(f"\n    {line}" for line in lines) + "\n"
    one = alone(workshop, compiled(workshop.folder, WITHIN, "within", None, data="d.jsonl"), steps=3)
    plan = compiled(workshop.folder, text, "within", 4, data="d.jsonl")
    assert_same(one, together(pool, workshop, plan, steps=3))
