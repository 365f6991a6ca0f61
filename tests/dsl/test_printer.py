"""The formatter: golden texts, line breaks, comments, and round trips on generated modules."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings

from shardflow.dsl.ast import Expr, Module, Num
from shardflow.dsl.parser import parse, parse_expr
from shardflow.dsl.printer import format_expr, format_module

from .generated import exprs, modules

DATA = Path(__file__).parent.parent / "data"
FILES = sorted(DATA.glob("*.flow"))


def formatted(text: str) -> str:
    """The text formatted once, after checking that nothing changes when it is done twice."""
    module = parse(text, "f.flow")
    once = format_module(module)
    again = parse(once, "f.flow")
    assert again == module
    assert format_module(again) == once
    return once


# ---------------------------------------------------------------- examples


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_acceptance_flows(path: Path, golden: Callable[[str, str], None]) -> None:
    golden(f"format/{path.name}", formatted(path.read_text(encoding="utf-8")))


def test_comments_and_blank_lines(golden: Callable[[str, str], None]) -> None:
    text = (Path(__file__).parent / "comments.flow").read_text(encoding="utf-8")
    once = formatted(text)
    golden("format/comments.flow", once)
    words = {word for line in text.split("\n") if "#" in line for word in line.split("#", 1)[1].split()}
    kept = {word for line in once.split("\n") if "#" in line for word in line.split("#", 1)[1].split()}
    assert words == kept


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1e-6", "1e-6"),
        ("1E+06", "1e6"),
        (".5", "0.5"),
        ("3.", "3.0"),
        ("1_000", "1_000"),
        ("64prompts", "64 prompts"),
        ("'a'", '"a"'),
        ("'say \"a\"'", "'say \"a\"'"),
        ("((a + b)) * (c)", "(a + b) * c"),
        ("(a * b) + c", "a * b + c"),
        ("a - (b - c)", "a - (b - c)"),
        ("(a - b) - c", "a - b - c"),
        ("-(a ** b)", "-a ** b"),
        ("(-a) ** b", "(-a) ** b"),
        ("(a ** b) ** c", "(a ** b) ** c"),
        ("(not a) == b", "(not a) == b"),
        ("not (a == b)", "not a == b"),
        ("(a < b) < c", "(a < b) < c"),
        ("(a or b) and c", "(a or b) and c"),
        ("(-a).x", "(-a).x"),
    ],
)
def test_expressions_have_minimal_parentheses(text: str, wanted: str) -> None:
    assert format_expr(parse_expr(text)) == wanted


@pytest.mark.parametrize(
    ("value", "wanted"), [(1000000, "1000000"), (1e-6, "1e-6"), (1e22, "1e22"), (0.1 + 0.2, "0.30000000000000004")]
)
def test_numbers_without_a_spelling(value: float, wanted: str) -> None:
    assert format_expr(Num(value)) == wanted


def test_a_stale_spelling_is_not_believed() -> None:
    assert format_expr(Num(2, raw="1")) == "2"
    assert format_expr(Num(-1)) == "-1"


def test_a_number_that_no_flow_can_spell() -> None:
    with pytest.raises(ValueError, match="inf"):
        format_expr(Num(float("inf")))


# ---------------------------------------------------------------- round trips

relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@settings(relaxed, max_examples=150)
@given(exprs)
def test_expressions_survive(expr: Expr) -> None:
    assert parse_expr(format_expr(expr)) == expr


@relaxed
@example(Module((), "0\n\xa00"))  # a space of typography is no indentation
@given(modules)
def test_modules_survive_and_are_formatted_once(module: Module) -> None:
    text = format_module(module)
    back = parse(text, "f.flow")
    assert back == module
    assert format_module(back) == text


@relaxed
@given(modules)
def test_no_comment_is_lost(module: Module) -> None:
    def count(text: str) -> int:
        return sum(line.lstrip().startswith("#") for line in text.split("\n"))

    text = format_module(module)
    assert count(format_module(parse(text, "f.flow"))) == count(text)
