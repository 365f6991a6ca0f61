"""The two front ends build the same AST: the acceptance set, and random expressions."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardflow.dsl import ast, flows_of, load_flow
from shardflow.dsl.normal import normalise
from shardflow.dsl.parser import parse
from shardflow.dsl.printer import format_module

DATA = Path(__file__).parent.parent / "data"
IN_PYTHON = str(DATA / "flows_py.py")


def parsed() -> ast.Module:
    path = DATA / "flows.flow"
    return normalise(parse(path.read_text(encoding="utf-8"), str(path)))


def flows(module: ast.Module) -> dict[str, ast.Flow]:
    return {s.name: s for s in module.body if isinstance(s, ast.Flow)}


def test_the_acceptance_set_has_the_same_flows() -> None:
    assert list(flows_of(IN_PYTHON)) == list(flows(parsed()))


@pytest.mark.parametrize("name", list(flows(parsed())))
def test_both_front_ends_build_the_same_flow(name: str) -> None:
    traced = normalise(load_flow(IN_PYTHON, name))
    assert flows(traced)[name] == flows(parsed())[name]


@pytest.mark.parametrize("name", list(flows(parsed())))
def test_a_traced_module_is_printed_as_text_that_parses_back(name: str) -> None:
    traced = load_flow(IN_PYTHON, name)
    assert normalise(parse(format_module(traced), "printed.flow")) == normalise(traced)


def test_both_front_ends_build_the_same_placement() -> None:
    traced = normalise(load_flow(IN_PYTHON, "ppo_adaptive"))
    assert [s for s in traced.body if isinstance(s, ast.Place)] == [
        s for s in parsed().body if isinstance(s, ast.Place)
    ]


# ---------------------------------------------------------------- random expressions

ARITHMETIC = ("+", "-", "*", "/", "//", "%", "**")
COMPARISON = ("<", "<=", ">", ">=", "==", "!=")
IN_PYTHON_OP = {"and": "&", "or": "|", "not": "~"}


class Both:
    """One expression in both spellings. `plain` has nothing traced in it, so Python computes it."""

    def __init__(self, text: str, python: str, plain: bool = False) -> None:
        self.text, self.python, self.plain = text, python, plain

    def __repr__(self) -> str:
        return self.text


def binary(op: str, left: Both, right: Both) -> Both:
    return Both(f"({left.text} {op} {right.text})", f"({left.python} {IN_PYTHON_OP.get(op, op)} {right.python})")


def unary(op: str, operand: Both) -> Both:
    return Both(f"({op} {operand.text})", f"({IN_PYTHON_OP.get(op, op)}{operand.python})")


def reduction(name: str, x: Both, axis: str, option: str) -> Both:
    return Both(f"{name}({x.text}, {option}={axis})", f'{name}({x.python}, {option}="{axis}")')


SYMBOLS = st.sampled_from([Both(name, name) for name in ("x", "y", "rollout.length", "rollout.logprobs", "step")])
NUMBERS = st.one_of(st.integers(0, 10**6).map(repr), st.floats(0, 1e9, allow_nan=False).map(repr)).map(
    lambda text: Both(text, text, plain=True)
)
SIGNED = NUMBERS | NUMBERS.map(lambda n: Both(f"(-{n.text})", f"(-{n.python})", plain=True))


def larger(smaller: st.SearchStrategy[Both]) -> st.SearchStrategy[Both]:
    ops = st.sampled_from([*ARITHMETIC, *COMPARISON, "and", "or"])
    axes = st.sampled_from(["prompt", "sample", "token"])
    return st.one_of(
        st.builds(binary, ops, smaller, smaller),
        st.builds(binary, ops, smaller, SIGNED),
        st.builds(binary, ops, SIGNED, smaller),
        st.builds(unary, st.sampled_from(["-", "not"]), smaller),
        st.builds(reduction, st.sampled_from(["mean", "sum", "max"]), smaller, axes, st.sampled_from(["by", "over"])),
    )


EXPRESSIONS = st.recursive(SYMBOLS, larger, max_leaves=12)


@given(st.lists(EXPRESSIONS, min_size=1, max_size=5))
@settings(deadline=None, max_examples=100)
def test_both_front_ends_build_the_same_expressions(
    tmp_path_factory: pytest.TempPathFactory, trees: list[Both]
) -> None:
    text = "".join(f"    v{i} = {tree.text}\n" for i, tree in enumerate(trees))
    python = "".join(f"    v{i} = {tree.python}\n" for i, tree in enumerate(trees))
    file = tmp_path_factory.mktemp("random") / "random_flow.py"
    names = "flow, max, mean, step, sum"
    file.write_text(f"from shardflow.dsl import {names}\n@flow\ndef f(x, y, rollout):\n{python}", encoding="utf-8")
    assert normalise(load_flow(str(file), "f")) == normalise(parse(f"flow f(x, y, rollout):\n{text}", "random.flow"))
