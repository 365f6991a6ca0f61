"""`flowc explain FLOW`: rows, passes, micro-batches; of many ranks also where phases run and what moves."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from shardflow.compiler.cli import main

from .workbench import Workbench, flow

Output = pytest.CaptureFixture[str]
Golden = Callable[[str, str], None]

SPLIT = """
place tune on cpu(nodes=2):
    policy.update on nodes[0], fsdp=2
    policy.generate on nodes[1]
"""
BODY = """\
model ref = frozen(policy)
adv = z(reward)
every 5 steps:
    test = read("train.jsonl", all=true)
    answer = policy.generate(test, max_new_tokens=4)
    metric length = mean(answer.length)
update policy(adamw(lr=1e-6), minibatch=4 prompts, epochs=2):
    minimize -mean(policy.logprobs(rollout) * adv) + 0.1 * mean(k3(policy.logprobs(rollout), ref.logprobs(rollout)))
"""
TEXT = flow(BODY, update=False)


def explained(capsys: Output, path: str, *options: str) -> str:
    assert main(["explain", path, *options]) == 0
    return capsys.readouterr().out


def facts(capsys: Output, path: str, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(explained(capsys, path, *options, "--format", "json"))
    return found


def test_one_process(bench: Workbench, capsys: Output, golden: Golden) -> None:
    golden("explain/single.txt", explained(capsys, str(bench.write(TEXT))))


def test_many_ranks(bench: Workbench, capsys: Output, golden: Golden) -> None:
    golden("explain/multi.txt", explained(capsys, str(bench.write(TEXT)), "--target", "multi", "--ranks", "3"))


def test_nodes_apart(bench: Workbench, capsys: Output, golden: Golden) -> None:
    shown = explained(capsys, str(bench.write(TEXT + SPLIT)), "--target", "multi", "--ranks", "4")
    golden("explain/split.txt", shown)


def test_what_runs_ahead(bench: Workbench, capsys: Output, golden: Golden) -> None:
    text = TEXT.replace("max_new_tokens=32", "max_new_tokens=32, max_staleness=2") + SPLIT
    golden("explain/ahead.txt", explained(capsys, str(bench.write(text)), "--target", "multi", "--ranks", "4"))


def test_the_same_as_data(bench: Workbench, capsys: Output) -> None:
    found = facts(capsys, str(bench.write(TEXT + SPLIT)), "--target", "multi", "--ranks", "4")
    assert (found["target"], found["ranks"]) == ("multi", 4)
    phases = {p["phase"]: p for p in found["phases"]}
    assert phases["policy.update"] == {
        "phase": "policy.update",
        "mesh": "ranks0-1",
        "dp": 1,
        "fsdp": 2,
        "dealt": "by length",
        "rows per rank": {"prompts": 2, "samples": 8},
    }
    assert phases["policy.generate"]["rows per rank"] == {"prompts": 4, "samples": 16}
    assert found["moves"][0] == {
        "moves": ["weights of policy"], "from": "ranks0-1", "to": "ranks2-3", "when": "in the step",
    }  # fmt: skip


def test_one_process_says_nothing_of_ranks(bench: Workbench, capsys: Output) -> None:
    found = facts(capsys, str(bench.write(TEXT)))
    assert found["target"] == "single" and not {"ranks", "phases", "moves"} & found.keys()


def test_ranks_need_their_target(bench: Workbench, capsys: Output) -> None:
    assert main(["explain", str(bench.write(TEXT)), "--ranks", "2"]) == 2
    assert "give `--target multi` too" in capsys.readouterr().err


def test_what_was_collected_has_the_flows_name(capsys: Output) -> None:
    shown = explained(capsys, "std/dapo.flow", "--target", "multi", "--ranks", "4")
    assert "rollout{length, logprobs, tokens}: dealt" in shown and "_2" not in shown and "%" not in shown
