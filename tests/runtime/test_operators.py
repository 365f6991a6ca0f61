"""Calling the user's functions: what is loaded, what results may be, and what an error tells."""

import asyncio
import hashlib
import math
import os
import pickle
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from shardflow.runtime.boundary import OperatorError
from shardflow.runtime.operators import AsyncLimits, LoadError, call_rows, check_result, load_function

REWARDS = '''
"""Rewards of a test."""
from dataclasses import dataclass

import answers_of_test

@dataclass
class Verdict:
    ok: bool

COUNT = 0

def exact_match(text: str, answer: str) -> float:
    return float(answers_of_test.number(text) == int(answer))

def late_import(text: str) -> str:
    import second_sibling_of_test
    return second_sibling_of_test.NAME

async def judge(text: str) -> float:
    return float(len(text))

def wrapped(text: str):
    return judge(text)
'''
ANSWERS = "def number(text: str) -> int:\n    return int(text.split()[-1])\n"
FAST = AsyncLimits(backoff=0.001)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "answers_of_test.py").write_text(ANSWERS)
    (tmp_path / "second_sibling_of_test.py").write_text("NAME = 'second'\n")
    return tmp_path


def test_functions_come_from_one_import_with_their_siblings(folder: Path) -> None:
    file = folder / "rewards.py"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    exact_match = load_function(file, "exact_match", digest)
    assert call_rows(exact_match, [["it is 4", "or 5"], ["4", "4"]], node="reward") == [1.0, 0.0]
    assert exact_match.__globals__ is load_function(file, "judge", None).__globals__
    assert call_rows(load_function(file, "late_import", None), [["x"]], node="n") == ["second"]


def test_a_changed_module_is_refused(folder: Path) -> None:
    with pytest.raises(LoadError, match=r"rewards.py has changed since the plan was compiled.*Compile the flow again"):
        load_function(folder / "rewards.py", "exact_match", "0" * 64)


