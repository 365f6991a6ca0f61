"""What a step reads and collects: rounds, epochs, streams, and what is drawn ahead."""

from typing import Any

import pytest

from shardflow.runtime.errors import RunError

from .test_semantics import MODEL, START, UPDATE
from .workshop import Workshop, bit_equal, record_in, untimed

COLLECT = """
    collect(6 prompts, rounds={rounds}, short={short}):
        prompts = read("d.jsonl", batch=4 prompts, shuffle=false)
        rollout = policy.generate(prompts, n=2, max_new_tokens=4)
        reward = rewards.share(rollout.text)
        keep prompts where {condition}
        metric unfiltered = count(reward)
    metric kept = count(reward)
"""

IN_STEP_1 = "count(reward, by=prompt) * 0 + step == 1"
"""A condition per prompt."""


def draws_of(value: Any) -> list[int]:
    """The draw numbers of the rows that a value is under."""
    ids = value.frame.chain()[-1].ids
    return [int(i) for i in ids]


def test_collect_goes_on_until_enough_is_kept(workshop: Workshop) -> None:
    condition = 'prompts.answer != "0"'
    result = workshop.run(MODEL + COLLECT.format(rounds=4, short="error", condition=condition) + UPDATE, 2)
    assert result.column("kept") == [12, 12] and result.column("unfiltered") == [8, 8]
    assert result.column("collect_rounds") == [2, 2]
    kept = [draws_of(v["reward_2"]) for v in result.values]
    assert kept == [[1, 2, 3, 4, 5, 6], [8, 9, 10, 11, 12, 13]]
    assert result.meta["cursors"] == {"prompts": 16}


def test_a_short_collect_may_skip_the_updates(workshop: Workshop) -> None:
    text = MODEL + COLLECT.format(rounds=2, short="skip", condition=IN_STEP_1) + UPDATE
    result = workshop.run(text, 3)
    assert [("loss.policy" in m, m.get("skipped_updates")) for m in result.metrics] == [
        (False, 1),
        (True, None),
        (False, 1),
    ]
    assert result.column("kept") == [0, 12, 0]


def test_a_stale_collect_carries_its_skip_and_its_numbers(workshop: Workshop) -> None:
    collect = COLLECT.format(rounds=2, short="skip", condition=f"{IN_STEP_1} or {IN_STEP_1.replace('1', '3')}")
    stale = collect.replace("max_new_tokens=4", "max_new_tokens=4, max_staleness=1")
    plan = workshop.compile(MODEL + stale + UPDATE + "    every 2 steps:\n        metric best = max(reward)\n")
    with pytest.raises(Exception, match="max"):
        workshop.run(plan, 1)  # the largest of nothing
    plan = workshop.compile(MODEL + stale + UPDATE + "    every 2 steps:\n        metric average = mean(reward)\n")
    whole = workshop.run(plan, 4)
    assert ["loss.policy" in m for m in whole.metrics[:4]] == [False, True, False, True]
    assert [m["unfiltered"] for m in whole.metrics[:4]] == [8] * 4 and [m["kept"] for m in whole.metrics[:4]] == [
        0,
        12,
        0,
        12,
    ]
    assert [m["step"] for m in whole.metrics if "average" in m] == [0, 2, 4]
    broken = workshop.interrupted(plan, at=1, steps=4, save_every=1)
    resumed = workshop.run(plan, 4, resume=True, out=broken.out)
    assert untimed(resumed.metrics) == untimed(whole.metrics) and bit_equal(resumed.state, whole.state)


def test_two_draws_of_different_staleness_share_their_prompts(workshop: Workshop) -> None:
    draws = """
    prompts = read("d.jsonl", batch=4 prompts)
    rollout = policy.generate(prompts, n=2, max_new_tokens=4, max_staleness=2)
    other = policy.generate(prompts, n=3, max_new_tokens=4, max_staleness=1)
    reward = rewards.share(rollout.text) - mean(rewards.share(other.text), by=prompt)
"""
    plan = workshop.compile(MODEL + draws + UPDATE)
    whole = workshop.run(plan, 4)
    broken = workshop.interrupted(plan, at=2, steps=4, save_every=1)
    resumed = workshop.run(plan, 4, resume=True, out=broken.out)
    assert untimed(resumed.metrics) == untimed(whole.metrics) and bit_equal(resumed.state, whole.state)


def test_collect_too_short_is_an_error(workshop: Workshop) -> None:
    with pytest.raises(Exception, match="step 0: 2 rounds kept 0 of 6 prompts"):
        workshop.run(MODEL + COLLECT.format(rounds=2, short="error", condition=IN_STEP_1) + UPDATE, 2)


# ---------------------------------------------------------------- reading


