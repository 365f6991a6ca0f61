"""What the Python front end refuses: each case by its code, the source it underlines and what it says."""

import sys
from pathlib import Path

import pytest

from shardflow.dsl import FlowDefinition, Prompts, define, flow, load_flow, mean
from shardflow.dsl.diagnostics import Diagnostic, FlowError, render

PRELUDE = """\
import shardflow.dsl as fl
from shardflow.dsl import *
rewards = use("rewards")
k3 = use("std.kl").k3

"""

FLOW = """\
@flow
def f(data="d", batch=Prompts(64)):
    policy = causal_lm("p")
    prompts = read(data, batch=batch)
    rollout = policy.generate(prompts, n=8)
    x = rewards.exact_match(rollout.text, prompts.answer)
"""


def underlined(found: Diagnostic, text: str) -> str:
    """What the diagnostic's span covers, from the first line of it to the last."""
    assert found.span
    lines = text.splitlines()[found.span.line - 1 : found.span.end_line]
    lines[-1] = lines[-1][: found.span.end_column - 1]
    lines[0] = lines[0][found.span.column - 1 :]
    return "\n".join(lines)


def errors_of(folder: Path, text: str) -> tuple[Diagnostic, ...]:
    file = folder / "algo.py"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(FlowError) as caught:
        load_flow(str(file), "f")
    for found in caught.value.diagnostics:
        assert found.span is None or found.span.path == str(file)
        assert render(found, {str(file): text})
    return caught.value.diagnostics


IN_TEXT = "{data}" if sys.version_info >= (3, 12) else 'f"{data}/train.jsonl"'

