"""The examples as a visitor finds them: they check without a word, run, and their files are what their scripts make."""

import importlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shardflow.compiler.cli import main as flowc
from shardflow.dsl import ast, load_flow
from shardflow.dsl.normal import normalise
from shardflow.dsl.parser import parse
from shardflow.runtime.cli import main as flowrun

EXAMPLES = Path(__file__).parents[2] / "examples"
FLOWS = sorted(EXAMPLES.glob("*.flow"))
MEGABYTES = 5


@pytest.mark.parametrize("flow", [*FLOWS, EXAMPLES / "algo.py"], ids=lambda path: path.name)
def test_an_example_checks_without_a_word(flow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert flowc(["check", str(flow)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{flow}: ") and shown.out.endswith(" ok\n") and not shown.err


def test_the_examples_are_in_canonical_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert flowc(["fmt", "--check", *map(str, FLOWS)]) == 0, capsys.readouterr().out


def test_the_python_front_end_gives_the_same_grpo() -> None:
    path = EXAMPLES / "grpo.flow"
    written = normalise(parse(path.read_text(encoding="utf-8"), str(path)))
    traced = normalise(load_flow(str(EXAMPLES / "algo.py"), "grpo"))
    assert flows_of(traced) == flows_of(written)


def flows_of(module: ast.Module) -> list[ast.Flow]:
    return [s for s in module.body if isinstance(s, ast.Flow)]


# ---------------------------------------------------------------- runs


def test_the_first_command_of_a_visitor(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shardflow.runtime.cli", str(EXAMPLES / "grpo.flow"), "--steps", "2"]
    done = subprocess.run([*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    steps = records(tmp_path / "out")
    assert [r["step"] for r in steps] == [0, 1, 2]  # the last is the evaluation after the last step
    assert 0.3 < steps[0]["reward"] < 0.5
    assert steps[0]["test"] > 0.5 and steps[2]["test"] > 0.5
    assert (tmp_path / "out/models/policy/model.safetensors").is_file()


@pytest.mark.parametrize("flow", ["async_grpo.flow", "gym.flow", "ppo.flow", "sft.flow", "algo.py:grpo"])
def test_the_other_examples_run(flow: str, tmp_path: Path) -> None:
    if flow == "gym.flow":
        pytest.importorskip("reasoning_gym")
    out = tmp_path / "out"
    assert flowrun([str(EXAMPLES / flow), "--steps", "1", "--out", str(out), "--no-tensorboard"]) == 0
    first = records(out)[0]
    assert math.isfinite(first["loss.policy"])
    if flow != "sft.flow":  # it has data to imitate, and no reward
        assert 0.2 < first["reward"] < 0.6


def records(out: Path) -> list[dict[str, Any]]:
    return rows(out / "metrics.jsonl")


# ---------------------------------------------------------------- files


def test_the_examples_are_small() -> None:
    files = [path for path in EXAMPLES.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < MEGABYTES * 10**6


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts of the examples can be imported, as they import each other."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) and Path(str(sys.modules[name].__file__)).parent == EXAMPLES:
            del sys.modules[name]


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize("task", ["addition", "legs"])
def test_a_script_makes_the_data_again(task: str, tmp_path: Path) -> None:
    script = script_of(task)
    script.write_data(tmp_path)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == [f"{task}_sft.jsonl", f"{task}_test.jsonl", f"{task}_train.jsonl"]
    for name in made:
        assert rows(tmp_path / name) == rows(EXAMPLES / "data" / name)


@pytest.mark.parametrize("task", ["addition", "legs"])
def test_no_question_is_in_two_files(task: str) -> None:
    parts = [rows(EXAMPLES / f"data/{task}_{part}.jsonl") for part in ("sft", "train", "test")]
    questions = [row.get("prompt") or row["question"] for part in parts for row in part]
    assert len(set(questions)) == len(questions)


@pytest.mark.usefixtures("scripts")
def test_the_gym_reward_is_the_verifier_of_the_package() -> None:
    pytest.importorskip("reasoning_gym")
    solved = importlib.import_module("gym_rewards").solved
    for row in rows(EXAMPLES / "data/legs_test.jsonl")[:20]:
        assert solved(row["answer"], **row) == 1
        assert solved(row["answer"] + "1", **row) == 0  # the package gives some points for it
        assert solved("", **row) == 0


@pytest.mark.usefixtures("scripts")
def test_the_gym_reward_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    solved = importlib.import_module("gym_rewards").solved
    with pytest.raises(RuntimeError, match=r'pip install "shardflow\[gym\]"'):
        solved("4", "How many legs?", "4", {"source_dataset": "leg_counting"})


def script_of(task: str) -> ModuleType:
    if task == "legs":
        pytest.importorskip("reasoning_gym")
    return importlib.import_module(f"make_{task}")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
