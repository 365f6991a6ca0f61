"""What a flow means, statement by statement, as runs show it."""

from typing import Any

import pytest
import torch

from shardflow.runtime.values import Value

from .workshop import Result, Workshop, bit_equal, difference, untimed

MODEL = """
from std import z
import rewards
flow test():
    model policy = causal_lm("p")
"""

START = """
    prompts = read("d.jsonl", batch=6 prompts)
    rollout = policy.generate(prompts, n=2, max_new_tokens=5)
    reward = rewards.share(rollout.text)
"""

UPDATE = """
    update policy(adamw(lr=1e-2)):
        minimize -mean(policy.logprobs(rollout) * reward)
"""

PROBE = "mean(policy.logprobs(prompts.prompt, prompts.answer))"
"""A number that tells one version of the policy from another."""


def values(result: Result, name: str) -> list[float]:
    """A scalar or the mean of a value, step by step."""
    found = [step[name] for step in result.values]
    return [float(v.tensor.double().mean()) for v in found if isinstance(v, Value)]


# ---------------------------------------------------------------- versions


def test_when_skips_an_update_and_leaves_the_version(workshop: Workshop) -> None:
    update = UPDATE.replace("\n    ", "\n        ")
    flow = (
        MODEL + START + "    when step == 1 or step == 2:" + update + f"    probe = {PROBE}\n    metric probe = probe\n"
    )
    text = flow.replace("batch=6 prompts", "batch=24 prompts, shuffle=false")  # the same rows in every step
    result = workshop.run(text, 5)
    probe = result.column("probe")
    assert probe[0] == probe[1] and probe[1] != probe[2] != probe[3] and probe[3] == probe[4]
    assert [m["step"] for m in result.metrics if "loss.policy" in m] == [1, 2]
    assert result.meta["optimizer_steps"] == {"policy": 2}


BLOCKS = [
    (
        """
    model ref = frozen(policy)
    when step >= 0:
        update policy(adamw(lr=1e-2)):
            minimize -mean(policy.logprobs(rollout) * ref.logprobs(rollout) * reward)
    every 1 steps:
        next ref = policy
""",
        """
    model ref = frozen(policy)
    update policy(adamw(lr=1e-2)):
        minimize -mean(policy.logprobs(rollout) * ref.logprobs(rollout) * reward)
    next ref = policy
""",
    ),
    (
        """
    model ref = frozen(policy)
    update policy(adamw(lr=1e-2)):
        good = keep(rollout, where=reward >= mean(reward))
        minimize -mean(policy.logprobs(good) * ref.logprobs(good))
    next ref = policy
""",
        """
    model ref = frozen(policy)
    good = keep(rollout, where=reward >= mean(reward))
    update policy(adamw(lr=1e-2)):
        minimize -mean(policy.logprobs(good) * ref.logprobs(good))
    next ref = policy
""",
    ),
    (
        """
    model ref = value_model("p")
    when step >= 0:
        update policy(adamw(lr=1e-2)):
            minimize -mean(policy.logprobs(rollout) * ref.values(rollout))
    when step + 1 > 0:
        update ref(adamw(lr=1e-2)):
            minimize mean((ref.values(rollout) - policy.logprobs(rollout)) ** 2)
""",
        """
    model ref = value_model("p")
    update policy(adamw(lr=1e-2)):
        minimize -mean(policy.logprobs(rollout) * ref.values(rollout))
    update ref(adamw(lr=1e-2)):
        minimize mean((ref.values(rollout) - policy.logprobs(rollout)) ** 2)
""",
    ),
]


@pytest.mark.parametrize(("blocks", "plain"), BLOCKS, ids=["copy", "rows chosen inside", "two updates"])
def test_blocks_that_read_what_the_other_replaces_see_the_old_weights(
    workshop: Workshop, blocks: str, plain: str
) -> None:
    a, b = workshop.run(MODEL + START + blocks, 3), workshop.run(MODEL + START + plain, 3)
    for model in ("policy", "ref"):
        assert difference(a.weights(model), b.weights(model)) < 1e-12


def test_two_models_swap_their_weights(workshop: Workshop) -> None:
    swap = """
    model a = frozen(causal_lm("p"))
    model b = frozen(causal_lm("t"))
    next a = b
    next b = a
    metric a = mean(a.logprobs(prompts.prompt, prompts.answer))
    metric b = mean(b.logprobs(prompts.prompt, prompts.answer))
"""
    text = (MODEL + START + UPDATE + swap).replace("batch=6 prompts", "batch=24 prompts, shuffle=false")
    result = workshop.run(text, 4)
    a, b = result.column("a"), result.column("b")
    assert a == [a[0], b[0], a[0], b[0]] and b == [b[0], a[0], b[0], a[0]] and a[0] != b[0]