BODY = [
    # statement, code, what is underlined, a part of the headline, a part of the help
    ("if x > 0: pass", "E0020", "x > 0", "`x > 0` is neither true nor false", "where(c, a, b)"),
    ("y = x > 0 and x < 1", "E0020", "x > 0 and x < 1", "`x > 0` is neither", "`a & b`"),
    ("y = x > 0 or x < 1", "E0020", "x > 0 or x < 1", "`x > 0` is neither", "`a | b`"),
    ("y = not x", "E0020", "not x", "`x` is neither", "`~a`"),
    ("y = 0 < x < 1", "E0020", "0 < x < 1", "is neither", "comparisons don't chain"),
    ("y = 1 if x else 2", "E0020", "1 if x else 2", "`x` is neither", "where(c, a, b)"),
    ("assert x", "E0020", "x", "`x` is neither", "where(c, a, b)"),
    ("for row in x: pass", "E0021", "x", "can't iterate over `x`", "mean(x, by=…)"),
    ("y = len(rollout)", "E0021", "len(rollout)", "can't take the length of `rollout`", "count(x)"),
    ("y = int(x)", "E0021", "int(x)", "can't make a Python int of `x`", "as it is"),
    ("y = float(x + 1)", "E0021", "float(x + 1)", "can't make a Python float of `x + 1`", "as it is"),
    ("y = [1, 2][x]", "E0021", "[1, 2][x]", "can't make a Python int of `x`", "plain number"),
    ("y = rollout[0]", "E0021", "rollout[0]", "can't index `rollout`", "keep(rollout"),
    ("y = 1 in x", "E0021", "1 in x", "can't look for an element in `x`", "=="),
    ('y = read(f"{data}/train.jsonl")', "E0021", IN_TEXT, "can't make text of `data`", "`+`"),
    ("y = x + None", "E0022", "None", "`None` can't stand in a flow", "leave the argument out"),
    ("y = mean([1, 2])", "E0022", "[1, 2]", "`[1, 2]` (of type `list`)", "no lists"),
    ("y = mean(x, where={'a': 1})", "E0022", "{'a': 1}", "of type `dict`", "no dictionaries"),
    ("y = x * float('inf')", "E0022", "float('inf')", "`inf` is not a number of the language", ""),
    ("y = mean(x, where=lambda v: v)", "E0022", "lambda v: v", "of type `function`", "@define"),
    ("y = read(data, batch=Prompts)", "E0022", "Prompts", "of type `type`", "Prompts(64)"),
    ('y = mean(x, by="prompt token")', "E0022", '"prompt token"', "`prompt token` is not a name", "`rollout.sample`"),
    ("y = read(data, batch=Prompts(2.5))", "E0022", "2.5", "`2.5` is not a number of prompts", "`Prompts(64)`"),
    ("metric('a b', x)", "E0022", "'a b'", "`a b` can't name a metric", "pass_rate"),
    ("use('a/b.py')", "E0022", "'a/b.py'", "not the name of a module", "without `.py`"),
    ("x = x + 1", "E0023", "x", "`x` is assigned twice", "another name"),
    ("x += 1", "E0023", "x += 1", "`x` is assigned twice", "another name"),
    ("batch = x + 1", "E0023", "batch", "`batch` is assigned twice", "another name"),
    ("token = x + 1", "E0023", "token", "`token` is a word of the language", "`token_`"),
    (
        "y = mean(policy.generate(prompts).length)",
        "E0024",
        "policy.generate(prompts).length",
        "a draw needs a name",
        "",
    ),
    ("y = mean(state(1) + x)", "E0024", "state(1)", "a state needs a name", ""),
    ('y = causal_lm("q").logprobs(rollout)', "E0024", 'causal_lm("q").logprobs(rollout)', "a model needs a name", ""),
    (
        "policy.generate(prompts, n=2)",
        "E0024",
        "policy.generate(prompts, n=2)",
        "nothing uses the value of",
        "assign it",
    ),
    (
        "update(policy, adamw(lr=1e-6))",
        "E0025",
        "update(policy, adamw(lr=1e-6))",
        "opens a block",
        "with update(policy",
    ),
    ("x.name = 1", "E0027", "x.name", "`.name` of `x` can't be set", "model.next"),
    ("y = update(3, adamw(lr=1))", "E0027", "3", "is not a model", "variable"),
    ("metric(x)", "E0027", "metric(x)", "a metric has a name and a value", "metric(kl=kl)"),
    ("y = x + 1 / 0", "E0029", "1 / 0", "ZeroDivisionError while tracing `flow f`: division by zero", ""),
]


@pytest.mark.parametrize(("statement", "code", "where", "headline", "help"), BODY, ids=[case[0] for case in BODY])
def test_a_statement_is_refused(
    tmp_path: Path, statement: str, code: str, where: str, headline: str, help: str
) -> None:
    text = f"{PRELUDE}{FLOW}    {statement}\n    metric(end=mean(x))\n"
    found = errors_of(tmp_path, text)[0]
    assert (found.code, underlined(found, text)) == (code, where)
    assert headline in found.message
    assert help in (found.help or "")


def test_a_value_of_an_update_is_not_known_after_it(tmp_path: Path) -> None:
    text = PRELUDE + FLOW + (
        "    with update(policy, adamw(lr=1e-6)):\n"
        "        logp = policy.logprobs(rollout)\n"
        "        minimize(-mean(logp * x))\n"
        "    metric(kl=mean(logp))\n"
    )  # fmt: skip
    found = errors_of(tmp_path, text)[0]
    assert (found.code, underlined(found, text)) == ("E0028", "logp")
    assert found.message == "`logp` is known only inside `update policy`"


def test_an_unnamed_value_means_something_else_in_another_block(tmp_path: Path) -> None:
    text = PRELUDE + FLOW + (
        "    hidden = [mean(x)]\n"
        "    with update(policy, adamw(lr=1e-6)):\n"
        "        minimize(-mean(policy.logprobs(rollout) * hidden[0]))\n"
    )  # fmt: skip
    found = errors_of(tmp_path, text)[0]
    assert (found.code, underlined(found, text)) == ("E0028", "hidden[0]")
    assert "`mean(x)` was computed in another block" in found.message


