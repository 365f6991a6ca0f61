"""The acceptance set in Python: each flow of flows.flow, as a person would write it with the Python front end."""

# ruff: noqa: E501
# mypy: disable-error-code="no-untyped-def"

from shardflow.dsl import (
    Prompts,
    Steps,
    Tokens,
    adamw,
    causal_lm,
    clamp,
    collect,
    count,
    ema,
    every,
    exp,
    expand,
    flow,
    frozen,
    h100,
    keep,
    keep_rows,
    log_sigmoid,
    max,
    mean,
    metric,
    minimize,
    minimum,
    nodes,
    place,
    put,
    rank,
    read,
    reward_model,
    state,
    std,
    step,
    stop_gradient,
    sum,
    update,
    use,
    value_model,
    when,
)

rewards = use("rewards")
library = use("std")
k1, k3, whiten, z = library.k1, library.k3, library.whiten, library.z
clipped, clipped_policy_loss, clipped_value_loss = (
    library.clipped,
    library.clipped_policy_loss,
    library.clipped_value_loss,
)
at_last_token, pass_at_k = library.at_last_token, library.pass_at_k
gae, discounted = use("std.scan").gae, use("std.scan").discounted


@flow
def ppo_adaptive(
    policy_path="p",
    data="d",
    batch=Prompts(64),
    gamma=1.0,
    lam=0.95,
    clip=0.2,
    target=6.0,
    horizon=10000,
    warmup=10,
):
    """PPO with adaptive KL; critic alone for the first `warmup` steps."""
    policy = causal_lm(policy_path)
    ref = frozen(policy)
    critic = value_model(policy_path)
    rm = frozen(reward_model("rm"))
    beta = state(0.2)
    prompts = read(data, batch=batch)
    rollout = policy.generate(prompts, max_new_tokens=256)
    score = rm.score(rollout)
    values = critic.values(rollout)
    kls = k1(rollout.logprobs, ref.logprobs(rollout))
    reward = at_last_token(score, rollout) - beta * kls
    adv = gae(reward, values, gamma, lam)
    good = whiten(adv)
    kl = mean(sum(kls, over="token"))
    beta.next = beta * (1 + clamp(kl / target - 1, -0.2, 0.2) * count(score) / horizon)
    with when(step >= warmup), update(policy, adamw(lr=1e-6), minibatch=Prompts(16), epochs=4):
        minimize(mean(clipped_policy_loss(policy.logprobs(rollout), rollout.logprobs, good, clip, clip)))
    with update(critic, adamw(lr=5e-6), minibatch=Prompts(16), epochs=4):
        minimize(mean(clipped_value_loss(critic.values(rollout), values, adv + values, clip)))
    metric(kl=kl)


@flow
def grpo(data="d", group=8, beta=0.001):
    policy = causal_lm("p")
    ref = frozen(policy)
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, n=group, max_new_tokens=512, temperature=1.0)
    reward = rewards.exact_match(rollout.text, prompts.answer)
    adv = z(reward)
    with update(policy, adamw(lr=1e-6), minibatch=Prompts(16)):
        logp = policy.logprobs(rollout)
        pg = clipped_policy_loss(logp, rollout.logprobs, adv, 0.2, 0.2)
        minimize(mean(mean(pg, over="token")) + beta * mean(k3(logp, ref.logprobs(rollout))))


@flow
def dr_grpo(data="d", max_len=512):
    policy = causal_lm("p")
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, n=8, max_new_tokens=max_len)
    reward = rewards.exact_match(rollout.text, prompts.answer)
    adv = reward - mean(reward, by="prompt")
    with update(policy, adamw(lr=1e-6), minibatch=Prompts(16)):
        loss = clipped_policy_loss(policy.logprobs(rollout), rollout.logprobs, adv, 0.2, 0.2)
        minimize(mean(sum(loss, over="token")) / max_len)


@flow
def dapo(data="d", batch=Prompts(64), group=16, lo=0.2, hi=0.28):
    policy = causal_lm("p")
    with collect(batch, rounds=8, short="skip"):
        prompts = read(data, batch=batch)
        rollout = policy.generate(prompts, n=group, max_new_tokens=1024)
        right = rewards.exact_match(rollout.text, prompts.answer)
        keep_rows(prompts, where=std(right, by="prompt") > 0)
        metric(pass_rate=mean(right))
    reward = right + rewards.overlong(rollout.length, 1024, 128)
    adv = z(reward)
    with update(policy, adamw(lr=1e-6), minibatch=Prompts(16)):
        minimize(mean(clipped_policy_loss(policy.logprobs(rollout), rollout.logprobs, adv, lo, hi)))


