"""The Python front end: names, spans, definitions, imports, placements, and what is exported."""

# ruff: noqa: SIM300
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import subprocess
import sys
from pathlib import Path

import pytest

import shardflow.dsl as fl
from shardflow.dsl import ast, tracing
from shardflow.dsl.parser import parse
from shardflow.dsl.source import Span
from shardflow.dsl.vocabulary import DEVICES, MODEL_CONSTRUCTORS, POINTWISE, REDUCTIONS, STRUCTURAL

HERE = Path(__file__)
rewards = fl.use("rewards")
k3 = fl.use("std.kl").k3
kl = fl.use("std.kl")
judge = fl.use("tools.llm.judge")
half = fl.use("std.losses").clipped


def same(flow: fl.FlowDefinition, text: str) -> bool:
    """Whether the traced module is what the text says (without its docstring, which is this file's)."""
    return flow.module().body == parse(text, "expected.flow").body


def text_at(span: Span) -> str:
    """What stands at a span of one line."""
    assert span.line == span.end_line
    return (
        Path(span.path).read_text(encoding="utf-8").splitlines()[span.line - 1][span.column - 1 : span.end_column - 1]
    )


# ---------------------------------------------------------------- names


def test_a_name_is_the_variable_that_holds_the_value() -> None:
    @fl.flow
    def f(x, y):
        a, b = x + y, x - y
        c = d = a * b
        fl.metric(c=c, d=d)
        last = fl.mean((inner := x * 2) + inner)  # noqa: F841

    assert same(
        f,
        """
flow f(x, y):
    a = x + y
    b = x - y
    c = a * b
    metric c = c
    metric d = c
    inner = x * 2
    last = mean(inner + inner)
""",
    )


def test_values_in_containers_and_helpers_are_written_in_place() -> None:
    def scaled(x, by):
        product = x * by
        return product + 1

    @fl.flow
    def f(x):
        parts = [x * scale for scale in (2, 3)]
        parts = [part / 2 for part in parts]
        y = scaled(parts[0] + parts[1], 4)
        fl.metric(y=y)

    assert same(f, "flow f(x):\n    y = (x * 2 / 2 + x * 3 / 2) * 4 + 1\n    metric y = y\n")


def test_blocks_have_names_of_their_own() -> None:
    @fl.flow
    def f(data):
        policy, critic = fl.causal_lm("p"), fl.value_model("p")
        rows = fl.read(data, batch=fl.Prompts(4))
        with fl.update(policy, fl.adamw(lr=1e-6)):
            loss = fl.mean(policy.logprobs(rows))
            fl.minimize(-loss)
        with fl.update(critic, fl.adamw(lr=1e-6), minibatch=fl.Prompts(2)):
            loss = fl.mean(critic.values(rows))
            fl.minimize(loss)

    assert same(
        f,
        """
flow f(data):
    model policy = causal_lm("p")
    model critic = value_model("p")
    rows = read(data, batch=4 prompts)
    update policy(adamw(lr=1e-6)):
        loss = mean(policy.logprobs(rows))
        minimize -loss
    update critic(adamw(lr=1e-6), minibatch=2 prompts):
        loss = mean(critic.values(rows))
        minimize loss
""",
    )


def test_the_names_of_a_collect_are_known_after_it() -> None:
    @fl.flow
    def f(data):
        with fl.collect(fl.Prompts(4), rounds=2, short="skip"):
            rows = fl.read(data, batch=fl.Prompts(4))
            fl.keep_rows(rows, where=rows.hard > 0)
        fl.metric(hard=fl.mean(rows.hard))

    assert same(
        f,
        """
flow f(data):
    collect(4 prompts, rounds=2, short=skip):
        rows = read(data, batch=4 prompts)
        keep rows where rows.hard > 0
    metric hard = mean(rows.hard)
""",
    )


def test_states_and_models_have_a_next() -> None:
    @fl.flow
    def f():
        policy = fl.causal_lm("p")
        ref = fl.frozen(policy)
        beta = fl.state(-0.5)
        beta.next = beta * 2
        ref.next = fl.ema(ref, policy, decay=0.99)
        kl = policy.next.logprobs("q")  # noqa: F841

    assert same(
        f,
        """
flow f():
    model policy = causal_lm("p")
    model ref = frozen(policy)
    state beta = -0.5
    next beta = beta * 2
    next ref = ema(ref, policy, decay=0.99)
    kl = policy.next.logprobs("q")
""",
    )