def test_a_value_of_another_flow_is_refused(tmp_path: Path) -> None:
    text = PRELUDE + (
        "kept = []\n"
        "@flow\ndef g():\n    y = state(1)\n    kept.append(y)\n    metric(y=y)\n"
        "@flow\ndef f():\n    g.module()\n    metric(z=kept[0])\n"
    )  # fmt: skip
    found = errors_of(tmp_path, text)[0]
    assert (found.code, underlined(found, text)) == ("E0028", "kept[0]")
    assert found.message == "`y` belongs to `flow g`"


SIGNATURES = [
    ("@flow\ndef f(*args): pass\n", "E0026", "args", "`*args` stands for many parameters"),
    ("@flow\ndef f(x: list = 1): pass\n", "E0026", "x: list", "can't have the type `list`"),
    ("@flow\ndef f(x=None): pass\n", "E0022", "None", "`None` can't stand in a flow"),
    ("@flow\ndef f(token=1): pass\n", "E0023", "token", "`token` is a word of the language"),
    ("@flow\ndef f(): return 1\n", "E0026", "def f", "flow `f` returns a value"),
    ("@flow\ndef f(): yield 1\n", "E0026", "def f", "`f` is asynchronous or a generator"),
    ("f = flow(3)\n", "E0026", "flow(3)", "decorates a function, not `3`"),
    ("@define\ndef d(x): x + 1\n@flow\ndef f(x): metric(m=d(x))\n", "E0026", "def d", "`def d` returns nothing"),
    ("@define\ndef d(x): return d(x)\n@flow\ndef f(x): metric(m=d(x))\n", "E0026", "d(x)", "`def d` calls itself"),
    ("@define\ndef d(x): minimize(x)\n@flow\ndef f(x): metric(m=d(x))\n", "E0025", "minimize(x)", "holds a statement"),
    ("@flow\ndef f(): pass\nmean(3)\n", "E0025", "mean(3)", "`mean(3)` stands outside of a flow"),
    ("@flow\ndef f(): pass\nf()\n", "E0025", "f()", "a flow isn't called"),
    ("@flow\ndef f(): pass\nnodes[-1]\n", "E0022", "nodes[-1]", "picks no nodes"),
    ("@flow\ndef f(): pass\nput('p')\n", "E0027", "put('p')", "`p` needs one place"),
    ("@flow\ndef f(): pass\nput('p', beside='q', tp=2)\n", "E0027", "2", "takes no options"),
    ("@flow\ndef f(): pass\nplace('f', h100())\n", "E0027", "'f'", "is not a flow"),
    ("@flow\ndef f(): pass\nundefined\n", "E0029", "undefined", "NameError while importing"),
]


@pytest.mark.parametrize(("text", "code", "where", "headline"), SIGNATURES, ids=[case[0] for case in SIGNATURES])
def test_a_module_is_refused(tmp_path: Path, text: str, code: str, where: str, headline: str) -> None:
    text = PRELUDE + text
    found = errors_of(tmp_path, text)[0]
    assert (found.code, underlined(found, text)) == (code, where)
    assert headline in found.message


def test_two_definitions_of_one_name(tmp_path: Path) -> None:
    text = PRELUDE + (
        "@define\ndef d(x): return x + 1\n"
        "one = d\n"
        "@define\ndef d(x): return x + 2\n"
        "@flow\ndef f(x):\n    metric(m=one(x))\n    metric(n=d(x))\n"
    )  # fmt: skip
    found = errors_of(tmp_path, text)[0]
    assert (found.code, underlined(found, text)) == ("E0023", "d(x)")


def test_all_violations_are_reported_together(tmp_path: Path) -> None:
    body = "    x = x + 1\n    token = x + 2\n    policy.generate(prompts)\n    metric(end=token)\n"
    assert [d.code for d in errors_of(tmp_path, PRELUDE + FLOW + body)] == ["E0023", "E0023", "E0024"]


