"""Axes and dtypes: the algebra itself, and what the rules make of values and of operators' hints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.compiler.graph import Axis, Type, covers, join

from .workbench import Workbench, flow, one, underlined

# ---------------------------------------------------------------- the algebra


@st.composite
def hierarchies(draw: st.DrawFn) -> list[Axis]:
    """Some axes: each is a root or under an earlier one."""
    axes: list[Axis] = []
    for i in range(draw(st.integers(1, 6))):
        parent = draw(st.sampled_from([None, *axes]))
        axes.append(Axis(f"v{i}", "sample" if parent else "prompt", parent))
    return axes


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Axis | None, Axis | None, Axis | None]:
    axes = st.sampled_from([None, *draw(hierarchies())])
    return draw(axes), draw(axes), draw(axes)


def joined(a: Axis | None, b: Axis | None) -> Axis | str | None:
    try:
        return join(a, b)
    except ValueError:
        return "strangers"


@given(pairs())
def test_covers_is_an_order(three: tuple[Axis | None, Axis | None, Axis | None]) -> None:
    a, b, c = three
    assert covers(a, a) and covers(None, a)
    assert not (covers(a, b) and covers(b, c)) or covers(a, c)
    assert not (covers(a, b) and covers(b, a)) or a == b


@given(pairs())
def test_join_is_the_inner_of_two(three: tuple[Axis | None, Axis | None, Axis | None]) -> None:
    a, b, _ = three
    result = joined(a, b)
    assert result == joined(b, a)
    if result == "strangers":
        assert not covers(a, b) and not covers(b, a)
    else:
        assert not isinstance(result, str)
        assert result in (a, b) and covers(a, result) and covers(b, result)


@given(pairs())
def test_join_is_associative_where_it_is_defined(three: tuple[Axis | None, Axis | None, Axis | None]) -> None:
    a, b, c = three
    left, right = joined(a, b), joined(b, c)
    if not isinstance(left, str) and not isinstance(right, str):
        assert joined(left, c) == joined(a, right)


# ---------------------------------------------------------------- values


TYPES = [
    ("prompts.answer", "text[prompts.prompt]"),
    ("rollout.length", "int[rollout.sample]"),
    ("rollout.logprobs", "float[rollout.token]"),
    ("reward * rollout.logprobs", "float[rollout.token]"),
    ("rollout.length + 1", "int[rollout.sample]"),
    ("rollout.length / 2", "float[rollout.sample]"),
    ("rollout.length > 2", "bool[rollout.sample]"),
    ("mean(rollout.logprobs, over=token)", "float[rollout.sample]"),
    ("mean(rollout.logprobs, by=sample)", "float[rollout.sample]"),
    ("mean(rollout.logprobs, by=prompt)", "float[prompts.prompt]"),
    ("sum(rollout.length, by=prompts.prompt)", "int[prompts.prompt]"),
    ("sum(rollout.truncated)", "int"),
    ("count(rollout.text, by=prompt)", "int[prompts.prompt]"),
    ("mean(reward, where=rollout.last)", "float"),
    ("expand(reward, to=rollout.token)", "float[rollout.token]"),
    ("rank(reward, by=prompt)", "int[rollout.sample]"),
    ("keep(rollout, where=reward > 0)", "rollout[x.sample]"),
    ("keep(rollout, where=rollout.length > 2).logprobs", "float[x.token]"),
    ("policy.logprobs(rollout)", "float[rollout.token]"),
    ("policy.logprobs(prompts.prompt, prompts.answer)", "float[prompts.answer.token]"),
    ("where(reward > 0, 1, 2)", "int[rollout.sample]"),
    ('where(reward > 0, "a", "b")', "text[rollout.sample]"),
    ("where(reward > 0, reward > 1, reward < 0)", "bool[rollout.sample]"),
    ("rewards.exact_match(rollout.text, prompts.answer)", "float[rollout.sample]"),
    ('rewards.exact_match(prompts.prompt, "2")', "float[prompts.prompt]"),
]


@pytest.mark.parametrize(("expression", "type"), TYPES, ids=[t[0] for t in TYPES])
def test_the_type_of_a_value(bench: Workbench, expression: str, type: str) -> None:
    graph = bench.graph(flow(f"x = {expression}"))
    (node,) = (n for n in graph.walk() if n.name == "x")
    shown = str(node.type)
    assert shown == type or (".token" in type and shown.startswith("float[") and ".token" in shown)


def test_without_n_a_sample_counts_as_its_prompt(bench: Workbench) -> None:
    graph = bench.graph(flow("one = policy.generate(prompts, max_new_tokens=8)\nmetric x = mean(one.length)"))
    node = one(graph, "generate", "one")
    assert node.type.axis == Axis("prompts", "prompt")
    assert node.type.field("tokens") == Type("int", Axis("one", "token", Axis("prompts", "prompt")))


REFUSED = [
    # the right side of an assignment, code, what is underlined
    ("reward + more.length", "E0201", "reward + more.length"),
    ("more.logprobs * rollout.logprobs", "E0201", "more.logprobs * rollout.logprobs"),
    ("mean(rollout.logprobs, over=sample)", "E0203", "mean(rollout.logprobs, over=sample)"),
    ("mean(reward, over=prompt)", "E0203", "mean(reward, over=prompt)"),
    ("mean(reward, by=token)", "E0204", "mean(reward, by=token)"),
    ("mean(reward, by=answer)", "E0204", "answer"),
    ("mean(reward, by=prompts.answer)", "E0208", "prompts.answer"),
    ("mean(reward, by=more.sample)", "E0204", "mean(reward, by=more.sample)"),
    ("mean(0.5)", "E0209", "mean(0.5)"),
    ("mean(rollout)", "E0205", "mean(rollout)"),
    ("mean(rollout.text)", "E0205", "rollout.text"),
    ("mean(reward, where=rollout.text)", "E0205", "rollout.text"),
    ("rollout + 1", "E0205", "rollout + 1"),
    ("rollout.text + 1", "E0205", "rollout.text"),
    ("prompts.answer == 2", "E0205", "prompts.answer == 2"),
    ('where(rollout.text, 1, 2)', "E0205", "rollout.text"),
    ('where(reward > 0, "a", 1)', "E0205", 'where(reward > 0, "a", 1)'),
    ("rollout.logprob", "E0104", "rollout.logprob"),
    ("prompts.anwser", "E0104", "prompts.anwser"),
    ("reward.value", "E0104", "reward.value"),
    ("rollout.sample", "E0205", "rollout.sample"),
    ("expand(reward, to=token)", "E0204", "expand(reward, to=token)"),
    ("expand(rollout.logprobs, to=rollout.sample)", "E0201", "expand(rollout.logprobs, to=rollout.sample)"),
    ("keep(rollout, where=rollout.logprobs > 0)", "E0203", "rollout.logprobs > 0"),
    ("keep(reward, where=reward > 0)", "E0205", "keep(reward, where=reward > 0)"),
    ("quantile(reward, 90)", "E0113", "quantile(reward, 90)"),
    ("quantile(reward, reward)", "E0205", "quantile(reward, reward)"),
    ("max(reward, 1)", "E0109", "1"),
    ("policy.logprobs(prompts)", "E0205", "policy.logprobs(prompts)"),
    ("policy.logprobs(rollout.text)", "E0205", "policy.logprobs(rollout.text)"),
    ("policy.values(rollout)", "E0309", "policy.values"),
    ("policy + 1", "E0205", "policy"),
    ("mean(policy.logprobs)", "E0205", "policy.logprobs"),
    ("rewards.exact_match(rollout, prompts.answer)", "E0205", "rewards.exact_match(rollout, prompts.answer)"),
    ("rewards.exact_match(rollout.length, prompts.answer)", "E0205", "rollout.length"),
    ("rewards.exact_match(rollout.text)", "E0108", "rewards.exact_match(rollout.text)"),
    ("rewards.exact_match(rollout.text, more.text)", "E0201", "rewards.exact_match(rollout.text, more.text)"),
    ("log(reward)", "E0101", "log"),
]  # fmt: skip

MORE = "more = policy.generate(prompts, n=2, max_new_tokens=8)\nmetric more = mean(more.length)\nx = "


@pytest.mark.parametrize(("expression", "code", "where"), REFUSED, ids=[r[0] for r in REFUSED])
def test_a_wrong_expression_is_refused_once(bench: Workbench, expression: str, code: str, where: str) -> None:
    text = flow(MORE + expression)
    (found,) = bench.found(text)
    assert (found.code, underlined(found, text)) == (code, where)


def test_strangers_are_named_with_where_they_come_from(bench: Workbench) -> None:
    (found,) = bench.found(flow(MORE + "reward - more.length"))
    assert found.message == "axes `rollout.sample` and `more.sample` are strangers"
    assert found.label == "`reward` is on `rollout.sample`, `more.length` on `more.sample`"
    assert [n.message for n in found.notes] == [f"axis `{v}.sample` was opened here" for v in ("rollout", "more")]
    assert found.help == "reduce both to an axis they share, such as `by=prompt` (`prompts.prompt`)"


def test_columns_are_tokenised_once_per_tokenizer(bench: Workbench) -> None:
    same = 'model ref = frozen(causal_lm("tiny"))'
    gap = "x = policy.logprobs(prompts.prompt, prompts.answer) - ref.logprobs(prompts.prompt, prompts.answer)"
    assert bench.codes(flow(f"{same}\n{gap}\nmetric x = mean(x)")) == []
    assert bench.codes(flow(f"{same.replace('tiny', 'other')}\n{gap}\nmetric x = mean(x)")) == ["E0201"]


# ---------------------------------------------------------------- operators

OPERATORS = """
from typing import NamedTuple

