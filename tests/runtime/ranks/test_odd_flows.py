"""Odd flows and odd sizes: whatever is few, uneven or nothing, many ranks compute what one process does.

Each case is a flow and a layout. Those of a group stand for what could go wrong there, in the layouts where it could.
"""

import json
import re
from typing import Any

import pytest
import torch

from ..test_variety import USER
from ..workshop import Workshop, difference
from .equivalence import Outcome, alone, assert_same, compiled, together
from .pool import Pool, PoolError

HEAD = """
from std import dpo_loss, k3, preference_loss, whiten, z
from std.scan import gae
import rewards

flow odd():
    model policy = causal_lm("p")
"""

MORE = """
from typing import NamedTuple

class Both(NamedTuple):
    good: float
    label: str

def both(text: str, answer: str) -> Both:
    return Both(len(text) / (1 + len(answer)), text[:3])

def packed(x: Ragged) -> Ragged:
    return Ragged(x.values - x.values.mean(), x.lengths)

def upper(text: str) -> str:
    return text.upper()[:8]

def biggest(x: Batch[float]) -> float:
    return max(x, default=-1.0)

def spread(x: Group[float]) -> float:
    return max(x) - min(x)

def scaled(text: str, by: float) -> float:
    return len(text) * by

def doubled(x: float) -> float:
    return 2 * x

def fussy(text: str, answer: str) -> float:
    if answer == "36":
        raise ValueError("no 36 please")
    return float(len(text))
"""


def start(rows: int = 6, data: str = "d.jsonl") -> str:
    return f"""
    prompts = read("{data}", batch={rows} prompts)
    rollout = policy.generate(prompts, n=2, max_new_tokens=5)
    reward = rewards.share(rollout.text)
"""


def update(loss: str, options: str = "") -> str:
    lines = ("logp = policy.logprobs(rollout)", f"minimize {loss}")
    return f"    update policy(adamw(lr=1e-2){options}):\n" + "".join(f"        {line}\n" for line in lines)


LINEAR = "-mean(logp * reward)"
TWO_PASSES = "-mean(whiten(logp) * reward) + std(sum(logp, over=token))"

FOUR = "nodes=4, devices=1"
LAYOUTS = {
    "dp": ("nodes=2, devices=2", ("policy.update on nodes, dp=4",)),
    "fsdp": ("nodes=2, devices=2", ("policy.update on nodes, fsdp=4",)),
    "mixed": ("nodes=2, devices=2", ("policy.update on nodes, fsdp=2, dp=2",)),
    "split": ("nodes=2, devices=2", ("policy.update on nodes[0], fsdp=2", "policy.generate on nodes[1]")),
    "overlap": (FOUR, ("policy.update on nodes[1:4], dp=3", "policy.generate on nodes[0:3]")),
    "one": (FOUR, ("policy.update on nodes[3]", "policy.generate on nodes[0:2]")),
    "three": (FOUR, ("policy.update on nodes[0:3], fsdp=3", "policy.generate on nodes[3]")),
    "ref apart": ("nodes=2, devices=2", ("policy.update on nodes[0], fsdp=2", "ref on nodes[1], fsdp=2")),
    "ref on one": (FOUR, ("policy.update on nodes[1:4], dp=3", "ref on nodes[0]")),
    "copies apart": (
        FOUR,
        ("policy on nodes[0:2], fsdp=2", "a.logprobs on nodes[2:4], fsdp=2", "b on nodes[1:3]"),
    ),
    "rm on one": (FOUR, ("policy.update on nodes[1:3], fsdp=2", "policy.generate on nodes[0:2]", "rm on nodes[3]")),
    "rm trained apart": ("nodes=2, devices=2", ("policy.update on nodes[0], fsdp=2", "rm.update on nodes[1], fsdp=2")),
    "critic apart": (
        FOUR,
        (
            "policy.update on nodes[0:2], dp=2",
            "policy.generate on nodes[1:4]",
            "critic on nodes[2:4]",
            "rm on nodes[0]",
        ),
    ),
}