@flow
def gspo(data="d", lo=0.0003, hi=0.0004):
    policy = causal_lm("p")
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, n=8, max_new_tokens=512)
    adv = z(rewards.exact_match(rollout.text, prompts.answer))
    with update(policy, adamw(lr=1e-6), minibatch=Prompts(16)):
        ratio = exp(mean(policy.logprobs(rollout) - rollout.logprobs, over="token"))
        minimize(mean(clipped(ratio, adv, lo, hi)))


@flow
def cispo(data="d", lo=1.0, hi=2.0):
    policy = causal_lm("p")
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, n=8, max_new_tokens=512)
    adv = z(rewards.exact_match(rollout.text, prompts.answer))
    with update(policy, adamw(lr=1e-6), minibatch=Prompts(16)):
        logp = policy.logprobs(rollout)
        ratio = exp(logp - rollout.logprobs)
        minimize(-mean(stop_gradient(clamp(ratio, 1 - lo, 1 + hi)) * adv * logp))


@flow
def rloo(data="d"):
    policy = causal_lm("p")
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, n=4, max_new_tokens=512)
    reward = rewards.exact_match(rollout.text, prompts.answer)
    n = count(reward, by="prompt")
    adv = reward - (sum(reward, by="prompt") - reward) / (n - 1)
    with update(policy, adamw(lr=1e-6)):
        minimize(-mean(sum(policy.logprobs(rollout), over="token") * adv))


@flow
def reinforce_pp_baseline(data="d"):
    policy = causal_lm("p")
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, n=8, max_new_tokens=512)
    reward = rewards.exact_match(rollout.text, prompts.answer)
    adv = whiten(expand(reward - mean(reward, by="prompt"), to=rollout.token))
    with update(policy, adamw(lr=1e-6), minibatch=Prompts(16)):
        minimize(mean(clipped_policy_loss(policy.logprobs(rollout), rollout.logprobs, adv, 0.2, 0.2)))


@flow
def reinforce_pp(data="d", gamma=0.97, beta=0.01):
    policy = causal_lm("p")
    ref = frozen(policy)
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, max_new_tokens=512)
    score = rewards.exact_match(rollout.text, prompts.answer)
    adv = whiten(discounted(at_last_token(score, rollout) - beta * k1(rollout.logprobs, ref.logprobs(rollout)), gamma))
    with update(policy, adamw(lr=1e-6), minibatch=Prompts(16)):
        minimize(mean(clipped_policy_loss(policy.logprobs(rollout), rollout.logprobs, adv, 0.2, 0.2)))


@flow
def remax(data="d"):
    policy = causal_lm("p")
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, n=4, max_new_tokens=512)
    greedy = policy.generate(prompts, max_new_tokens=512, temperature=0)
    adv = rewards.exact_match(rollout.text, prompts.answer) - rewards.exact_match(greedy.text, prompts.answer)
    with update(policy, adamw(lr=1e-6)):
        minimize(-mean(policy.logprobs(rollout) * adv))


@flow
def async_tis(data="d", cap=2.0, reject=10.0):
    policy = causal_lm("p")
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, n=8, max_new_tokens=512, max_staleness=2)
    adv = z(rewards.exact_match(rollout.text, prompts.answer))
    prox = policy.logprobs(rollout)
    off = prox - rollout.logprobs
    w = minimum(exp(off), cap)
    w_seq = minimum(exp(sum(off, over="token")), cap)
    ok = exp(off) < reject
    with update(policy, adamw(lr=1e-6), minibatch=Prompts(16)):
        loss = clipped_policy_loss(policy.logprobs(rollout), prox, adv, 0.2, 0.2)
        minimize(mean(w * loss, where=ok))
    metric("w_seq", mean(w_seq))


@flow
def sft(data="d"):
    policy = causal_lm("p")
    data_ = read(data, batch=Prompts(128))
    with update(policy, adamw(lr=1e-5)):
        minimize(-mean(policy.logprobs(data_.prompt, data_.response)))


@flow
def reward_modelling(data="d"):
    rm = reward_model("p")
    d = read(data, batch=Prompts(64))
    with update(rm, adamw(lr=1e-5)):
        minimize(-mean(log_sigmoid(rm.score(d.prompt, d.chosen) - rm.score(d.prompt, d.rejected))))


