"""What must hold besides types: updates and losses, batch arithmetic, collects, metrics, sources, and the warnings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.compiler.passes.check.batches import nearest_divisors

from .workbench import Workbench, flow, underlined

# ---------------------------------------------------------------- updates

LOSSES = [
    ("minimize -mean(policy.logprobs(rollout) * reward)", []),
    ("minimize -mean(policy.entropy(rollout)) - mean(policy.logprobs(rollout) * reward)", []),
    ("minimize policy.logprobs(rollout) * reward", ["E0303"]),
    ("minimize mean(rollout.logprobs * reward)", ["E0304"]),
    ("minimize mean(stop_gradient(policy.logprobs(rollout)) * reward)", ["E0304"]),
    ("minimize mean(policy.logprobs(rollout) > 0)", ["E0304"]),
    ("minimize mean(where(policy.logprobs(rollout) > 0, reward, 0))", ["E0304"]),
    ("minimize mean(reward, where=policy.logprobs(rollout) > 0)", ["E0304"]),
    ("minimize 0", ["E0304"]),
    ("minimize mean(policy.next.logprobs(rollout) * reward)", ["E0306"]),
    ("logp = policy.logprobs(rollout)\n    minimize mean(logp * reward)\n    minimize mean(logp * reward)", ["E0305"]),
    ("metric x = mean(policy.logprobs(rollout))", ["E0305"]),
    ("update policy(adamw(lr=1)):\n        minimize 1", ["E0311"]),
]


@pytest.mark.parametrize(("loss", "codes"), LOSSES, ids=[loss[0] for loss in LOSSES])
def test_a_loss_reaches_its_model(bench: Workbench, loss: str, codes: list[str]) -> None:
    assert bench.codes(flow(f"update policy(adamw(lr=1e-6)):\n    {loss}", update=False)) == codes


def test_a_model_is_updated_once_or_frozen(bench: Workbench) -> None:
    assert bench.codes(flow(update=False)) == ["E0302"]
    assert bench.codes(flow("update policy(adamw(lr=1)):\n    minimize mean(policy.logprobs(rollout) * reward)")) == [
        "E0301"
    ]
    frozen = "model ref = frozen(policy)\nupdate ref(adamw(lr=1)):\n    minimize mean(ref.logprobs(rollout) * reward)"
    assert bench.codes(flow(frozen)) == ["E0307"]
    assert bench.codes(flow("next policy = policy")) == ["E0308"]


def test_a_misspelt_model_is_one_error(bench: Workbench) -> None:
    text = flow().replace("update policy", "update polcy")
    (found,) = bench.found(text)
    assert (found.code, underlined(found, text), found.help) == ("E0101", "polcy", "did you mean `policy`?")


# ---------------------------------------------------------------- batches


@given(st.integers(1, 2000), st.integers(1, 3000))
def test_nearest_divisors(rows: int, wanted: int) -> None:
    found = nearest_divisors(rows, wanted)
    divisors = [d for d in range(1, rows + 1) if rows % d == 0]
    assert found == [d for d in divisors if d < wanted][-1:] + [d for d in divisors if d > wanted][:1]


def test_the_message_says_where_the_numbers_come_from(bench: Workbench) -> None:
    (found,) = bench.found(flow().replace("lr=1e-6)", "lr=1e-6), minibatch=3 prompts"))
    assert found.message == "`minibatch=3 prompts` doesn't divide the 8 prompts of `prompts` (8 = 2 × 3 + 2)"
    assert found.notes[0].message == "8 prompts come from here"
    assert found.help == "nearest that divide 8: `minibatch=2 prompts` or `minibatch=4 prompts`"


TWO_ROOTS = """
more = read("train.jsonl", batch=6 prompts, stream="b")
update policy(adamw(lr=1e-6), {}):
    minimize -mean(policy.logprobs(rollout) * reward) - mean(policy.logprobs(more.prompt, more.answer))