from shardflow.dsl.ragged import PerSequence, Ragged


class Judged(NamedTuple):
    score: float
    good: bool


def judge(text: str, scale: float = 1.0, *, strict: bool = False) -> Judged: ...
def ranks(x: "Group[float]") -> "Group[float]": ...
def best(x: "Group[float]") -> float: ...
def spread(x: "Batch[float]") -> float: ...
def smooth(x: 'Float[Tensor, "token"]', by: float) -> 'Float[Tensor, "token"]': ...
def scan(x: Ragged) -> Ragged: ...
def recurrence(x: PerSequence, by: float) -> PerSequence: ...
def total(x: Ragged) -> float: ...
def noisy(text: str, rng) -> float: ...
def untyped(text): ...
def starred(*texts: str) -> float: ...
def returns_group(text: str) -> "Group[float]": ...
"""

CALLS = [
    ("judge(rollout.text).score", "float[rollout.sample]"),
    ("judge(rollout.text, strict=true).good", "bool[rollout.sample]"),
    ("ranks(reward)", "float[rollout.sample]"),
    ("best(reward)", "float[prompts.prompt]"),
    ("spread(reward)", "float"),
    ("smooth(rollout.logprobs, reward)", "float[rollout.token]"),
    ("scan(rollout.logprobs)", "float[rollout.token]"),
    ("recurrence(rollout.logprobs, 0.9)", "float[rollout.token]"),
    ("total(rollout.logprobs)", "float"),
    ("noisy(rollout.text)", "float[rollout.sample]"),
    ("judge(rollout.text)", "record[rollout.sample]"),
    ("judge(rollout.text, 1.0, true)", "E0109"),
    ("judge(rollout.text).scor", "E0104"),
    ("ranks(rollout.truncated)", "float[rollout.sample]"),
    ("best(prompts.answer)", "E0205"),
    ("best(count(reward, by=prompt))", "E0205"),
    ("smooth(reward, reward)", "E0205"),
    ("smooth(rollout.logprobs, rollout.logprobs)", "E0201"),
    ("mean(noisy(rollout.text))", "E0207"),
    ("untyped(rollout.text)", "E0107"),
    ("starred(rollout.text)", "E0107"),
    ("returns_group(rollout.text)", "E0602"),
    ("nothing(rollout.text)", "E0107"),
]


@pytest.mark.parametrize(("call", "expected"), CALLS, ids=[c[0] for c in CALLS])
def test_what_one_call_sees_decides_the_axis(bench: Workbench, call: str, expected: str) -> None:
    bench.write(OPERATORS, "ops.py")
    text = "import ops\n" + flow(
        f"x = {call}".replace("= mean(", "= mean(ops.") if "mean(" in call else f"x = ops.{call}"
    )
    if expected.startswith("E"):
        assert bench.codes(text) == [expected]
    else:
        (node,) = (n for n in bench.graph(text).walk() if n.name == "x")
        assert str(node.type) == expected