def test_operators_are_written_as_in_python() -> None:
    @fl.flow
    def f(x, y):
        a = (0 < x) & ~(y <= 2) | (3 == x)
        b = -(x**2) // 3 % y
        c = abs(2**x) - +y
        fl.metric(a=a, b=b, c=c)

    assert same(
        f,
        """
flow f(x, y):
    a = 0 < x and not (y <= 2) or 3 == x
    b = -x ** 2 // 3 % y
    c = abs(2 ** x) - y
    metric a = a
    metric b = b
    metric c = c
""",
    )


def test_axes_are_strings_or_attributes() -> None:
    @fl.flow
    def f(rollout):
        a = fl.mean(rollout.reward, by="prompt", where=rollout.last)
        b = fl.sum(a, over="rollout.sample") + fl.mean(a, by=rollout.sample)
        c = fl.rank(a, "prompt") + fl.expand(a, to=rollout.token)
        fl.metric(b=b, c=c)

    assert same(
        f,
        """
flow f(rollout):
    a = mean(rollout.reward, by=prompt, where=rollout.last)
    b = sum(a, over=rollout.sample) + mean(a, by=rollout.sample)
    c = rank(a, prompt) + expand(a, to=rollout.token)
    metric b = b
    metric c = c
""",
    )


def test_parameters_stay_symbols() -> None:
    @fl.flow
    def f(data, n: int = 8, *, size: fl.Prompts = fl.Prompts(4), lr: "float" = 1e-6, name="a", all=True, low=-1):
        fl.metric(m=n * lr)

    assert same(
        f, 'flow f(data, n: int = 8, size: prompts = 4 prompts, lr: float = 1e-6, name="a", all=true, low=-1):\n'
           "    metric m = n * lr\n",
    )  # fmt: skip


def test_a_flow_runs_only_when_its_module_is_asked_for() -> None:
    runs = []

    @fl.flow
    def f(x):
        """What it is for."""
        runs.append(x)
        fl.metric(x=x)

    assert (runs, f.name, f.__doc__, repr(f)) == ([], "f", "What it is for.", "<flow f>")
    assert f.module() == f.module()
    assert len(runs) == 2
    assert f.module().body[-1] == ast.Flow("f", (ast.Param("x"),), (ast.Metric("x", ast.Name("x")),), "What it is for.")


# ---------------------------------------------------------------- definitions and imports


@fl.define
def gap(logp, ref):
    return ref - logp


@fl.define
def k3_like(logp, ref, scale=1.0, by="prompt"):
    """Never negative."""
    d = gap(logp, ref)
    m = fl.mean(d, by=by)
    return scale * (fl.exp(d) - d - 1) + m


def test_a_definition_stands_above_the_flow_that_calls_it() -> None:
    @fl.flow
    def f(x, y):
        a = k3_like(x, ref=y, scale=2)
        b = k3_like(x, a)
        fl.metric(b=b)

    assert same(
        f,
        '''
def gap(logp, ref) = ref - logp

def k3_like(logp, ref, scale=1.0, by=prompt):
    """Never negative."""
    d = gap(logp, ref)
    m = mean(d, by=by)
    return scale * (exp(d) - d - 1) + m

flow f(x, y):
    a = k3_like(x, ref=y, scale=2)
    b = k3_like(x, a)
    metric b = b
''',
    )


def test_imports_are_what_the_variables_say() -> None:
    @fl.flow
    def f(x):
        a = rewards.exact(x, env=rewards.calculator)
        b = k3(a, x) + kl.k1(a, x) + half(a)
        c = judge.score(b) + fl.use("tools.other").grade(b)
        fl.metric(c=c)

    assert same(
        f,
        """
import rewards
import std.kl as kl
import tools.llm.judge as judge
from std.kl import k3
from std.losses import clipped as half
from tools.other import grade

flow f(x):
    a = rewards.exact(x, env=rewards.calculator)
    b = k3(a, x) + kl.k1(a, x) + half(a)
    c = judge.score(b) + grade(b)
    metric c = c
""",
    )


