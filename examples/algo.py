"""GRPO in Python, equal to grpo.flow: `flowrun examples/algo.py:grpo`. `flowc fmt examples/algo.py:grpo` prints it.

Nothing runs while the function is traced: each call adds a node to the graph, and a value gets the name of the local
variable it is bound to. Python's loops and functions may build the graph; its `if` may not look at a value.
"""

from shardflow.dsl import (
    Prompts,
    Steps,
    adamw,
    causal_lm,
    every,
    flow,
    frozen,
    mean,
    metric,
    minimize,
    read,
    std,
    update,
    use,
)

k3 = use("std.kl").k3
clipped_policy_loss = use("std.losses").clipped_policy_loss
rewards = use("rewards")  # a stand-in: rewards.py isn't imported before the run


@flow
def grpo(start="models/addition", batch=Prompts(64), group=8, lr=1e-3, clip=0.2, beta=0.001):
    policy = causal_lm(start)
    ref = frozen(policy)

    prompts = read("data/addition_train.jsonl", batch=batch, epochs=2)
    rollout = policy.generate(prompts, n=group, max_new_tokens=4)
    reward = rewards.right(rollout.text, prompts.answer)
    adv = (reward - mean(reward, by="prompt")) / (std(reward, by="prompt") + 1e-6)

    with update(policy, adamw(lr=lr, schedule="linear", warmup=10), minibatch=Prompts(32)):
        logp = policy.logprobs(rollout)
        gain = clipped_policy_loss(logp, rollout.logprobs, adv, clip, clip)
        kl = k3(logp, ref.logprobs(rollout))
        minimize(mean(mean(gain, over="token")) + beta * mean(kl))
        metric(kl=mean(kl))

    with every(Steps(20)):
        test = read("data/addition_test.jsonl", all=True)
        answer = policy.generate(test, max_new_tokens=4, temperature=0)
        metric(test=mean(rewards.right(answer.text, test.answer)))