def test_a_block_reads_both_versions_of_a_model(workshop: Workshop) -> None:
    both = """
    every 2 steps:
        again = policy.generate(prompts, n=2, max_new_tokens=5)
        metric inside = mean(policy.next.logprobs(again) - policy.logprobs(again))
    now = policy.generate(prompts, n=2, max_new_tokens=5)
    metric outside = mean(policy.next.logprobs(rollout) - policy.logprobs(rollout))
    every 2 steps:
        metric same = mean(policy.next.logprobs(rollout) - policy.logprobs(rollout)) - mean(now.length) * 0
"""
    result = workshop.run(MODEL + START + UPDATE + both, 3)
    first = result.metrics[0]
    assert first["same"] == first["outside"] != 0 and first["inside"] != 0
    assert result.metrics[-1]["inside"] == 0  # after the last step both are the final weights


def test_every_runs_at_multiples_and_once_after_the_end(workshop: Workshop) -> None:
    flow = MODEL + START + UPDATE + f"    every 3 steps:\n        metric probe = {PROBE}\n        metric seen = step\n"
    result = workshop.run(flow, 5)
    assert [(m["step"], m["seen"]) for m in result.metrics if "probe" in m] == [(0, 0), (3, 3), (5, 5)]
    assert [m["step"] for m in result.metrics] == [0, 1, 2, 3, 4, 5]
    assert "loss.policy" not in result.metrics[-1]


def test_every_with_an_update_does_not_run_after_the_end(workshop: Workshop) -> None:
    update = UPDATE.replace("\n    ", "\n        ")
    result = workshop.run(MODEL + START + "    every 2 steps:" + update + "    metric r = mean(reward)\n", 4)
    assert [m["step"] for m in result.metrics if "loss.policy" in m] == [0, 2]
    assert len(result.metrics) == 4


def test_states_hold_until_the_next_step(workshop: Workshop) -> None:
    states = """
    state beta = 1.0
    state more = true
    next beta = 2 * beta
    next more = step < 1
    metric before = beta
    metric chosen = where(more, 10, 20)
    metric after = mean(reward) * 0 + beta
"""
    result = workshop.run(MODEL + states + START + UPDATE, 4)
    assert result.column("before") == result.column("after") == [1, 2, 4, 8]
    assert result.column("chosen") == [10, 10, 20, 20]
    assert result.meta["states"] == {"beta": 16.0, "more": False}


def test_updates_are_simultaneous(workshop: Workshop) -> None:
    """Each of two updates sees the other's model at version t, wherever it stands; `.next` sees t+1."""
    head = """
from std import k3
import rewards
flow test():
    model a = causal_lm("p")
    model b = causal_lm("t")
    rows = read("d.jsonl", batch=24 prompts, shuffle=false)
"""
    first = """
    update a(adamw(lr=1e-2)):
        minimize mean(k3(a.logprobs(rows.prompt, rows.answer), b.logprobs(rows.prompt, rows.answer)))
"""
    second = """
    update b(adamw(lr=1e-2)):
        minimize mean(k3(b.logprobs(rows.prompt, rows.answer), a.logprobs(rows.prompt, rows.answer)))
"""
    probes = """
    metric now = mean(a.logprobs(rows.prompt, rows.answer))
    metric later = mean(a.next.logprobs(rows.prompt, rows.answer))
"""
    one, other = workshop.run(head + first + second + probes, 2), workshop.run(head + probes + second + first, 2)
    assert bit_equal(one.state, other.state)
    now, later = one.column("now"), one.column("later")
    assert now[0] != later[0] and later[0] == now[1]


def test_the_next_version_can_be_read_by_another_update(workshop: Workshop) -> None:
    text = """
flow test():
    model a = causal_lm("p")
    model b = causal_lm("t")
    rows = read("d.jsonl", batch=6 prompts)
    update b(adamw(lr=1e-2)):
        minimize -mean(b.logprobs(rows.prompt, rows.answer) * a.next.logprobs(rows.prompt, rows.answer))
    update a(adamw(lr=1e-2)):
        minimize -mean(a.logprobs(rows.prompt, rows.answer))
"""
    stale = workshop.run(text.replace("a.next", "a"), 1)
    fresh = workshop.run(text, 1)
    assert bit_equal(stale.weights("a"), fresh.weights("a"))
    assert difference(stale.weights("b"), fresh.weights("b")) > 1e-6


# ---------------------------------------------------------------- models


