"""Graphs, plans and errors as text: what a person reads."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shardflow.compiler.plan import decode, encode
from shardflow.compiler.plan.text import plan_text
from shardflow.compiler.printing import graph_text
from shardflow.dsl.diagnostics import render

from .workbench import Workbench, flow

Golden = Callable[[str, str], None]

FLOWS = (Path(__file__).parent.parent / "data" / "flows.flow").read_text(encoding="utf-8")
NAMES = ["ppo_adaptive", "grpo", "dapo", "dpo", "online_dpo", "async_tis", "evaluate"]
REWARDS = """\
def exact_match(text: str, answer: str) -> float:
    return float(text.strip() == answer.strip())


def overlong(length: int, max_length: int, buffer: int) -> float:
    return 0.0
"""


@pytest.fixture
def acceptance(bench: Workbench) -> Workbench:
    bench.write(REWARDS, "rewards.py")
    return bench


def without_hashes(text: str) -> str:
    return re.sub(r"\b[0-9a-f]{12}\b", "…", text)


@pytest.mark.parametrize("name", NAMES)
def test_graph(acceptance: Workbench, golden: Golden, name: str) -> None:
    golden(f"graph/{name}.txt", graph_text(acceptance.graph(FLOWS, name)))


@pytest.mark.parametrize("name", NAMES)
def test_plan(acceptance: Workbench, golden: Golden, name: str) -> None:
    golden(f"plan/{name}.txt", without_hashes(plan_text(acceptance.plan(FLOWS, name))))


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_comes_back_from_its_file(acceptance: Workbench, name: str) -> None:
    plan = acceptance.plan(FLOWS, name)
    assert decode(encode(plan)) == plan


def test_plans_do_not_depend_on_the_process(acceptance: Workbench) -> None:
    path = acceptance.write(FLOWS)
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from shardflow.compiler.compilation import check_flow, choose_flow, compile_flow, load_source\n"
        "from shardflow.compiler.plan import encode\n"
        f"for name in {NAMES}:\n"
        "    source = load_source(Path(sys.argv[1]))\n"
        "    print(encode(compile_flow(check_flow(source, choose_flow(source, name), {}))).decode())"
    )

    def run(seed: str) -> str:
        command = [sys.executable, "-c", script, str(path)]
        env = {"PYTHONHASHSEED": seed, "PATH": ""}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120).stdout

    first = run("1")
    assert first.count('"schema"') == len(NAMES) and first == run("2")


ERRORS = {
    "strangers": "more = policy.generate(prompts, n=2, max_new_tokens=8)\nmetric x = mean(reward - more.length)",
    "column": "other = rewards.exact_match(rollout.text, prompts.anwser)",
    "option": "more = policy.generate(prompts, max_tokens=8)\nmetric x = mean(more.length)",
    "unit": 'more = read("train.jsonl", batch=8)\nmetric x = count(more.answer)',
    "axis": "metric x = mean(std(reward, by=answer))",
    "innermost": "metric x = mean(mean(rollout.logprobs, over=sample))",
    "tokenizer": 'model ref = frozen(causal_lm("other"))\nmetric x = mean(ref.logprobs(rollout))',
    "in_a_definition": "metric x = mean(z(prompts.answer))",
    "cycle": "model a = frozen(policy)\nmodel b = frozen(policy)\nnext a = b.next\nnext b = a.next\n"
    "metric x = mean(a.logprobs(rollout) - b.logprobs(rollout))",
    "twice": "reward = mean(rollout.length)",
    "several": "a = mean(rewrd)\nb = rollout.txt\nmetric c = reward\nnext d = 2",
}


@pytest.mark.parametrize("case", ERRORS)
def test_error(bench: Workbench, golden: Golden, case: str) -> None:
    golden(f"errors/{case}.txt", rendered(bench, flow(ERRORS[case])))


def test_batch_arithmetic_error(bench: Workbench, golden: Golden) -> None:
    golden("errors/minibatch.txt", rendered(bench, flow().replace("lr=1e-6)", "lr=1e-6), minibatch=3 prompts")))


def rendered(bench: Workbench, text: str) -> str:
    """The diagnostics as they are printed, with paths relative to the flow and without lines of the library."""
    path = str(bench.folder / "case.flow")
    shown = "\n\n".join(render(d, {path: text}) for d in bench.found(text))
    shown = shown.replace(f"{bench.folder}/", "")
    return re.sub(r"\S*/stdlib/(\w+\.flow):\d+:\d+", r"std/\1", shown) + "\n"


# ---------------------------------------------------------------- the acceptance set

REFUSED = {
    "strangers": "E0201",
    "kept_against_full": "E0201",
    "ambiguous_sample": "E0202",
    "mixed_levels": "W0203",
    "no_gradient": "E0304",
    "reassign": "E0102",
}
BESIDES = {"E0302", "W0303", "W0101", "W0401", "W0402"}
"""What these flows also get: most of them have no update at all."""


@pytest.mark.parametrize("name", [n for n in re.findall(r"^flow (\w+)", FLOWS, re.MULTILINE) if n != "tool_use"])
def test_the_acceptance_set_compiles_without_a_word(acceptance: Workbench, name: str) -> None:
    placed = {"W0501"} if name == "ppo_adaptive" else set()
    assert set(acceptance.codes(FLOWS, name)) - {"W0401", "W0402"} == placed


@pytest.mark.parametrize("name", REFUSED)
def test_what_must_be_refused_is(bench: Workbench, name: str) -> None:
    text = (Path(__file__).parent.parent / "data" / "refused.flow").read_text(encoding="utf-8")
    assert set(bench.codes(text, name)) - BESIDES == {REFUSED[name]}