@flow
def dpo(data="d", beta=0.1):
    """DPO; the reference is reset to the policy every 100 steps (TR-DPO, hard)."""
    policy = causal_lm("p")
    ref = frozen(policy)
    d = read(data, batch=Prompts(64))
    with update(policy, adamw(lr=5e-7)):
        win = sum(policy.logprobs(d.prompt, d.chosen) - ref.logprobs(d.prompt, d.chosen), over="token")
        lose = sum(policy.logprobs(d.prompt, d.rejected) - ref.logprobs(d.prompt, d.rejected), over="token")
        minimize(-mean(log_sigmoid(beta * (win - lose))))
    with every(Steps(100)):
        ref.next = policy


@flow
def ema_ref(data="d"):
    policy = causal_lm("p")
    ref = frozen(policy)
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, n=8, max_new_tokens=512)
    adv = z(rewards.exact_match(rollout.text, prompts.answer))
    with update(policy, adamw(lr=1e-6)):
        logp = policy.logprobs(rollout)
        minimize(mean(-adv * logp) + 0.01 * mean(k3(logp, ref.logprobs(rollout))))
    ref.next = ema(ref, policy, decay=0.99)


@flow
def online_dpo(data="d", beta=0.1):
    policy = causal_lm("p")
    ref = frozen(policy)
    rm = frozen(reward_model("rm"))
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, n=8, max_new_tokens=512)
    reward = rm.score(rollout)
    best = keep(rollout, where=rank(reward, by="prompt") == 0)
    worst = keep(rollout, where=rank(-reward, by="prompt") == 0)
    with update(policy, adamw(lr=5e-7)):
        win = sum(policy.logprobs(best) - ref.logprobs(best), by="prompt")
        lose = sum(policy.logprobs(worst) - ref.logprobs(worst), by="prompt")
        minimize(-mean(log_sigmoid(beta * (win - lose))))


@flow
def best_of_n(data="d"):
    policy = causal_lm("p")
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, n=16, max_new_tokens=512)
    reward = rewards.exact_match(rollout.text, prompts.answer)
    best = keep(rollout, where=(rank(reward, by="prompt") == 0) & (reward > 0))
    with update(policy, adamw(lr=1e-5)):
        minimize(-mean(policy.logprobs(best)))


@flow
def distill(data="d"):
    """On-policy distillation: reverse KL per token as the advantage, not as a loss (k1 as a loss has zero mean gradient)."""
    policy = causal_lm("p")
    teacher = frozen(causal_lm("t"))
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, n=4, max_new_tokens=512)
    adv = -k1(rollout.logprobs, teacher.logprobs(rollout))
    with update(policy, adamw(lr=1e-5)):
        minimize(mean(clipped_policy_loss(policy.logprobs(rollout), rollout.logprobs, adv, 0.2, 0.2)))


@flow
def tool_use(data="d", gamma=0.99):
    """Per-turn rewards arrive at the last token of each turn."""
    policy = causal_lm("p")
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, n=8, env=rewards.calculator, max_turns=4, max_new_tokens=512)
    total = sum(rollout.reward, over="token")
    adv = discounted(rollout.reward, gamma) - mean(total, by="prompt")
    with update(policy, adamw(lr=1e-6)):
        minimize(-mean(policy.logprobs(rollout) * adv))


@flow
def evaluate(data="d"):
    policy = causal_lm("p")
    prompts = read(data, batch=Prompts(64))
    rollout = policy.generate(prompts, n=8, max_new_tokens=512)
    with update(policy, adamw(lr=1e-6)):
        minimize(-mean(policy.logprobs(rollout) * z(rewards.exact_match(rollout.text, prompts.answer))))
    with every(Steps(20)):
        test = read("test.jsonl", all=True)
        tried = policy.generate(test, n=16, temperature=0.6, max_new_tokens=512)
        right = rewards.exact_match(tried.text, test.answer)
        metric(pass_1=mean(right))
        metric(pass_8=mean(pass_at_k(right, 16, 8)))
        metric(best=mean(max(right, by="prompt")))


place(
    ppo_adaptive,
    h100(nodes=2),
    put("policy.update", on=nodes[0], fsdp=8, micro=Tokens(8192)),
    put("policy.generate", on=nodes[1], tp=2, engine="vllm"),
    put("ref", beside="policy.update"),
)