def test_missing_functions_and_files(folder: Path) -> None:
    with pytest.raises(LoadError, match=r"has no function 'exact_mach'. Did you mean 'exact_match'\?"):
        load_function(folder / "rewards.py", "exact_mach", None)
    with pytest.raises(LoadError, match="'COUNT' is 0, not a function"):
        load_function(folder / "rewards.py", "COUNT", None)
    with pytest.raises(LoadError, match=r"nowhere.py can't be read"):
        load_function(folder / "nowhere.py", "f", None)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import no_such_module_here\n", "raised ModuleNotFoundError"),
        ("def f(:\n", "raised SyntaxError"),
        ("raise SystemExit(3)\n", "raised SystemExit: 3"),
    ],
)
def test_modules_that_do_not_import(tmp_path: Path, source: str, told: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(source)
    for _ in range(2):  # a failed import isn't remembered as a module
        with pytest.raises(OperatorError, match=told) as caught:
            load_function(file, "f", None)
        assert "when it was imported" in str(caught.value)
        assert "broken.py:1" in str(caught.value) and source.strip() in str(caught.value)
        assert "operators.py" not in str(caught.value) and "importlib" not in str(caught.value)


def test_an_error_tells_node_function_row_and_user_frames_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    function = load_function(folder / "rewards.py", "exact_match", None)
    columns = [["it is 4", "it is four"], ["4", "4"]]
    with pytest.raises(OperatorError) as caught:
        call_rows(function, columns, node="reward", row_labels=["prompt 0", "prompt 1, sample 3"])
    assert str(caught.value) == (
        "reward: rewards.exact_match raised ValueError: invalid literal for int() with base 10: 'four'\n"
        "  row 1 (prompt 1, sample 3):\n"
        "    text   = 'it is four'\n"
        "    answer = '4'\n"
        "  in your code:\n"
        "    rewards.py:14, in exact_match\n"
        "      return float(answers_of_test.number(text) == int(answer))\n"
        "    answers_of_test.py:2, in number\n"
        "      return int(text.split()[-1])"
    )
    assert isinstance(caught.value.__cause__, ValueError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and again.context == caught.value.context


def test_arguments_are_shortened() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError

    def fail(text: str, tensor: Any, rude: Any) -> float:
        raise SystemExit("no")

    with pytest.raises(OperatorError) as caught:
        call_rows(fail, [["a" * 500 + "the end"], [torch.zeros(3, 4)], [Rude()]], node="n")
    text = str(caught.value)
    assert "raised SystemExit: no" in text
    assert "the end' (507 characters)" in text and len(max(text.splitlines(), key=len)) < 200
    assert "tensor = Tensor of shape (3, 4), torch.float32" in text
    assert "rude   = <Rude whose repr raised RuntimeError>" in text


def test_a_wrong_number_of_arguments_is_told_with_the_row() -> None:
    def one(text: str) -> float:
        return 0.0

    with pytest.raises(OperatorError, match=r"(?s)takes 1 positional argument.*row 0.*argument 2 = 2"):
        call_rows(one, [["a"], [2]], node="n")


def test_async_calls_run_together_within_the_limit() -> None:
    running, most = 0, 0

    async def judge(text: str) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return float(text)

    columns = [[str(i) for i in range(20)]]
    assert call_rows(judge, columns, node="n", limits=AsyncLimits(limit=5), expected="float") == list(range(20))
    assert most == 5


def test_async_retries_back_off_and_then_succeed() -> None:
    times: dict[int, list[float]] = {0: [], 1: []}

    async def flaky(row: int) -> int:
        times[row].append(time.monotonic())
        if len(times[row]) <= 2 * row:
            raise ConnectionError("busy")
        return row

    assert call_rows(flaky, [[0, 1]], node="n", limits=AsyncLimits(backoff=0.01)) == [0, 1]
    first, second, third = times[1]
    assert second - first >= 0.01 and third - second >= 0.02


def test_async_gives_up_with_the_row() -> None:
    attempts = []

    async def down(row: int) -> float:
        attempts.append(row)
        await asyncio.sleep(0.001)
        raise SystemExit("refused")

    with pytest.raises(
        OperatorError, match=r"(?s)raised SystemExit: refused \(the last of 3 attempts\).*row 0"
    ) as caught:
        call_rows(down, [[1]], node="judge", limits=FAST)
    assert attempts == [1, 1, 1]
    assert "asyncio" not in str(caught.value) and "in down" in str(caught.value)


def test_async_time_out_names_its_row() -> None:
    async def slow(row: int) -> float:
        await asyncio.sleep(10 if row == 2 else 0)
        return 1.0

    started = time.monotonic()
    limits = AsyncLimits(timeout=0.05, retries=0)
    with pytest.raises(OperatorError, match=r"(?s)slow took longer than 0.05 s\n  row 2"):
        call_rows(slow, [[0, 1, 2]], node="n", limits=limits)
    assert time.monotonic() - started < 5


def test_a_time_out_of_the_users_own_is_told_as_theirs() -> None:
    async def own() -> float:
        raise TimeoutError("the judge's own")

    async def call(_: int) -> float:
        return await own()

    with pytest.raises(OperatorError, match="raised TimeoutError: the judge's own"):
        call_rows(call, [[0]], node="n", limits=FAST)


def test_async_works_inside_a_running_loop() -> None:
    async def double(x: int) -> int:
        return 2 * x

    async def notebook() -> list[Any]:
        return call_rows(double, [[1, 2]], node="n")

    assert asyncio.run(notebook()) == [2, 4]


def test_async_callable_objects_and_no_rows() -> None:
    class Judge:
        async def __call__(self, text: str) -> float:
            return float(len(text))

    assert call_rows(Judge(), [["ab"]], node="n") == [2.0]
    assert call_rows(Judge(), [[]], node="n") == []


def test_a_coroutine_from_a_plain_function_is_refused(folder: Path) -> None:
    wrapped = load_function(folder / "rewards.py", "wrapped", None)
    with pytest.raises(OperatorError, match="returned an awaitable"):
        call_rows(wrapped, [["x"]], node="n")


class Score(NamedTuple):
    value: float
    text: str


GOOD: list[tuple[Any, Any, Any]] = [
    (1, "float", 1.0),
    (True, "float", 1.0),
    (np.float32(0.5), "float", 0.5),
    (torch.tensor([0.5]), "float", 0.5),
    (np.int64(3), "int", 3),
    (True, "int", 1),
    (np.bool_(True), "bool", True),
    ("x", "str", "x"),
    ([1, 2.5], "list[float]", [1.0, 2.5]),
    (torch.tensor([1.0, 2.0]), "list[float]", [1.0, 2.0]),
    ((["a"],), "list[list[str]]", [["a"]]),
    ({"a": 1}, "any", {"a": 1}),
    (Score(1, "x"), {"value": "float", "text": "str"}, Score(1.0, "x")),
]


@pytest.mark.parametrize(("value", "expected", "plain"), GOOD)
def test_results_become_plain_values(value: Any, expected: Any, plain: Any) -> None:
    got = check_result(value, expected, node="n", function=test_results_become_plain_values)
    assert got == plain and type(got) is type(plain)


BAD: list[tuple[Any, Any, str]] = [
    (None, "float", "returned None, where a float is expected; does every path through it end in `return`"),
    (math.nan, "float", "returned nan, where a finite number is expected"),
    (-math.inf, "float", "returned -inf, where a finite"),
    (torch.tensor(math.nan), "float", "returned nan"),
    ("1", "float", r"returned '1' \(str\), where a float is expected"),
    (torch.zeros(2), "float", r"returned Tensor of shape \(2,\)"),
    (1.0, "int", r"returned 1.0 \(float\), where an int is expected"),
    (1, "bool", r"returned 1 \(int\), where a bool is expected"),
    (b"x", "str", r"returned b'x' \(bytes\), where a str is expected"),
    (None, "any", "returned None"),
    (0.5, "list[float]", r"returned 0.5 \(float\), where a list\[float\] is expected"),
    ([1.0, None], "list[float]", "returned a list with None"),
    (1.0, {"value": "float"}, "returned 1.0, where a NamedTuple with value is expected"),
    (Score(math.nan, ""), {"value": "float"}, "returned a Score whose field 'value' is nan"),
    (Score(1, ""), {"price": "float"}, "returned a Score without the field 'price'"),
]


@pytest.mark.parametrize(("value", "expected", "cause"), BAD)
def test_unfit_results_name_row_and_function(value: Any, expected: Any, cause: str) -> None:
    def reward(text: str) -> Any:
        return value

    with pytest.raises(OperatorError, match=rf"(?s)^score: test_operators\S*reward {cause}.*row \d.*text = '[ab]'"):
        call_rows(reward, [["b"]], node="score", expected=expected)
    with pytest.raises(OperatorError, match=r"row 7 .prompt 7.:\n    text = 'a'"):
        check_result(value, expected, node="n", function=reward, row=7, label="prompt 7", arguments=["a"])


def test_folders_keep_their_own_siblings(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "rewards.py").write_text("import answers_of_test\nNUMBER = answers_of_test.number\n")
    (other / "answers_of_test.py").write_text("def number() -> int:\n    return 7\n")
    assert call_rows(load_function(folder / "rewards.py", "exact_match", None), [["4"], ["4"]], node="n") == [1.0]
    assert load_function(other / "rewards.py", "NUMBER", None)() == 7


def test_paths_are_relative_where_that_is_shorter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(os.sep)
    with pytest.raises(OperatorError, match=r"rewards.py:14, in exact_match"):
        call_rows(load_function(folder / "rewards.py", "exact_match", None), [["x"], ["y"]], node="n")