"""


def test_several_roots_are_cut_into_the_same_number(bench: Workbench) -> None:
    assert bench.codes(flow(TWO_ROOTS.format("minibatches=2"), update=False)) == []
    (found,) = bench.found(flow(TWO_ROOTS.format("minibatches=4"), update=False))
    assert found.message == "`minibatches=4` doesn't divide the 6 prompts of `more`"
    assert found.help == "nearest that divide 6 and 8: `minibatches=2`"
    (found,) = bench.found(flow(TWO_ROOTS.format("minibatch=4 prompts"), update=False))
    assert (found.code, found.help) == ("E0403", "write `minibatches=2`: the same number for each")


def test_a_collect_gives_its_target(bench: Workbench) -> None:
    assert bench.codes(collect(minibatch=8)) == []
    (found,) = bench.found(collect(minibatch=5))
    assert found.message.startswith("`minibatch=5 prompts` doesn't divide the 16 prompts of `prompts`")


# ---------------------------------------------------------------- collect


def collect(keep: str = "keep prompts where std(reward, by=prompt) > 0", after: str = "", minibatch: int = 4) -> str:
    body = f"""
        collect(16 prompts, rounds=4, short=skip):
            prompts = read("train.jsonl", batch=8 prompts)
            rollout = policy.generate(prompts, n=4, max_new_tokens=32)
            reward = rewards.exact_match(rollout.text, prompts.answer)
            average = mean(reward)
            metric average = average
            {keep}
        {after}
        update policy(adamw(lr=1e-6), minibatch={minibatch} prompts):
            minimize -mean(policy.logprobs(rollout) * reward)
    """
    text = flow(body, update=False).splitlines()
    start = next(i for i, line in enumerate(text) if "collect(" in line)
    return "\n".join([*text[:5], *text[start:]]) + "\n"


COLLECTS = [
    ("keep prompts where std(reward, by=prompt) > 0", "", []),
    ("keep prompts where reward > 0", "", ["E0203"]),
    ("keep prompts where mean(reward) > 0", "", ["E0203"]),
    ("keep prompts where prompts.answer", "", ["E0203"]),
    ("keep rollout where reward > 0", "", ["E0205"]),
    ("keep prompt where true", "", ["E0205"]),
    ("keep promts where mean(reward, by=prompt) > 0", "", ["E0101"]),
    ("x = 1", "", ["E0315"]),
    ("keep prompts where mean(reward, by=prompt) > 0\n            keep prompts where false", "", ["E0203"]),
    (
        "keep prompts where mean(reward, by=prompt) > 0\n            keep prompts where mean(reward, by=prompt) < 1",
        "",
        ["E0315"],
    ),
    ("keep prompts where mean(reward, by=prompt) > average", "metric later = mean(reward)", []),
    ("keep prompts where mean(reward, by=prompt) > average", "metric later = average", ["E0315"]),
]


@pytest.mark.parametrize(("keep", "after", "codes"), COLLECTS, ids=[f"{c[0]};{c[1]}" for c in COLLECTS])
def test_a_collect_keeps_its_own_rows(bench: Workbench, keep: str, after: str, codes: list[str]) -> None:
    assert bench.codes(collect(keep, after)) == codes


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("collect(16, rounds=4):", "E0206"),
        ("collect(16 samples, rounds=4):", "E0206"),
        ("collect(rounds=4):", "E0108"),
        ("collect(16 prompts, rounds=0):", "E0113"),
        ("collect(16 prompts, short=skp):", "E0113"),
        ("collect(16 prompts, round=4):", "E0105"),
    ],
)
def test_a_wrong_header_of_a_collect_is_refused(bench: Workbench, header: str, code: str) -> None:
    assert bench.codes(collect().replace("collect(16 prompts, rounds=4, short=skip):", header)) == [code]


# ---------------------------------------------------------------- metrics, states, conditions


def test_a_metric_is_recorded_once_unless_in_turn(bench: Workbench) -> None:
    assert bench.codes(flow("metric x = mean(reward)\nmetric x = sum(reward)")) == ["E0102"]
    in_turn = "when step < 9:\n    metric x = mean(reward)\nwhen step >= 9:\n    metric x = sum(reward)"
    assert bench.codes(flow(in_turn)) == []
    assert bench.codes(flow(f"{in_turn}\nmetric x = 1")) == ["E0102"]


def test_a_metric_leaves_the_steps_own_record_alone(bench: Workbench) -> None:
    assert bench.codes(flow("metric seconds = mean(reward)")) == ["E0103"]
    assert bench.codes(flow("metric step = mean(reward)")) == ["E0103"]
    assert bench.codes(flow("metric reward = mean(reward)")) == []


BLOCKS = [
    ("when reward > 0:", ["E0210"]),
    ('when "yes":', ["E0210"]),
    ("when mean(reward) > 0.5 and step > 10:", []),
    ("every 20 steps:", []),
    ("every 20:", ["E0206"]),
    ("every 20 prompts:", ["E0206"]),
    ("every 0 steps:", ["E0113"]),
    ("every step:", ["E0113"]),
]


@pytest.mark.parametrize(("header", "codes"), BLOCKS, ids=[b[0] for b in BLOCKS])
def test_when_and_every(bench: Workbench, header: str, codes: list[str]) -> None:
    assert bench.codes(flow(f"{header}\n    metric x = mean(reward)")) == codes


STATES = [
    ("state b = 0.1\nnext b = b * 2\nmetric b = b", []),
    ("state b = 0.1\nmetric b = b", ["W0103"]),
    ("state b = 0.1\nnext b = 0.2", ["W0101"]),
    ("state b = 0.1\nnext b = reward\nmetric b = b", ["E0210"]),
    ('state b = "a"', ["E0113"]),
    ("state b = mean(reward)", ["E0113"]),
    ("state b = 0.1\nnext b = 1\nnext b = 2\nmetric b = b", ["E0308"]),
    ("next reward = 1", ["E0310"]),
    ("model ref = frozen(policy)\nnext ref = reward\nmetric b = mean(ref.logprobs(rollout))", ["E0310"]),
    (
        "model ref = frozen(policy)\nnext ref = ema(ref, policy, decay=2)\nmetric b = mean(ref.logprobs(rollout))",
        ["E0113"],
    ),
]


@pytest.mark.parametrize(("body", "codes"), STATES, ids=[s[0] for s in STATES])
def test_states(bench: Workbench, body: str, codes: list[str]) -> None:
    assert bench.codes(flow(body)) == codes


# ---------------------------------------------------------------- sources


def test_a_rollout_is_read_by_its_own_tokenizer(bench: Workbench) -> None:
    body = 'model ref = frozen(causal_lm("other"))\nmetric x = mean(ref.logprobs(rollout))'
    assert bench.codes(flow(body)) == ["E0313"]
    assert bench.codes(flow(body.replace("causal_lm", "reward_model").replace("logprobs", "score"))) == []


def test_new_tokens_leave_room_for_a_prompt(bench: Workbench) -> None:
    assert bench.codes(flow().replace("max_new_tokens=32", "max_new_tokens=1023")) == []
    (found,) = bench.found(flow().replace("max_new_tokens=32", "max_new_tokens=1024"))
    assert "`policy` has a context of 1024 tokens" in found.message
    assert bench.codes(flow().replace("max_new_tokens=32", "max_new_tokens=32, min_new_tokens=33")) == ["E0113"]


def test_what_is_missing_is_warned_of(bench: Workbench) -> None:
    text = flow().replace("train.jsonl", "trian.jsonl").replace('"tiny"', '"tinny"')
    first, second = bench.found(text)
    assert (first.code, first.help) == ("W0402", "did you mean `tiny`?")
    assert (second.code, second.help) == ("W0401", "did you mean `train.jsonl`?")


# ---------------------------------------------------------------- warnings


def update(loss: str, options: str = "max_new_tokens=32") -> str:
    body = f"update policy(adamw(lr=1e-6)):\n    logp = policy.logprobs(rollout)\n    minimize {loss}"
    return flow(body, update=False).replace("max_new_tokens=32", options)


WARNINGS = [
    ("mean(exp(logp - rollout.logprobs) * reward)", "max_new_tokens=32, max_staleness=2", []),
    ("mean(exp(logp - stop_gradient(logp)) * reward)", "max_new_tokens=32, max_staleness=2", ["W0301"]),
    ("mean(exp(logp - rollout.logprobs) * reward)", "max_new_tokens=32, top_p=0.9", ["W0302"]),
    ("mean(exp(logp - rollout.logprobs) * reward)", "max_new_tokens=32, top_k=50", ["W0302"]),
    ("mean(logp * reward)", "max_new_tokens=32, top_k=50", []),
    ("mean(logp)", "max_new_tokens=32", ["W0303"]),
    ("-mean(sum(logp, over=token))", "max_new_tokens=32", ["W0303"]),
    ("mean(logp * reward) + 0.1 * mean(k1(logp, rollout.logprobs))", "max_new_tokens=32", ["W0303"]),
    ("mean(logp * reward) + 0.1 * mean(k3(logp, rollout.logprobs))", "max_new_tokens=32", []),
    ("mean(mean(logp, over=token) * reward + 0.1 * logp * reward)", "max_new_tokens=32", ["W0203"]),
    ("mean(logp * z(reward))", "max_new_tokens=32", []),
    ("mean(mean(logp * reward - reward, over=token))", "max_new_tokens=32", []),
    ("mean(mean(logp * reward - reward, by=prompt))", "max_new_tokens=32", ["W0203"]),
    ("mean(exp(logp - rollout.logprobs) * reward)", "max_new_tokens=32, min_new_tokens=2", ["W0302"]),
]


@pytest.mark.parametrize(("loss", "options", "codes"), WARNINGS, ids=[f"{w[0]};{w[1]}" for w in WARNINGS])
def test_what_usually_is_a_mistake(bench: Workbench, loss: str, options: str, codes: list[str]) -> None:
    assert bench.codes(update(loss, options)) == codes


def test_groups_of_one_are_warned_of_once_per_call(bench: Workbench) -> None:
    assert bench.codes(update("mean(logp * z(reward))").replace("n=4", "n=1")) == ["W0202"]
    assert bench.codes(update("mean(logp * z(reward))").replace("n=4, ", "")) == ["W0202"]


@pytest.mark.parametrize(
    ("advantage", "codes"),
    [
        ("leave_one_out(reward)", ["W0202"]),
        ("(reward - max(reward, by=prompt))", ["W0202"]),
        ("(reward - quantile(reward, 0.5, by=prompt))", ["W0202"]),
        ("rank(reward, by=prompt)", ["W0202"]),
        ("rank(reward)", []),
        ("count(reward, by=prompt)", []),
        ("(reward - mean(reward))", []),
    ],
)
def test_what_is_nothing_over_groups_of_one(bench: Workbench, advantage: str, codes: list[str]) -> None:
    text = update(f"mean(logp * {advantage})").replace(
        "import rewards", "import rewards\nfrom std import leave_one_out", 1
    )
    assert sorted(set(bench.codes(text.replace("n=4", "n=1")))) == codes
    assert bench.codes(text) == []


@pytest.mark.parametrize(
    ("target", "source", "codes"),
    [
        ('frozen(value_model("tiny"))', "policy", ["E0317"]),
        ('frozen(causal_lm("other"))', "policy", ["E0317"]),
        ('frozen(causal_lm("tiny"))', "policy", []),
        ('frozen(causal_lm("tiny"))', "ema(m, policy, decay=0.5)", []),
        ('frozen(causal_lm("owner/unknown"))', "policy", ["W0402"]),
    ],
)
def test_next_weights_are_of_an_equal_model(bench: Workbench, target: str, source: str, codes: list[str]) -> None:
    (bench.folder / "other" / "config.json").write_text('{"vocab_size": 5}', encoding="utf-8")
    found = bench.codes(flow(f"model m = {target}\nnext m = {source}"))
    assert [c for c in found if c != "W0101"] == codes


def test_a_stale_loss_through_a_collect_reads_its_logprobs(bench: Workbench) -> None:
    text = collect().replace("n=4,", "n=4, max_staleness=1,")
    text = text.replace(
        "policy.logprobs(rollout) * reward", "exp(policy.logprobs(rollout) - rollout.logprobs) * reward"
    )
    assert bench.codes(text) == []


def test_what_nothing_reads_is_warned_of(bench: Workbench) -> None:
    text = flow("x = mean(reward)\nmodel ref = frozen(policy)")
    assert [(d.code, d.message) for d in bench.found(text)] == [
        ("W0101", "`x` is never used"),
        ("W0101", "model `ref` is never used"),
    ]
