"""The normal form: what is equal after it, what is not, and that it is stable."""

import pytest
from hypothesis import HealthCheck, given, settings

from shardflow.dsl.ast import Module
from shardflow.dsl.normal import normalise
from shardflow.dsl.parser import parse
from shardflow.dsl.printer import format_module

from .generated import modules


def normal(text: str) -> Module:
    return normalise(parse(text, "f.flow"))


def in_flow(*lines: str) -> str:
    return "flow f(a=1, b=2, c=3):\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("-1", "0 - 1"),
        ("1 - 0.2", "0.8"),
        ("2 * 3 + 1", "7"),
        ("-(-2)", "2"),
        ("2 ** -1", "0.5"),
        ("7 // 2 % 2", "1"),
        ("2 * 64 prompts", "128 prompts"),
        ("64 prompts + 1 prompts", "65 prompts"),
        ("not true or false", "false"),
        ("a > 0 and true", "0 < a"),
        ("1 < 2 and a", "a"),
        ("a > b", "b < a"),
        ("0 == a", "a == 0"),
        ("'a' + 'b'", "'ab'"),
        ("g(a, n=1 + 1)", "g(a, n=2)"),
    ],
)
def test_literals_are_folded(text: str, folded: str) -> None:
    assert normal(in_flow(f"x = {text}")) == normal(in_flow(f"x = {folded}"))


@pytest.mark.parametrize(
    "text", ["1 / 0", "1 + 64 prompts", "10.0 ** 1000", "(-1) ** 0.5", "9 ** 9 ** 9", "a + 0", "a * 1"]
)
def test_what_has_no_plain_value_stays(text: str) -> None:
    (flow,) = normal(in_flow(f"x = {text}")).body
    assert "x = " in format_module(Module((flow,))) and normalise(Module((flow,))) == Module((flow,))
    assert flow != normal(in_flow("x = 1")).body[0]


def test_import_aliases_go_where_the_original_name_is_free() -> None:
    aliased = "import rewards as r\nfrom std import k3 as kl\n" + in_flow("x = r.f(kl(a))")
    assert normal(aliased) == normal("from std import k3\nimport rewards\n" + in_flow("x = rewards.f(k3(a))"))


@pytest.mark.parametrize(
    "text",
    [
        "from std import mean as m\n" + in_flow("x = m(a) + mean(a)"),  # built in
        "from std import k3 as kl\n" + in_flow("k3 = kl(a)"),  # assigned
        "from std import k3 as kl\nfrom mine import k3\n" + in_flow("x = kl(a) + k3(a)"),  # imported
        "from std import k3 as kl\ndef f(k3) = kl(k3)\n",  # a parameter
        "import x.k3 as kl\ndef k3(a) = kl.f(a)\n",  # a definition
    ],
)
def test_import_aliases_stay_where_it_is_not(text: str) -> None:
    assert " as " in format_module(normal(text))


def test_an_alias_is_replaced_in_places() -> None:
    place = "place {} on h100(nodes=1):\n    m.update on nodes[0]\n"
    assert normal("from std import grpo as g\n" + place.format("g")) == normal(
        "from std import grpo\n" + place.format("grpo")
    )


def test_equal_imports_written_differently() -> None:
    assert normal("from a import x\nimport b\nfrom a import y, x\n") == normal("import b\nfrom a import y, x as x\n")


def test_assignment_aliases_go() -> None:
    aliased = in_flow("x = g(a)", "y = x", "z = y", "update m(adamw(lr=b)):", "    w = z", "    minimize w + y")
    assert normal(aliased) == normal(in_flow("x = g(a)", "update m(adamw(lr=b)):", "    minimize x + x"))


def test_names_kept_by_a_collect_are_seen_after_it() -> None:
    aliased = in_flow("collect(b):", "    p = g(a)", "    q = p", "    keep q where q > 0", "metric x = q")
    assert normal(aliased) == normal(in_flow("collect(b):", "    p = g(a)", "    keep p where p > 0", "metric x = p"))


def test_names_of_an_update_stay_inside_it() -> None:
    module = normal(in_flow("update m(adamw(lr=a)):", "    y = b", "    minimize y", "x = g(y)"))
    assert module == normal(in_flow("update m(adamw(lr=a)):", "    minimize b", "x = g(y)"))


@pytest.mark.parametrize("lines", [("x = y", "y = x"), ("x = x",), ("x = a", "x = b")])
def test_a_name_that_stands_for_nothing_definite_stays(lines: tuple[str, ...]) -> None:
    assert normal(in_flow(*lines)) == parse(in_flow(*lines), "f.flow")


def test_documentation_counts_and_comments_do_not() -> None:
    assert normal(in_flow('"""One."""', "x = g(a)")) != normal(in_flow('"""Two."""', "x = g(a)"))
    assert normal(in_flow("# one", "x = (g(a))  # two")) == normal(in_flow("x = g(a)"))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(modules)
def test_the_normal_form_is_stable(module: Module) -> None:
    once = normalise(module)
    assert normalise(once) == once
