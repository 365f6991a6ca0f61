"""What is made of stale draws alone runs ahead too, and no number changes."""

import pytest

from shardflow.compiler.passes import schedule
from shardflow.compiler.plan import Plan

from ..workshop import Workshop
from .equivalence import Outcome, alone, assert_same, compiled, together
from .pool import Pool
from .test_resume import assert_equal

FLOW = """
import rewards
from std import clipped_policy_loss, k3, z
flow staged():
    model policy = causal_lm("p")
    model ref = frozen(policy)
    model rm = frozen(reward_model("rm"))
    prompts = read("d.jsonl", batch=4 prompts)
    rollout = policy.generate(prompts, n=3, max_new_tokens=5, max_staleness=STALE)
    score = rm.score(rollout)
    reward = score + rewards.share(rollout.text)
    adv = z(reward)
    update policy(adamw(lr=1e-2), minibatch=2 prompts):
        logp = policy.logprobs(rollout)
        pg = clipped_policy_loss(logp, rollout.logprobs, adv, 0.2, 0.2)
        minimize mean(mean(pg, over=token)) + 0.1 * mean(k3(logp, ref.logprobs(rollout)))
    every 3 steps:
        metric best = max(reward)
"""
APART = """
place staged on cpu(nodes=4, devices=1):
    policy.update on nodes[0]
    ref on nodes[1]
    rm on nodes[2]
    policy.generate on nodes[3]
"""
BESIDE = """
place staged on cpu(nodes=2, devices=1):
    policy.update on nodes[0]
    ref on nodes[0]
    rm on nodes[1]
    policy.generate on nodes[1]
"""
STEPS = 5


def plan_of(workshop: Workshop, place: str = "", stale: int = 2) -> Plan:
    ranks = {APART: 4, BESIDE: 2}.get(place)
    return compiled(workshop.folder, FLOW.replace("STALE", str(stale)) + place, "staged", ranks)


def test_stages_change_no_number(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    for stale in (2, 3):
        staged = plan_of(workshop, stale=stale)
        assert [(a.staleness, a.source) for a in staged.ahead] == [(stale, None), (stale - 1, stale)]
        with monkeypatch.context() as patch:
            patch.setattr(schedule, "stages", lambda step, draws: ())
            plan = plan_of(workshop, stale=stale)
        assert len(plan.ahead) == 1
        one, other = (alone(workshop, x, steps=STEPS) for x in (staged, plan))
        assert one.result.samples == other.result.samples
        assert_same(one, other, 0.0)


@pytest.mark.parametrize("place", [APART, BESIDE], ids=["apart", "beside"])
@pytest.mark.parametrize("stale", [2, 3])
def test_the_numbers_are_those_of_one_process(workshop: Workshop, pool: Pool, place: str, stale: int) -> None:
    one = alone(workshop, plan_of(workshop, stale=stale), steps=STEPS)
    assert_same(one, together(pool, workshop, plan_of(workshop, place, stale), steps=STEPS))


def test_scoring_ahead_has_nothing_to_wait_for_in_the_step(workshop: Workshop) -> None:
    """What the update reads of other ranks came after the step before."""
    plan = plan_of(workshop, APART)
    assert not [i.out for i in plan.program if i.op in ("move", "logprobs", "score")]
    assert {i.op for i in plan.ahead[1].exchange} == {"move"}


@pytest.mark.parametrize("place", ["", APART], ids=["one process", "apart"])
def test_a_run_goes_on_bit_for_bit(workshop: Workshop, pool: Pool, place: str) -> None:
    plan = plan_of(workshop, place)

    def ran(**options: object) -> Outcome:
        return together(pool, workshop, plan, **options) if place else alone(workshop, plan, **options)  # type: ignore[arg-type]

    whole = ran(steps=4)
    out = workshop.out()
    first = ran(steps=4, save_every=1, out=out, breaks_at=2)
    second = ran(steps=4, save_every=1, out=out, resume=True)
    assert_equal(whole, Outcome(second.result, {**first.tokens, **second.tokens}))


@pytest.mark.filterwarnings("ignore:.*was made with:shardflow.runtime.errors.RunWarning")
@pytest.mark.parametrize("places", [("", APART), (APART, ""), (APART, BESIDE)], ids=["there", "back", "elsewhere"])
def test_a_run_is_made_longer_elsewhere(workshop: Workshop, pool: Pool, places: tuple[str, str]) -> None:
    def ran(place: str, **options: object) -> Outcome:
        plan = plan_of(workshop, place)
        return together(pool, workshop, plan, **options) if place else alone(workshop, plan, **options)  # type: ignore[arg-type]

    whole = ran("", steps=4)
    short = ran(places[0], steps=2)
    longer = ran(places[1], steps=4, out=short.result.out, resume=True)
    assert_same(whole, Outcome(longer.result, {**short.tokens, **longer.tokens}))


ROUNDS = FLOW.replace(
    """    prompts = read("d.jsonl", batch=4 prompts)
    rollout = policy.generate(prompts, n=3, max_new_tokens=5, max_staleness=STALE)
""",
    """    collect(4 prompts, rounds=4, short=skip):
        prompts = read("d.jsonl", batch=4 prompts, epochs=1)
        rollout = policy.generate(prompts, n=3, max_new_tokens=5, max_staleness=STALE)
        keep prompts where prompts.answer != "0"
""",
)


def rounds(workshop: Workshop, place: str = "") -> Plan:
    ranks = {APART: 4, BESIDE: 2}.get(place)
    return compiled(workshop.folder, ROUNDS.replace("STALE", "2") + place, "staged", ranks)


def test_scoring_of_what_was_collected_ends_with_the_data(
    workshop: Workshop, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schedule, "stages", lambda step, draws: ())
        whole = alone(workshop, rounds(workshop), steps=None)
    assert 1 < len(whole.result.metrics) < 8
    staged = rounds(workshop)
    assert [a.source for a in staged.ahead] == [None, 2]
    assert_same(whole, alone(workshop, staged, steps=None), 0.0)
    assert_same(whole, together(pool, workshop, rounds(workshop, APART), steps=None))