def placed(layout: str, options: str = "") -> str:
    """The `place` block of a layout. options: for the update of the policy."""
    cluster, lines = LAYOUTS[layout]
    first, *others = lines
    return f"\nplace odd on cpu({cluster}):" + "".join(f"\n    {line}" for line in (first + options, *others)) + "\n"


def compare(workshop: Workshop, pool: Pool, body: str, place: str, **options: Any) -> tuple[Outcome, Outcome]:
    """The runs of a flow in one process and on four ranks."""
    prepare(workshop)
    given: dict[str, Any] = {"steps": 2, **options}
    one = alone(workshop, compiled(workshop.folder, HEAD + body, "odd", None), **given)
    four = together(pool, workshop, compiled(workshop.folder, HEAD + body + place, "odd", 4), **given)
    return one, four


def prepare(workshop: Workshop) -> None:
    """`u.jsonl`: rows of very different lengths. `chat.jsonl`: messages. Functions of all kinds."""
    with (workshop.folder / "rewards.py").open("a") as file:
        file.write(USER + MORE)
    uneven = [
        {
            "prompt": "1" * (1 + 37 * i % 41) if i % 5 == 0 else f"{i}+{i}=",
            "answer": str(2 * i) * (1 + i % 4),
            "budget": 1 + i % 5,
            "chosen": str(2 * i),
            "rejected": str(i) * (1 + i % 7),
        }
        for i in range(24)
    ]
    chat = [{"prompt": [{"role": "user", "content": f"{i}+{i}"}], "answer": str(2 * i)} for i in range(12)]
    for name, rows in (("u", uneven), ("chat", chat)):
        (workshop.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


# ---------------------------------------------------------------- few rows, and none

SIZES = {
    "one prompt": (start(1) + update(LINEAR), "fsdp", 20),
    "one prompt, two passes": (start(1) + update(TWO_PASSES), "split", 20),
    "three prompts, one at a time": (start(3) + update(TWO_PASSES, ", minibatch=1 prompts"), "dp", 16384),
    "two prompts": (start(2) + update(LINEAR, ", minibatch=1 prompts"), "three", 20),
    "uneven lengths": (start(9, "u.jsonl") + update(LINEAR, ", minibatches=3, epochs=2"), "fsdp", 1),
    "uneven, two passes": (start(9, "u.jsonl") + update(TWO_PASSES, ", minibatch=3 prompts"), "mixed", 30),
}


@pytest.mark.parametrize("case", SIZES)
def test_ranks_may_have_few_rows_or_none(workshop: Workshop, pool: Pool, case: str) -> None:
    body, layout, micro = SIZES[case]
    assert_same(*compare(workshop, pool, body, placed(layout), micro=micro))


KEEP = """
    best = keep(rollout, where={where})
    update policy(adamw(lr=1e-2), minibatch=2 prompts):
        logp = policy.logprobs(best)
        minimize -mean(logp){more}
        metric seen = mean(logp)
        metric rows = count(best.text)
"""
KEPT = {
    "none": ("reward < -1", "", "dp"),
    "one": ("rank(reward) == 0", "", "overlap"),
    "one, two passes": ("rank(reward) == 0", " + std(logp)", "split"),
    "one, then none": ("step == 0 and rank(reward) == 0", " + std(logp)", "fsdp"),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_filter_may_leave_nothing_on_some_ranks_or_on_all(workshop: Workshop, pool: Pool, case: str) -> None:
    where, more, layout = KEPT[case]
    one, four = compare(workshop, pool, start() + KEEP.format(where=where, more=more), placed(layout), micro=20)
    assert_same(one, four)
    assert four.result.column("empty_minibatches")


REDUCTIONS = """
    same = 0 * reward + 0.1
    metric none = mean(reward, where=reward > 5)
    metric some = count(reward, where=reward > 0.3)
    metric total = sum(reward, where=reward > 5)
    metric still = var(same) + std(same)
    metric alone = var(reward, where=rank(reward) == 0)
    metric third = quantile(reward, q=0.37)
    metric most = max(rollout.logprobs) + min(rollout.length) + max(mean(reward, by=prompt))
    metric ranks = sum(rank(reward) * reward)
    update policy(adamw(lr=1e-2)):
        logp = policy.logprobs(rollout)
        minimize -mean(logp * reward, where=reward > 0.2) - mean(logp, where=rollout.last and reward > 0.6)
        metric inside = std(same) + mean(logp, where=reward > 7)
"""


def test_reductions_of_few_of_all_equal_and_of_nothing(workshop: Workshop, pool: Pool) -> None:
    one, four = compare(workshop, pool, start() + REDUCTIONS, placed("split"))
    assert_same(one, four)
    assert four.result.column("still") == [0, 0] and four.result.column("empty_means")


# ---------------------------------------------------------------- collect

COLLECT = """
    collect({target} prompts, rounds={rounds}, short=skip):
        prompts = read("d.jsonl", batch={batch} prompts)
        rollout = policy.generate(prompts, n=2, max_new_tokens=4{stale})
        reward = rewards.share(rollout.text)
        {more}
        keep prompts where {where}
        metric unfiltered = mean(reward)
    metric kept = count(reward)
"""
COLLECTED = update("-mean(logp * reward) + 0.1 * std(sum(logp, over=token))", ", minibatch=2 prompts")
LATE = ", max_staleness=1"
GAP = "gap = sum(rollout.logprobs - ref.logprobs(rollout), over=token)"
REF = '    model ref = frozen(causal_lm("t"))\n'
RM = '    model rm = frozen(reward_model("rm"))\n'


def collect(where: str, rounds: int = 6, target: int = 6, batch: int = 4, stale: str = "", more: str = "") -> str:
    return COLLECT.format(**locals() | {"more": more or "some = reward"}) + COLLECTED


AFTER = """
    collect(4 prompts, rounds=6, short=skip):
        prompts = read("u.jsonl", batch=3 prompts)
        rollout = policy.generate(prompts, n=2, max_new_tokens=4)
        split = rewards.both(rollout.text, prompts.answer)
        judged = rm.score(rollout)
        keep prompts where max(judged, by=prompt) > -0.5
        metric kept = step + 1
    worth = rewards.both(rollout.text, prompts.answer).good + split.good + judged + prompts.budget
    more = policy.generate(prompts, n=2, max_new_tokens=prompts.budget)
    metric worth = mean(worth) + quantile(worth, q=0.2) + mean(more.length)
    update policy(adamw(lr=1e-2), minibatch=2 prompts):
        drawn = mean(policy.logprobs(rollout) * worth) + rewards.biggest(worth) * mean(policy.logprobs(more))
        minimize std(policy.logprobs(prompts.prompt, prompts.answer)) - drawn
"""

WITHIN = """
    collect(4 prompts, rounds=6, short=skip):
        prompts = read("u.jsonl", batch=3 prompts)
        rollout = policy.generate(prompts, n=2, max_new_tokens=4)
        given = mean(policy.logprobs(prompts.prompt, prompts.answer))
        gap = sum(ref.logprobs(rollout), over=token) + given
        keep prompts where max(gap, by=prompt) > -30
    metric kept = count(gap)
    update policy(adamw(lr=1e-2), minibatch=2 prompts):
        minimize -mean(policy.logprobs(rollout) * gap)
"""

COLLECTS = {
    "kept unevenly": (collect("mean(reward, by=prompt) > 0.2"), "overlap"),
    "the target in a round": (collect("std(reward, by=prompt) > 0", batch=5), "mixed"),
    "none in a step": (collect("count(reward, by=prompt) * 0 + step == 1", rounds=2), "one"),
    "a model on other ranks": (REF + collect("mean(gap, by=prompt) > 1", batch=6, more=GAP), "split"),
    "a model on one rank": (RM + collect("mean(s, by=prompt) > 0", more="s = rm.score(rollout)"), "rm on one"),
    "made ahead": (collect("mean(reward, by=prompt) > 0.2", stale=LATE), "overlap"),
    "made ahead, a model on one rank": (
        RM + collect("mean(s, by=prompt) > 0", more="s = rm.score(rollout)", stale=LATE),
        "rm on one",
    ),
    "made ahead, none in a step": (
        collect("count(reward, by=prompt) * 0 + step == 1", rounds=2, stale=LATE)
        + "    every 2 steps:\n        metric average = mean(reward)\n",
        "one",
    ),
    "what sees all rows": (
        collect("max(low, by=prompt) > -0.2", target=4, batch=3, more="low = rewards.below(reward)")
        + "    metric low = sum(low) + quantile(reward, q=0.4)\n",
        "one",
    ),
    "what is read of it": (RM + AFTER, "rm on one"),
    "rows dealt in it and after it": (REF + WITHIN, "split"),
}


@pytest.mark.parametrize("case", COLLECTS)
def test_rounds_of_a_collect_keep_the_same_rows(workshop: Workshop, pool: Pool, case: str) -> None:
    body, layout = COLLECTS[case]
    one, four = compare(workshop, pool, body, placed(layout), steps=3)
    assert_same(one, four)
    assert four.result.column("kept")


# ---------------------------------------------------------------- losses

LOSSES = {
    "whitened": ("-mean(whiten(logp) * adv)", "split"),
    "nested": ("std(logp - mean(logp, by=prompt)) * mean(whiten(logp) * max(logp) * adv)", "mixed"),
    "quantiles": ("quantile(logp, q=0.3) + quantile(sum(logp, over=token), q=0.8)", "overlap"),
    "extremes": ("max(logp) - min(mean(logp, over=token))", "fsdp"),
    "ranks": ("mean(where(rank(logp) < 9 and rank(logp, by=prompt) < 4, logp, 0))", "three"),
    "expanded": (
        "mean(expand(mean(logp), to=rollout.token) * logp) + sum(expand(std(logp), to=prompts.prompt)) / 7",
        "split",
    ),
    "ratios of sequences": ("-mean(clamp(exp(mean(logp - rollout.logprobs, over=token)), 0.8, 1.2) * adv)", "fsdp"),
    "packed": ("mean(rewards.packed(logp) * adv) + mean(rewards.so_far(logp) * adv)", "overlap"),
}


@pytest.mark.parametrize("case", LOSSES)
def test_losses_of_sums_over_all_ranks_have_the_gradient_of_one_process(
    workshop: Workshop, pool: Pool, case: str
) -> None:
    loss, layout = LOSSES[case]
    body = start(6, "u.jsonl") + "    adv = z(reward)\n" + update(loss, ", minibatch=3 prompts")
    assert_same(*compare(workshop, pool, body, placed(layout), micro=30))


LOSSES_OF_ROOTS = {
    "pairs": (
        """
    model ref = frozen(policy)
    rows = read("u.jsonl", batch=6 prompts)
    update policy(adamw(lr=1e-2), minibatch=3 prompts):
        win = sum(policy.logprobs(rows.prompt, rows.chosen), over=token)
        lose = sum(policy.logprobs(rows.prompt, rows.rejected), over=token)
        first = sum(ref.logprobs(rows.prompt, rows.chosen), over=token)
        second = sum(ref.logprobs(rows.prompt, rows.rejected), over=token)
        minimize mean(dpo_loss(win, first, lose, second, 0.1)) + 0.01 * std(win - lose)
        metric ahead = mean(win > lose)
""",
        "ref on one",
    ),
    "rollouts and a column": (
        start(4)
        + """
    d = read("u.jsonl", batch=2 prompts, stream="b")
    update policy(adamw(lr=1e-2), minibatches=2, epochs=2):
        logp = policy.logprobs(rollout)
        given = policy.logprobs(d.prompt, d.answer)
        minimize -mean(logp * reward) * exp(mean(given)) + std(given) - mean(given)
        metric seen = mean(given) + max(logp)
""",
        "overlap",
    ),
    "a column in one pass": (
        start()
        + """
    d = read("u.jsonl", batch=9 prompts, stream="b")
    update policy(adamw(lr=1e-2), minibatches=3):
        minimize -mean(policy.logprobs(rollout) * reward) - mean(policy.logprobs(d.prompt, d.answer))
""",
        "mixed",
    ),
    "a reward model in training": (
        '    model rm = reward_model("p")\n'
        + start()
        + """
    d = read("u.jsonl", batch=8 prompts, stream="b")
    update rm(adamw(lr=1e-2), minibatch=4 prompts):
        good = rm.score(d.prompt, d.chosen)
        bad = rm.score(d.prompt, d.rejected)
        minimize mean(preference_loss(good, bad)) + 0.01 * mean((good + bad) ** 2)
        metric accuracy = mean(good > bad)
    update policy(adamw(lr=1e-2)):
        minimize -mean(policy.logprobs(rollout) * rm.next.score(rollout))
""",
        "rm trained apart",
    ),
    "a critic": (
        RM
        + '    model critic = value_model("p")\n'
        + start()
        + """
    old = critic.values(rollout)
    adv = gae(where(rollout.last, rm.score(rollout), 0), old, 1.0, 0.9)
    update critic(adamw(lr=1e-2), minibatch=3 prompts, epochs=2):
        minimize mean((critic.values(rollout) - (old + adv)) ** 2)
    update policy(adamw(lr=1e-2), minibatch=3 prompts):
        minimize -mean(policy.logprobs(rollout) * whiten(adv))
        metric entropy = mean(policy.entropy(rollout))
""",
        "critic apart",
    ),
}


@pytest.mark.parametrize("case", LOSSES_OF_ROOTS)
def test_losses_that_read_several_things(workshop: Workshop, pool: Pool, case: str) -> None:
    body, layout = LOSSES_OF_ROOTS[case]
    assert_same(*compare(workshop, pool, body, placed(layout), micro=40))


# ---------------------------------------------------------------- control, states and versions

STATES = """
    state beta = 0.5
    state heat = 1.0
    state flag = true
    state k = 3
    prompts = read("d.jsonl", batch=6 prompts)
    rollout = policy.generate(prompts, n=2, max_new_tokens=5, temperature=heat)
    reward = rewards.share(rollout.text)
    next beta = clamp(beta * (1 + mean(reward)), 0, 2)
    next heat = where(mean(reward) > 0.2, 0.7, 1.3)
    next flag = max(reward) > 0.5
    next k = count(reward, where=reward > 0.2)
    metric states = beta + k + where(flag, 100, 200)
    when flag:
        metric flagged = mean(reward) * beta
    when mean(reward) > 0.2:
        update policy(adamw(lr=1e-2)):
            logp = policy.logprobs(rollout)
            minimize -beta * mean(logp * reward) + where(flag, 0.1, 0.2) * mean(logp) / (1 + k)
        metric inside = mean(rollout.length)
    every 2 steps:
        again = policy.generate(prompts, n=2, max_new_tokens=3)
        metric seen = max(rewards.share(again.text)) + mean(reward)
"""

BRANCHES = """
    every 2 steps:
        trial = read("test.jsonl", all=true)
        tried = policy.generate(trial, n=2, max_new_tokens=4)
        judged = rm.score(tried)
        good = keep(tried, where=rank(judged, by=trial.prompt) == 0)
        metric best = mean(rewards.share(good.text)) + mean(policy.logprobs(good))
        metric judged = mean(judged) + quantile(rewards.share(tried.text), q=0.4) + mean(reward)
    when mean(reward) > 0.15:
        weighed = rm.score(rollout)
        metric weighed = mean(weighed * reward) + max(rewards.below(reward))
        metric later = mean(policy.next.logprobs(rollout) - rollout.logprobs)
"""

VERSIONS = """
    next ref = ema(ref, policy, decay=0.75)
    update policy(adamw(lr=1e-2), minibatch=3 prompts):
        logp = policy.logprobs(rollout)
        minimize mean(k3(logp, ref.logprobs(rollout))) - mean(logp * reward)
    metric now = mean(ref.logprobs(rollout) - policy.logprobs(rollout))
    metric then = mean(ref.next.logprobs(rollout) - policy.next.logprobs(rollout))
    every 2 steps:
        again = policy.generate(prompts, n=2, max_new_tokens=5)
        metric inside = mean(policy.next.logprobs(again) - policy.logprobs(again))
"""

AHEAD = """
    state heat = 1.0
    prompts = read("d.jsonl", batch=4 prompts)
    rollout = policy.generate(prompts, n=2, max_new_tokens=4, temperature=heat, max_staleness=2)
    other = policy.generate(prompts, n=3, max_new_tokens=4, max_staleness=1)
    reward = rewards.share(rollout.text) - mean(rewards.share(other.text), by=prompt)
    next heat = heat * (1 + mean(reward))
    metric long = mean(other.length)
"""

COPIES = """
    model a = frozen(policy)
    model b = frozen(causal_lm("t"))
    next a = policy.next
    next b = ema(b, a, decay=0.5)
    drawn = b.generate(prompts, n=2, max_new_tokens=4)
    metric now = mean(a.logprobs(rollout) - b.logprobs(rollout)) + mean(b.logprobs(drawn) - drawn.logprobs)
    metric then = mean(a.next.logprobs(rollout) - b.next.logprobs(rollout))
    every 2 steps:
        short = a.generate(prompts, max_new_tokens=3)
        metric short = mean(short.length) + mean(b.logprobs(short))
"""

STEERED = {
    "states": (STATES, "split"),
    "copies that nothing trains": (start() + COPIES + update(LINEAR), "copies apart"),
    "branches": (RM + start() + BRANCHES + update(LINEAR, ", minibatch=2 prompts"), "rm on one"),
    "versions": ("    model ref = frozen(policy)\n" + start() + VERSIONS, "ref apart"),
    "versions, replicated": ("    model ref = frozen(policy)\n" + start() + VERSIONS, "ref on one"),
    "two draws ahead": (AHEAD + update(LINEAR, ", minibatch=2 prompts"), "one"),
    "two updates": (
        start()
        + """
    model ref = causal_lm("t")
    update policy(adamw(lr=1e-2)):
        minimize -mean(policy.logprobs(rollout) * reward)
    update ref(adamw(lr=1e-2), epochs=2, minibatch=2 prompts):
        minimize mean(-ref.logprobs(rollout) * exp(policy.next.logprobs(rollout)))
    metric moved = mean(ref.logprobs(rollout) - ref.next.logprobs(rollout))
""",
        "ref apart",
    ),
}


@pytest.mark.parametrize("case", STEERED)
def test_what_steers_a_step_is_the_same_on_all_ranks(workshop: Workshop, pool: Pool, case: str) -> None:
    body, layout = STEERED[case]
    assert_same(*compare(workshop, pool, body, placed(layout), steps=4 if "state" in body else 3))


# ---------------------------------------------------------------- functions and draws

FUNCTIONS = """
    luck = rewards.dice(rollout.text)
    split = rewards.both(rollout.text, prompts.answer)
    shouted = rewards.upper(rollout.text)
    more = policy.generate(shouted, max_new_tokens=3)
    average = mean(reward)
    top = rewards.biggest(reward) + rewards.doubled(average)
    centre = rewards.packed(rollout.logprobs)
    sums = rewards.so_far(rollout.logprobs)
    scale = mean(rewards.scaled(rollout.text, average)) + mean(rewards.spread(reward)) + mean(rewards.later(more.text))
    metric seen = top + mean(centre) + max(sums) + scale + mean(split.good) + mean(rewards.later(split.label))
    update policy(adamw(lr=1e-2), minibatch=3 prompts):
        logp = policy.logprobs(rollout)
        weight = rewards.centred(reward) + rewards.below(reward) + rewards.later(rollout.text) + luck
        rest = rewards.so_far(rollout.logprobs) / 10 + rewards.packed(rollout.logprobs) + rewards.doubled(mean(reward))
        minimize -mean(logp * weight) - mean(logp * rest) + rewards.biggest(reward) * mean(logp)
        metric inside = mean(rewards.spread(reward)) + mean(split.good)
"""

FEW = """
    best = keep(rollout, where=rank(reward) == 0)
    more = policy.generate(best.text, max_new_tokens=3)
    worth = rewards.share(more.text)
    seen = mean(rewards.packed(best.logprobs)) + max(rewards.so_far(best.logprobs)) + mean(rewards.below(worth))
    metric seen = seen + rewards.biggest(worth) + mean(rewards.later(rewards.both(more.text, prompts.answer).label))
    update policy(adamw(lr=1e-2)):
        weight = rewards.below(reward) + rewards.biggest(worth)
        logp = policy.logprobs(best)
        minimize -mean(logp * weight) - mean(policy.logprobs(more)) + mean(logp * rewards.so_far(best.logprobs))
"""

DRAWS = """
    prompts = read("u.jsonl", batch=6 prompts)
    heat = where(prompts.answer == "0", 0, 0.7)
    rollout = policy.generate(prompts, n=2, max_new_tokens=prompts.budget, temperature=heat)
    reward = rewards.share(rollout.text)
    again = policy.generate(prompts, n=2, max_new_tokens=3 + count(reward, by=prompt, where=reward > 0.2))
    greedy = policy.generate(prompts, max_new_tokens=4, temperature=0)
    more = policy.generate(rollout.text, n=2, max_new_tokens=3)
    gain = rewards.share(more.text) - reward
    metric seen = mean(rewards.share(greedy.text)) + mean(again.length) + mean(gain)
    d = read("chat.jsonl", batch=3 prompts)
    said = policy.generate(d, n=2, max_new_tokens=4)
    update policy(adamw(lr=1e-2), minibatches=3):
        drawn = mean(policy.logprobs(more) * gain) + mean(policy.logprobs(greedy)) + mean(policy.logprobs(said))
        given = mean(policy.logprobs(d.prompt, d.answer))
        minimize mean(policy.logprobs(again) * mean(reward, by=prompts.prompt)) - drawn - given
        metric gap = max(abs(policy.logprobs(again) - again.logprobs))
"""

KEPT_AHEAD = """
    prompts = read("d.jsonl", batch=6 prompts)
    some = keep(prompts, where=prompts.answer != "0")
    tried = policy.generate(some, n=3, max_new_tokens=4, max_staleness=1)
    best = keep(tried, where=rank(rewards.share(tried.text), by=some.prompt) == 0)
    rollout = policy.generate(best.text, max_new_tokens=4)
    gain = rewards.share(rollout.text) - rewards.share(best.text)
    metric gain = mean(gain) + sum(expand(sum(gain), to=prompts.prompt)) + count(some.answer)
    update policy(adamw(lr=1e-2)):
        minimize -mean(policy.logprobs(best) * gain) + std(policy.logprobs(rollout))
"""

DRAWN = {
    "functions": (start() + FUNCTIONS, "split"),
    "functions of few rows": (start(2) + FEW, "one"),
    "functions of few rows, apart": (start(2) + FEW, "overlap"),
    "draws": (DRAWS, "overlap"),
    "draws, sharded": (DRAWS, "mixed"),
    "kept ahead": (KEPT_AHEAD, "three"),
}


@pytest.mark.parametrize("case", DRAWN)
def test_functions_and_draws_see_what_they_see_in_one_process(workshop: Workshop, pool: Pool, case: str) -> None:
    body, layout = DRAWN[case]
    assert_same(*compare(workshop, pool, body, placed(layout), micro=50))


# ---------------------------------------------------------------- what saves memory


def test_checkpointing_changes_nothing(workshop: Workshop, pool: Pool) -> None:
    body = start() + update(LINEAR, ", minibatch=3 prompts")
    assert_same(*compare(workshop, pool, body, placed("fsdp", ", checkpointing=true"), micro=30))


def test_dropout_is_keyed_on_every_rank(workshop: Workshop, pool: Pool) -> None:
    """Which elements are dropped depends on the layout, but not on who runs it when."""
    prepare(workshop)
    text = (HEAD + start() + update(LINEAR, ", minibatch=3 prompts")).replace('("p")', '("p", dropout=0.2)')
    plan = compiled(workshop.folder, text + placed("mixed"), "odd", 4)
    one, again = (together(pool, workshop, plan, steps=2, micro=30) for _ in range(2))
    assert_same(one, again, tolerance=0)


@pytest.mark.parametrize("layout", ["dp", "split"])
def test_float32_begins_like_one_process(workshop: Workshop, pool: Pool, layout: str) -> None:
    body = start() + update(LINEAR + " + 0.1 * std(logp)")
    one, four = compare(workshop, pool, body, placed(layout), steps=1, dtype="float32")
    assert one.tokens == four.tokens
    assert four.result.column("loss.policy") == pytest.approx(one.result.column("loss.policy"), abs=1e-5)
    assert difference(one.result.weights(), four.result.weights()) < 1e-5


def test_bfloat16_runs(workshop: Workshop, pool: Pool) -> None:
    body = start() + update(LINEAR + " + 0.1 * std(logp)", ", minibatch=2 prompts")
    _, four = compare(workshop, pool, body, placed("mixed"), dtype="bfloat16")
    assert len(four.result.column("loss.policy")) == 2
    assert all(w.dtype == torch.bfloat16 for w in four.result.weights().values())


# ---------------------------------------------------------------- errors

ERRORS = {
    "a reward raises": (
        start() + "    r = rewards.fussy(rollout.text, prompts.answer)\n" + update("-mean(logp * r)"),
        "one",
    ),
    "a reward raises in an update": (
        start() + update("-mean(logp * rewards.fussy(rollout.text, prompts.answer))"),
        "split",
    ),
    "the largest of nothing": (start() + "    metric m = max(reward, where=reward > 5)\n" + update(LINEAR), "overlap"),
    "no loss": (start() + update("-mean(logp * ln(0 - reward))"), "fsdp"),
    "no loss of two passes": (start() + update("-std(logp) * mean(ln(0 - reward))"), "split"),
    "too long": (
        '    rows = read("u.jsonl", batch=6 prompts)\n'
        "    rollout = policy.generate(rows, max_new_tokens=120)\n" + update("-mean(logp)"),
        "three",
    ),
    "too few kept": (
        COLLECT.format(
            target=6, rounds=2, batch=4, stale="", more="some = reward", where="std(reward, by=prompt) > 5"
        ).replace("skip", "error")
        + COLLECTED,
        "one",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_that_of_one_process(workshop: Workshop, pool: Pool, case: str) -> None:
    """It names the same row, wherever that lies."""
    body, layout = ERRORS[case]
    prepare(workshop)
    with pytest.raises(Exception) as found:
        alone(workshop, compiled(workshop.folder, HEAD + body, "odd", None), steps=4)
    with pytest.raises(PoolError) as told:
        together(pool, workshop, compiled(workshop.folder, HEAD + body + placed(layout), "odd", 4), steps=4)
    rows = re.findall(r"^ *row \d+ \(.*\):$", str(found.value), re.MULTILINE)
    for line in (str(found.value).splitlines()[0], *rows):
        assert line.strip() in str(told.value)
    assert bool(rows) == ("raises" in case)
