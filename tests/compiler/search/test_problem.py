"""Phases, what waits for what, and the batch's arithmetic come from a plan's own instructions."""

from pathlib import Path

import pytest

from shardflow.compiler.compilation import check_flow, choose_flow, compile_flow, load_source
from shardflow.compiler.search.assumptions import BadLength, Lengths, parse_lengths
from shardflow.compiler.search.problem import Problem, problem_of

from ..workbench import Workbench, flow
from .flows import problem

EXAMPLES = Path(__file__).parents[3] / "examples"


def after(of: Problem) -> dict[str, set[str]]:
    return {x.name: set(x.after) for x in of.phases}


def test_the_phases_of_ppo() -> None:
    found = problem("ppo.flow")
    made = {"judge.score", "critic.values", "ref.logprobs"}
    assert after(found) == {
        "policy.generate": set(),
        **{name: {"policy.generate"} for name in made},
        "policy.update": made,
        "critic.update": made,
    }
    assert found.sampled_after_training() == (("policy.update", "policy.generate"),)
    assert found.sharing() == (("critic.update", "critic.values"),)


def test_what_runs_ahead_waits_for_nothing_of_the_step() -> None:
    source = load_source(EXAMPLES / "async_grpo.flow")
    found = problem_of(compile_flow(check_flow(source, choose_flow(source, None), {})))
    assert found.staleness == 1
    assert {x.name: x.ahead for x in found.phases} == {"policy.generate": 1, "policy.logprobs": 0, "policy.update": 0}
    assert after(found)["policy.logprobs"] == set() and after(found)["policy.update"] == {"policy.logprobs"}


def test_scoring_behind_a_stale_draw_waits_for_nothing_of_the_step(bench: Workbench) -> None:
    text = flow("model ref = frozen(policy)\nmetric kl = mean(rollout.logprobs - ref.logprobs(rollout))")
    found = problem_of(bench.plan(text.replace("n=4,", "n=4, max_staleness=2,")))
    assert {x.name: x.ahead for x in found.phases} == {"policy.generate": 2, "ref.logprobs": 1, "policy.update": 0}
    assert not any(after(found).values())


def test_what_reads_the_old_version_comes_before_the_update(bench: Workbench) -> None:
    found = problem_of(bench.plan(flow("metric entropy = mean(policy.entropy(rollout))")))
    assert "policy.entropy" in after(found)["policy.update"]


def test_a_phase_that_runs_in_some_steps_counts_as_a_part_of_one(bench: Workbench) -> None:
    block = "every 20 steps:\n        metric entropy = mean(policy.entropy(rollout))"
    found = problem_of(bench.plan(flow(block)))
    assert {x.name: x.work.every for x in found.phases if x.work.every > 1} == {"policy.entropy": 20}


def test_the_arithmetic_says_where_numbers_come_from() -> None:
    found = problem("grpo.flow", "batch=64prompts", "group=8", lengths=Lengths(100, 50, 60))
    numbers = {q.name: (q.value, q.source) for q in found.arithmetic}
    assert numbers["samples of rollout"] == (512, "64 prompts × n=8")
    assert numbers["tokens of rollout"][0] == 512 * 150
    assert numbers["optimizer steps of policy.update"] == (4, "4 minibatches × 1 epoch")
    assert found.phase("policy.update").work.tokens == 512 * 150


def test_assumptions_are_said_and_given_lengths_are_none() -> None:
    assert any("512 tokens" in said for said in problem("grpo.flow").assumptions)
    (engine,) = problem("grpo.flow", lengths=Lengths(100, 50, 60)).assumptions
    assert "an engine such as vLLM generates" in engine


def test_a_phase_that_runs_twice_is_one_of_all_its_rows() -> None:
    found = problem("dpo.flow")
    assert found.phase("ref.logprobs").work.samples == 2 * 64
    assert any("ref.logprobs runs 2 times" in said for said in found.assumptions)


def test_a_draw_that_is_seldom_made_counts_in_proportion(bench: Workbench) -> None:
    block = """
        every 50 steps:
            test = read("train.jsonl", batch=100 prompts)
            answer = policy.generate(test, max_new_tokens=64, temperature=0)
            metric test = mean(answer.length)
    """
    found = problem_of(bench.plan(flow(block)))
    work = found.phase("policy.generate").work
    assert (work.samples, work.prompts, work.every, work.at_once) == (32 + 2, 8 + 2, 1, 100)
    assert (work.response, work.longest) == (round((32 * 16 + 2 * 32) / 34), 64)
    numbers = {q.name: (q.value, q.source) for q in found.arithmetic}
    assert numbers["samples of answer"] == (100, "100 prompts × n=1, in one of 50 steps")
    assert numbers["samples of policy.generate"] == (34, "32 of `rollout` + 100 of `answer` ÷ 50")
    assert any("`answer` in one of 50 steps" in said for said in found.assumptions)


def test_phases_of_one_period_count_whole_and_run_once_in_it(bench: Workbench) -> None:
    block = """
        every 20 steps:
            a = policy.generate(prompts, max_new_tokens=32)
            metric a = mean(policy.entropy(a))
            every 50 steps:
                metric b = mean(policy.entropy(rollout))
    """
    work = problem_of(bench.plan(flow(block))).phase("policy.entropy").work
    assert (work.every, work.samples, work.at_once) == (20, 8 + round(32 / 5), 32)


def test_a_greedy_baseline_beside_the_sampled_rows(bench: Workbench) -> None:
    body = """
        greedy = policy.generate(prompts, max_new_tokens=32, temperature=0)
        metric gain = mean(reward) - mean(rewards.exact_match(greedy.text, prompts.answer))
    """
    found = problem_of(bench.plan(flow(body)))
    work = found.phase("policy.generate").work
    assert (work.samples, work.prompts, work.at_once, work.every) == (32 + 8, 8 + 8, 32, 1)
    assert any("policy.generate runs 2 times in a step" in said for said in found.assumptions)


def test_what_stands_under_a_condition_is_said_to_run(bench: Workbench) -> None:
    block = "when mean(reward) > 0.5:\n        metric entropy = mean(policy.entropy(rollout))"
    found = problem_of(bench.plan(flow(block)))
    assert found.phase("policy.entropy").work.samples == 32
    assert any("holds in every step" in said for said in found.assumptions)


@pytest.mark.parametrize(
    ("prompt", "response", "lengths"),
    [(None, None, Lengths()), ("10", "20", Lengths(10, 20)), (None, "20,30", Lengths(None, 20, 30))],
)
def test_lengths_of_the_command_line(prompt: str | None, response: str | None, lengths: Lengths) -> None:
    assert parse_lengths(prompt, response) == lengths


@pytest.mark.parametrize("text", ["0", "-3", "many", "10,", "10,x"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(BadLength, match="it is a number of tokens"):
        parse_lengths(None, text)


def test_responses_are_no_longer_than_their_limit() -> None:
    assert Lengths(response=500, longest=900).responses(256) == (256, 256)
    assert Lengths().responses(256) == (128, 256)