def test_an_exception_in_a_helper_points_at_the_users_line(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(
        "import json\ndef parse(text):\n    return json.loads(text)\n", encoding="utf-8"
    )
    file = tmp_path / "algo.py"
    file.write_text(PRELUDE + "import helper\n@flow\ndef f():\n    helper.parse('{')\n", encoding="utf-8")
    with pytest.raises(FlowError) as caught:
        load_flow(str(file), "f")
    found = caught.value.diagnostics[0]
    assert found.span and (Path(found.span.path).name, found.span.line) == ("helper.py", 3)
    assert "JSONDecodeError" in found.message


# ---------------------------------------------------------------- load_flow


def failure(path: Path, name: str) -> Diagnostic:
    with pytest.raises(FlowError) as caught:
        load_flow(str(path), name)
    return caught.value.diagnostics[0]


def test_no_such_file(tmp_path: Path) -> None:
    (tmp_path / "algo.py").touch()
    found = failure(tmp_path / "algos.py", "f")
    assert found.code == "E0029" and "no file" in found.message and found.help == "did you mean `algo.py`?"


def test_no_such_flow(tmp_path: Path) -> None:
    file = tmp_path / "algo.py"
    file.write_text(PRELUDE + "@flow\ndef grpo(): pass\n@flow\ndef ppo(): pass\ndef rloo(): pass\nzero = 0\n")
    found = failure(file, "grop")
    assert "has no flow `grop`" in found.message
    assert found.help == f"did you mean `grpo`? flows of `{file}`: `grpo`, `ppo`"
    assert failure(file, "rloo").help == "put `@flow` above `def rloo`"
    assert "is not a flow" in failure(file, "zero").message


def test_a_file_without_flows(tmp_path: Path) -> None:
    file = tmp_path / "algo.py"
    file.write_text(PRELUDE + "@define\ndef f(x): return x\n")
    assert failure(file, "g").help == "no function in it stands under `@flow`"
    assert "is a definition, not a flow" in failure(file, "f").message


def test_a_file_that_is_not_python(tmp_path: Path) -> None:
    file = tmp_path / "algo.py"
    file.write_text("flow f(:\n")
    found = failure(file, "f")
    assert "is not valid Python" in found.message and found.span and found.span.line == 1


def test_what_stands_beside_a_flow_is_forgotten(tmp_path: Path) -> None:
    for value in (1, 2):
        folder = tmp_path / str(value)
        folder.mkdir()
        (folder / "sizes.py").write_text(f"group = {value}\n")
        (folder / "algo.py").write_text("from sizes import group\n" + PRELUDE + "@flow\ndef f(n=group): pass\n")
    defaults = [load_flow(str(tmp_path / name / "algo.py"), "f").body[0] for name in ("1", "2")]
    assert defaults[0] != defaults[1]


def test_spans_say_the_path_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "algo.py").write_text(PRELUDE + "@flow\ndef f(x):\n    y = x + 1\n")
    monkeypatch.chdir(tmp_path)
    found = load_flow("algo.py", "f")
    assert found.span.path == "algo.py"


def test_a_flow_swallowing_an_error_is_refused_still() -> None:
    @flow
    def f(x):  # type: ignore[no-untyped-def]
        try:
            if x:
                pass
        except Exception:
            pass

    with pytest.raises(FlowError, match="E0020"):
        f.module()


def test_a_flow_without_source_is_traced() -> None:
    made: dict[str, FlowDefinition] = {}
    names = {"flow": flow, "mean": mean, "define": define, "Prompts": Prompts, "made": made}
    exec("@flow\ndef f(x):\n    y = mean(x)\n    if y: pass\nmade['f'] = f", names)
    with pytest.raises(FlowError, match="`y` is neither true nor false"):
        made["f"].module()