def test_nothing_is_imported_by_use(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("raise SystemExit('run')\n")
    file = tmp_path / "algo.py"
    file.write_text(
        "from shardflow.dsl import flow, metric, use\nr = use('rewards')\n"
        "@flow\ndef f(x):\n    y = r.exact(x)\n    metric(y=y)\n"
    )
    expected = "import rewards as r\n\nflow f(x):\n    y = r.exact(x)\n    metric y = y\n"
    assert fl.load_flow(str(file), "f").body == parse(expected, "expected.flow").body


# ---------------------------------------------------------------- placements


def test_a_placement_belongs_to_its_flow() -> None:
    @fl.flow
    def f():
        policy = fl.causal_lm("p")
        ref = fl.frozen(policy)  # noqa: F841

    lab = fl.cluster("lab", fl.h100(nodes=2, devices=4))
    fl.place(
        f,
        lab,
        fl.put("policy.update", on=fl.nodes[0], fsdp=4, micro=fl.Tokens(8192)),
        fl.put("policy.generate", on=fl.nodes[0:2], engine="vllm"),
        fl.put("ref", beside="policy.update"),
        fl.put("reward", on="controller"),
    )
    assert same(
        f,
        """
flow f():
    model policy = causal_lm("p")
    model ref = frozen(policy)

cluster lab = h100(nodes=2, devices=4)

place f on lab:
    policy.update on nodes[0], fsdp=4, micro=8192 tokens
    policy.generate on nodes[0:2], engine=vllm
    ref with policy.update
    reward on controller
""",
    )


# ---------------------------------------------------------------- spans


@fl.flow
def spanned(data, n: int = 8):
    é, policy = fl.mean(data.é, by="prompt"), fl.causal_lm("p")  # a character of two bytes before others
    rows = fl.read(data, batch=fl.Prompts(4))
    total = fl.sum(
        rows.length,
        by="prompt",
    )
    with fl.update(policy, fl.adamw(lr=1e-6), minibatch=fl.Prompts(2)):
        fl.minimize(é + 2 * total)
    policy.next = policy


def statements() -> list[ast.FlowStatement]:
    flow = spanned.module().body[-1]
    assert isinstance(flow, ast.Flow)
    assert text_at(flow.span) == "def spanned"
    assert [text_at(p.span) for p in flow.params] == ["data", "n: int"]
    assert flow.params[1].default and text_at(flow.params[1].default.span) == "8"
    return list(flow.body)


def test_spans_are_those_of_the_python_source() -> None:
    mean, model, rows, total, update, following = statements()
    assert isinstance(mean, ast.Assign) and isinstance(mean.value, ast.Call)
    assert text_at(mean.name_span) == "é"
    assert text_at(mean.value.span) == 'fl.mean(data.é, by="prompt")'
    assert [text_at(a.span) for a in mean.value.args] == ["data.é", '"prompt"']
    assert isinstance(model, ast.ModelDecl) and text_at(model.value.span) == 'fl.causal_lm("p")'
    assert text_at(model.name_span) == "policy"
    assert isinstance(rows, ast.Assign) and isinstance(rows.value, ast.Call)
    assert text_at(rows.span) == "rows = fl.read(data, batch=fl.Prompts(4))"
    assert text_at(rows.value.args[1].value.span) == "fl.Prompts(4)"
    assert isinstance(total, ast.Assign) and total.span.end_line == total.span.line + 3
    assert isinstance(update, ast.Update)
    assert text_at(update.span) == "fl.update(policy, fl.adamw(lr=1e-6), minibatch=fl.Prompts(2))"
    assert text_at(update.name_span) == "policy"
    assert isinstance(following, ast.Next) and text_at(following.span) == "policy.next = policy"
    assert text_at(following.value.span) == "policy"


def test_the_spans_of_operands_are_theirs() -> None:
    update = statements()[4]
    assert isinstance(update, ast.Update)
    loss = update.body[0]
    assert isinstance(loss, ast.Minimize) and isinstance(loss.value, ast.Binary)
    assert text_at(loss.span) == "fl.minimize(é + 2 * total)"
    assert text_at(loss.value.left.span) == "é"
    right = loss.value.right
    assert isinstance(right, ast.Binary)
    assert [text_at(right.span), text_at(right.left.span), text_at(right.right.span)] == ["2 * total", "2", "total"]


# ---------------------------------------------------------------- what is exported


def test_the_vocabulary_is_exported() -> None:
    functions = {**REDUCTIONS, **POINTWISE, **STRUCTURAL}
    assert set(functions) | set(MODEL_CONSTRUCTORS) | set(DEVICES) <= set(fl.__all__)
    assert set(fl.__all__) == set(tracing.__all__) | {"Batch", "Group", "PerSequence", "Ragged"}
    assert all(hasattr(fl, name) for name in fl.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'meen'"):
        fl.meen  # noqa: B018


def test_the_front_end_loads_nothing_heavy() -> None:
    code = "import sys; from shardflow.dsl import flow; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "lark", "numpy", "rich"} & set(loaded)