def test_next_copies_version_t(workshop: Workshop) -> None:
    head = MODEL + "    model ref = frozen(policy)\n" + START + UPDATE
    begin = workshop.run(MODEL + START + UPDATE, 1).weights()
    result = workshop.run(head + "    next ref = policy\n    metric gap = mean(ref.logprobs(rollout))\n", 2)
    assert bit_equal(result.weights("ref"), begin)  # after two steps the policy is at version 2, the copy at 1


def test_ema(workshop: Workshop) -> None:
    head = (
        MODEL + "    model ref = frozen(policy)\n" + START + UPDATE + "    metric gap = mean(ref.logprobs(rollout))\n"
    )
    result = workshop.run(head + "    next ref = ema(ref, policy, decay=0.75)\n", 2)
    start = workshop.run(head.replace("lr=1e-2", "lr=0"), 1).weights()
    first = workshop.run(MODEL + START + UPDATE, 1).weights()
    expected = {k: 0.75 * start[k] + 0.25 * first[k] for k in start}
    assert difference(result.weights("ref"), expected) < 1e-12


def test_frozen_models_stay_as_they_were_before_step_0(workshop: Workshop) -> None:
    head = MODEL + "    model ref = frozen(policy)\n    model again = frozen(ref)\n" + START + UPDATE
    flow = head.replace("batch=6 prompts", "batch=24 prompts, shuffle=false")
    flow += PROBES_OF_REF
    plan = workshop.compile(flow)
    whole = workshop.run(plan, 4)
    assert len(set(whole.column("frozen"))) == 1 and whole.column("frozen") == whole.column("twice")
    assert len(set(whole.column("live"))) == 4 and whole.column("live")[0] == whole.column("frozen")[0]
    broken = workshop.interrupted(plan, at=2, steps=4, save_every=1)
    assert untimed(workshop.run(plan, 4, resume=True, out=broken.out).metrics) == untimed(whole.metrics)


PROBES_OF_REF = f"""
    metric live = {PROBE}
    metric frozen = {PROBE.replace("policy", "ref")}
    metric twice = {PROBE.replace("policy", "again")}
"""