def test_all_reads_the_whole_file(workshop: Workshop) -> None:
    flow = MODEL + START + UPDATE + '    whole = read("test.jsonl", all=true)\n    metric rows = count(whole.answer)\n'
    assert workshop.run(flow, 2).column("rows") == [3, 3]


def test_epochs_end_the_run(workshop: Workshop) -> None:
    flow = (MODEL + START + UPDATE).replace("batch=6 prompts", "batch=8 prompts, epochs=2")
    assert len(workshop.run(flow, steps=None).metrics) == 6
    assert len(workshop.run(flow, steps=4).metrics) == 4
    assert len(workshop.run(flow, steps=100).metrics) == 6


def test_without_epochs_the_data_is_read_once(workshop: Workshop) -> None:
    assert len(workshop.run(MODEL + START + UPDATE, steps=None).metrics) == 4


def test_epochs_of_a_collect_end_the_run(workshop: Workshop) -> None:
    text = MODEL + COLLECT.format(rounds=4, short="error", condition='prompts.answer != "0"') + UPDATE
    text = text.replace("batch=4 prompts", "batch=4 prompts, epochs=1")
    result = workshop.run(text, steps=None)
    assert len(result.metrics) == 3 and result.meta["step"] == 3  # two rounds of four rows a step, of 24 rows


def test_streams_differ_and_equal_reads_agree(workshop: Workshop) -> None:
    reads = """
    again = read("d.jsonl", batch=6 prompts)
    other = read("d.jsonl", batch=6 prompts, stream="b")
    metric there = count(other.answer) + count(again.answer)
"""
    step = workshop.run(MODEL + START + reads + UPDATE, 1).values[0]
    prompts, again, other = (record_in(step[name]).fields["answer"].rows for name in ("prompts", "again", "other"))
    assert prompts == again and prompts != other


def test_samples_of_a_collect_have_the_flows_names(workshop: Workshop) -> None:
    text = MODEL + COLLECT.format(rounds=4, short="error", condition='prompts.answer != "0"') + UPDATE
    rows = workshop.run(text, 1).samples
    assert all({"prompt", "text", "reward", "answer"} <= set(row) for row in rows)


KEPT_AHEAD = """
    prompts = read("d.jsonl", batch=6 prompts)
    some = keep(prompts, where=prompts.answer != "0")
    a = policy.generate(some, n=3, max_new_tokens=4, max_staleness={first})
    right = rewards.share(a.text)
    best = keep(a, where=rank(right, by=some.prompt) == 0)
    b = policy.generate(best.text, max_new_tokens=4, max_staleness={second})
    gain = rewards.share(b.text) - rewards.share(best.text)
    metric gain = mean(gain) + mean(b.length + sum(best.logprobs, over=token))
    metric some = count(some.answer)
    update policy(adamw(lr=1e-2)):
        minimize -mean(policy.logprobs(best) * gain)
"""


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 2), (1, 0)])
def test_stale_draws_are_on_the_axes_that_a_keep_opens_again(workshop: Workshop, first: int, second: int) -> None:
    plan = workshop.compile(MODEL + KEPT_AHEAD.format(first=first, second=second))
    whole = workshop.run(plan, 3)
    assert len(whole.column("gain")) == 3
    broken = workshop.interrupted(plan, at=2, steps=3, save_every=1)
    resumed = workshop.run(plan, 3, resume=True, out=broken.out)
    assert untimed(resumed.metrics) == untimed(whole.metrics) and bit_equal(resumed.state, whole.state)


ONE_EPOCH = COLLECT.replace("shuffle=false", "epochs=1").replace("max_new_tokens=4", "max_new_tokens=4{stale}")
CLOSING = "    every 2 steps:\n        metric closing = mean(reward)\n"


@pytest.mark.parametrize("stale", ["", ", max_staleness=1", ", max_staleness=3"])
def test_the_closing_evaluation_reads_on_where_the_data_has_ended(workshop: Workshop, stale: str) -> None:
    text = MODEL + ONE_EPOCH.format(stale=stale, rounds=2, short="skip", condition="true") + UPDATE + CLOSING
    result = workshop.run(text.replace("where true", 'where prompts.answer != "x"'), None)
    assert [m["step"] for m in result.metrics if "closing" in m] == [0, 2, 3]
    assert result.meta["step"] == 3


def test_models_are_written_before_the_closing_evaluation(workshop: Workshop) -> None:
    closing = "    every 1 steps:\n        metric closing = 1 // (3 - step)\n"
    with pytest.raises(RunError, match="divides an integer by zero"):
        workshop.run(MODEL + START + UPDATE + closing, 3)
    assert (workshop.folder / "runs/1/models/policy/model.safetensors").is_file()