def test_what_nothing_trains_is_loaded_once(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardflow.runtime.execution import loop

    sessions: list[Any] = []
    execute = loop.Run.execute

    def spy(run: loop.Run) -> None:
        sessions.append(run.session)
        execute(run)

    monkeypatch.setattr(loop.Run, "execute", spy)
    models = '    model teacher = frozen(causal_lm("t"))\n    model a = frozen(teacher)\n    model b = frozen(policy)\n'
    models += "    model c = frozen(policy)\n"
    reads = "".join(f"    metric {m} = mean({m}.logprobs(rollout))\n" for m in ("teacher", "a", "b", "c"))
    workshop.run(MODEL + models + START + UPDATE + reads, 1)
    roles = sessions[0].roles
    assert roles["a"].module is roles["teacher"].module and roles["b"].module is roles["c"].module
    assert roles["b"].module is not roles["policy"].module


# ---------------------------------------------------------------- minibatches


def batches_seen(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, flow: str, steps: int = 1) -> list[list[int]]:
    """The draw numbers of the prompts of every minibatch, in order."""
    from shardflow.runtime.execution import updates

    seen: list[list[int]] = []
    train = updates._train

    def spy(i: Any, env: Any) -> bool:
        frame = next(v.frame.chain()[-1] for v in env.values.values() if v.frame is not None)
        seen.append(frame.ids.tolist())
        return train(i, env)

    monkeypatch.setattr(updates, "_train", spy)
    workshop.run(flow, steps)
    monkeypatch.setattr(updates, "_train", train)
    return seen


def test_minibatches_are_whole_prompts_in_a_new_order_each_epoch(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = MODEL + START + UPDATE.replace("lr=1e-2)", "lr=1e-2), minibatch=2 prompts, epochs=3")
    seen = batches_seen(workshop, monkeypatch, flow, 2)
    epochs = [seen[i : i + 3] for i in range(0, 18, 3)]
    assert all(
        sorted(i for part in epoch for i in part) == list(range(6 * (n // 3), 6 * (n // 3) + 6))
        for n, epoch in enumerate(epochs)
    )
    assert len({str([[i % 6 for i in part] for part in epoch]) for epoch in epochs}) == 6
    assert batches_seen(workshop, monkeypatch, flow, 2) == seen


def test_minibatches_by_number(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = MODEL + START + UPDATE.replace("lr=1e-2)", "lr=1e-2), minibatches=3")
    assert [len(b) for b in batches_seen(workshop, monkeypatch, flow)] == [2, 2, 2]


def test_reductions_in_an_update_see_the_minibatch(workshop: Workshop) -> None:
    update = """
    update policy(adamw(lr=1e-3), minibatch=2 prompts):
        inside = mean(reward)
        minimize -mean(policy.logprobs(rollout) * (reward - inside))
        metric rows = count(reward)
        metric best = max(rank(reward))
        metric inside = inside
    metric outside = mean(reward)
    metric rows_outside = count(reward)
"""
    result = workshop.run(MODEL + START + update, 1)
    assert result.column("rows") == [4] and result.column("rows_outside") == [12]
    assert result.column("best") == [3]
    assert result.column("inside") == pytest.approx(result.column("outside"))


def test_an_empty_minibatch_makes_no_step_and_is_counted(workshop: Workshop) -> None:
    keep = """
    best = keep(rollout, where=step == 1 and rollout.length < 0 or step == 0 and rank(reward) == 0)
    update policy(adamw(lr=1e-2), minibatch=2 prompts):
        minimize -mean(policy.logprobs(best))
"""
    result = workshop.run(MODEL + START + keep, 2)
    assert [m["empty_minibatches"] for m in result.metrics] == [2, 3]
    assert result.meta["optimizer_steps"] == {"policy": 1}
    assert "loss.policy" not in result.metrics[1]


def test_schedules_count_optimizer_steps(workshop: Workshop) -> None:
    options = 'adamw(lr=1.0, warmup=2, schedule="linear"), minibatch=2 prompts'
    flow = MODEL + START + UPDATE.replace("adamw(lr=1e-2)", options).replace("reward)", "reward * 0)")
    result = workshop.run(flow, 2)
    rates = [1 / 2, 1, 1, 3 / 4, 2 / 4, 1 / 4]  # three minibatches a step
    assert result.column("lr.policy") == pytest.approx([sum(rates[:3]) / 3, sum(rates[3:]) / 3])


# ---------------------------------------------------------------- keep


def test_keep_opens_none_or_one(workshop: Workshop) -> None:
    keep = """
    best = keep(rollout, where=rank(reward, by=prompt) == 0)
    worst = keep(rollout, where=rank(-reward, by=prompt) == 0)
    gap = sum(rewards.share(best.text), by=prompt) - sum(rewards.share(worst.text), by=prompt)
    metric best_of = max(count(best.text, by=rollout.sample))
    metric all_of = sum(count(best.text, by=prompt))
    metric gap = mean(gap - (max(reward, by=prompt) - min(reward, by=prompt)))
"""
    result = workshop.run(MODEL + START + keep + UPDATE, 1)
    assert result.column("best_of") == [1] and result.column("all_of") == [6]
    assert result.column("gap") == pytest.approx([0.0], abs=1e-12)


def test_rows_are_not_chosen_by_the_model_in_training(workshop: Workshop) -> None:
    update = """
    update policy(adamw(lr=1e-2)):
        good = keep(rollout, where=mean(policy.logprobs(rollout), over=token) > -5)
        minimize -mean(policy.logprobs(good))
"""
    with pytest.raises(Exception, match="depend on what `policy` says"):
        workshop.run(MODEL + START + update, 1)


def test_samples_carry_what_was_computed_for_them(workshop: Workshop) -> None:
    text = (
        MODEL
        + START
        + UPDATE
        + "    adv = z(rewards.exact_match(rollout.text, prompts.answer))\n    metric a = mean(adv)\n"
    )
    result = workshop.run(text, 1)
    rows = result.samples
    assert len(rows) == 4 and list(rows[0])[:4] == ["step", "prompt", "text", "answer"]
    assert set(list(rows[0])[4:]) == {"reward", "exact_match", "adv"}
    whole = result.values[0]
    assert [r["reward"] for r in rows] == whole["reward"].rows[:4]  # type: ignore[union-attr]
    assert [r["answer"] for r in rows] == [a for a in whole["prompts"].fields["answer"].rows[:2] for _ in (0, 1)]  # type: ignore[union-attr]


def test_dropout_is_keyed(workshop: Workshop) -> None:
    text = (MODEL + START + UPDATE).replace('causal_lm("p")', 'causal_lm("p", dropout=0.2)')
    plan = workshop.compile(text)
    torch.manual_seed(1)
    whole = workshop.run(plan, 3, micro=40)
    torch.manual_seed(2)
    broken = workshop.interrupted(plan, at=1, steps=3, save_every=1, micro=40)
    resumed = workshop.run(plan, 3, resume=True, out=broken.out, micro=40)
    assert untimed(resumed.metrics) == untimed(whole.metrics) and bit_equal(resumed.state, whole.state)
