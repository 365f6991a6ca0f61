"""Names, scopes, parameters, definitions and options: what elaboration makes of a flow, and what it refuses."""

import random

import pytest

from shardflow.compiler.graph import Size
from shardflow.compiler.plan import Plan
from shardflow.compiler.plan.text import plan_text

from .workbench import Workbench, flow, one, underlined

# ---------------------------------------------------------------- order, inlining


def without_hash(plan: Plan) -> str:
    return plan_text(plan).split("\n", 1)[1]


BODY = [
    "base = mean(reward, by=prompt)",
    "adv = (reward - base) / (spread + 1e-6)",
    "spread = std(reward, by=prompt)",
    "metric adv = mean(adv)",
    "metric base = mean(base)",
]


@pytest.mark.parametrize("seed", range(8))
def test_the_order_of_statements_means_nothing(bench: Workbench, seed: int) -> None:
    shuffled = BODY[:]
    random.Random(seed).shuffle(shuffled)
    plan, other = bench.plan(flow("\n".join(BODY))), bench.plan(flow("\n".join(shuffled)))
    assert sorted(without_hash(plan).splitlines()) == sorted(without_hash(other).splitlines())


def test_a_definition_is_what_it_spells(bench: Workbench) -> None:
    spelled = flow("adv = (reward - mean(reward, by=prompt)) / (std(reward, by=prompt) + 1e-6)\nmetric adv = mean(adv)")
    called = flow("adv = z(reward)\nmetric adv = mean(adv)")
    assert without_hash(bench.plan(spelled)) == without_hash(bench.plan(called))


def test_a_definition_takes_models_and_axes(bench: Workbench) -> None:
    definitions = "def gap(m, r) = m.logprobs(r) - r.logprobs\ndef centred(x, axis) = x - mean(x, by=axis)\n"
    body = "metric gap = mean(gap(policy, rollout))\nmetric spread = std(centred(reward, prompt))"
    spelled = "metric gap = mean(policy.logprobs(rollout) - rollout.logprobs)\n"
    spelled += "metric spread = std(reward - mean(reward, by=prompt))"
    assert without_hash(bench.plan(definitions + flow(body))) == without_hash(bench.plan(flow(spelled)))


def test_a_definition_sees_its_own_module_only(bench: Workbench) -> None:
    bench.write("def centred(x) = x - mean(x)\ndef leaky(x) = x - rollout\n", "mine.flow")
    assert bench.codes("from mine import centred\n" + flow("metric x = mean(centred(reward))")) == []
    (found,) = bench.found("from mine import leaky\n" + flow("metric x = mean(leaky(reward))"))
    assert (found.code, found.message) == ("E0101", "unknown name `rollout`")
    assert found.span and found.span.path.endswith("case.flow")
    assert found.notes[0].span and found.notes[0].span.path.endswith("mine.flow")


def test_definitions_that_nothing_calls_are_looked_at(bench: Workbench) -> None:
    assert bench.codes("def f(x) = x + y\n" + flow()) == ["E0101"]
    assert bench.codes("def f(x, axis) = mean(x.field, by=axis)\n" + flow()) == []


@pytest.mark.parametrize("definitions", ["def f(x) = f(x)\n", "def f(x) = g(x)\ndef g(x) = f(x)\n"])
def test_definitions_are_not_recursive(bench: Workbench, definitions: str) -> None:
    assert "E0112" in bench.codes(definitions + flow("metric x = mean(f(reward))"))


# ---------------------------------------------------------------- scopes


def test_names_are_local_to_their_block(bench: Workbench) -> None:
    sibling = (
        "when step > 3:\n    x = mean(reward)\n    metric a = x\nwhen step < 3:\n    x = sum(reward)\n    metric b = x"
    )
    assert bench.codes(flow(sibling)) == []
    assert bench.codes(flow("when step > 3:\n    x = mean(reward)\n    metric a = x\nmetric b = x")) == ["E0101"]


@pytest.mark.parametrize("name", ["reward", "policy", "rewards", "z", "mean", "prompts"])
def test_a_block_does_not_shadow(bench: Workbench, name: str) -> None:
    text = flow(f"when step > 3:\n    {name} = 2\n    metric a = {name}")
    (found,) = (d for d in bench.found(text) if d.code == "E0103")
    assert found.message.startswith(f"`{name}` is already ")


def test_a_second_assignment_changes_nothing(bench: Workbench) -> None:
    assert bench.codes(flow("reward = 3")) == ["E0102"]


def test_the_flows_own_file_hides_nothing_of_the_language(bench: Workbench) -> None:
    assert bench.codes("import std\n" + flow()) == ["E0103"]
    assert bench.codes("import std as library\n" + flow("metric x = mean(library.z(reward))")) == []
    assert bench.codes("def mean(x) = x\n" + flow()) == ["E0103"]


def test_import_binds_the_last_part(bench: Workbench) -> None:
    assert bench.codes("import std.kl\n" + flow("metric x = mean(kl.k2(reward, 0))")) == []


def test_collected_names_are_known_after_the_block(bench: Workbench) -> None:
    text = """\
flow tune():
    model policy = causal_lm("tiny")
    collect(8 prompts):
        prompts = read("train.jsonl", batch=8 prompts)
        rollout = policy.generate(prompts, n=4, max_new_tokens=32)
        keep prompts where std(rollout.length, by=prompt) > 0
        metric all_lengths = mean(rollout.length)
    metric kept_lengths = mean(rollout.length)
    update policy(adamw(lr=1e-6)):
        minimize -mean(policy.logprobs(rollout) * rollout.length)
"""
    graph = bench.graph(text)
    reads = {n.attrs["metric"]: n.args["value"] for n in graph.walk() if n.op == "metric"}
    assert reads["all_lengths"] != reads["kept_lengths"]
    assert [n.op for n in graph.nodes].count("collected") == 2


# ---------------------------------------------------------------- models and states


def test_models_and_states_have_no_order(bench: Workbench) -> None:
    body = """
        model ref = frozen(copy)
        model copy = frozen(source)
        model source = frozen(causal_lm(path))
        path = "tiny"
        state beta = start * 2
        start = 0.25
        next beta = beta * 0.9
        metric kl = beta * mean(rollout.logprobs - ref.logprobs(rollout))
        metric other = mean(source.logprobs(rollout) - copy.logprobs(rollout))
    """
    assert bench.codes(flow(body)) == []
    graph = bench.graph(flow(body))
    assert graph.states["beta"].initial == 0.5
    assert {r.path for r in graph.roles.values()} == {"tiny"}


def test_a_model_that_was_refused_is_refused_once(bench: Workbench) -> None:
    use = "metric kl = mean(rollout.logprobs - ref.logprobs(rollout))"
    for made in ("frozn(policy)", "frozen(polcy)", "frozen(causal_lm())", "frozen(ref)", "policy", "frozen(policy, 1)"):
        assert len(bench.codes(flow(f"model ref = {made}\n{use}"))) == 1, made


def test_draws_stand_outside_of_updates(bench: Workbench) -> None:
    body = """
        update policy(adamw(lr=1e-6)):
            more = policy.generate(prompts, max_new_tokens=8)
            minimize -mean(policy.logprobs(more) * more.length)
    """
    assert bench.codes(flow(body, update=False)) == ["E0311"]


# ---------------------------------------------------------------- parameters


def params(signature: str) -> str:
    return flow("metric n = mean(reward) * x").replace("tune()", f"tune({signature})")


def test_a_parameter_takes_what_its_default_is(bench: Workbench) -> None:
    assert bench.graph(params("x=0.5"), x=2).params == {"x": 2}
    assert bench.graph(params("x: float = 1"), x=2).params == {"x": 2.0}
    assert bench.codes(params("x=0.5"), x="much") == ["E0113"]
    assert bench.codes(params("x: int = 2"), x=0.5) == ["E0113"]
    assert bench.codes(params("x: prompts = 4 prompts"), x=4) == ["E0113"]
    assert bench.codes(params("x: integer = 4")) == ["E0113"]
    assert bench.codes(params("x=0.5"), y=1) == ["E0105"]


def test_a_size_keeps_its_unit(bench: Workbench) -> None:
    text = flow("metric n = count(reward)").replace("tune()", "tune(b=4 prompts)").replace("batch=8", "batch=2 * b #")
    graph = bench.graph(text.replace("# prompts)", ")"))
    assert one(graph, "read").attrs["batch"] == Size(8, "prompts")


def test_a_required_parameter_must_be_given(bench: Workbench) -> None:
    assert bench.codes(params("x")) == ["E0111"]
    assert bench.codes(params("x"), x=1) == []


def test_defaults_use_earlier_parameters(bench: Workbench) -> None:
    assert bench.graph(params("lo=0.2, x=lo * 2")).params == {"lo": 0.2, "x": 0.4}
    assert bench.codes(params("x=hi, hi=2")) == ["E0101"]


def test_unread_parameters_and_constants_are_warned_of(bench: Workbench) -> None:
    assert bench.codes(params("x=1, beta=0.1")) == ["W0102"]
    assert bench.codes(flow("x = 3")) == ["W0101"]
    assert bench.codes(flow("x = 3\nmetric y = mean(reward) * x")) == []


# ---------------------------------------------------------------- options


def generate(options: str) -> str:
    return flow(f"draw = policy.generate(prompts, {options})\nmetric x = mean(draw.length)")


OPTIONS = [
    # options of generate, code, what is underlined
    ("max_tokens=8", "E0105", "max_tokens=8"),
    ("n=0, max_new_tokens=8", "E0113", "0"),
    ("n=8.0, max_new_tokens=8", "E0113", "8.0"),
    ("n=true, max_new_tokens=8", "E0113", "true"),
    ("n=8 samples, max_new_tokens=8", "E0206", "8 samples"),
    ("n=prompts.answer, max_new_tokens=8", "E0113", "prompts.answer"),
    ("max_new_tokens=0", "E0113", "0"),
    ("max_new_tokens=1.5", "E0113", "1.5"),
    ("max_new_tokens=8 tokens", "E0206", "8 tokens"),
    ("max_new_tokens=prompts.answer", "E0205", "prompts.answer"),
    ("max_new_tokens=rollout.length", "E0203", "rollout.length"),
    ("max_new_tokens=8, min_new_tokens=-1", "E0113", "-1"),
    ("max_new_tokens=8, temperature=-0.5", "E0113", "-0.5"),
    ('max_new_tokens=8, temperature="hot"', "E0113", '"hot"'),
    ("max_new_tokens=8, top_p=1.5", "E0113", "1.5"),
    ("max_new_tokens=8, top_k=0.5", "E0113", "0.5"),
    ("max_new_tokens=8, max_staleness=-1", "E0113", "-1"),
    ("max_new_tokens=8, chat=1", "E0113", "1"),
    ("max_new_tokens=8, partial=true", "E0114", "partial=true"),
    ("8, max_new_tokens=8", "E0109", "8"),
]


@pytest.mark.parametrize(("options", "code", "where"), OPTIONS, ids=[o[0] for o in OPTIONS])
def test_a_wrong_option_of_generate_is_refused_once(bench: Workbench, options: str, code: str, where: str) -> None:
    text = generate(options)
    (found,) = bench.found(text)
    assert (found.code, underlined(found, text)) == (code, where)


UPDATES = [
    # header of the update, codes
    ("adamw(lr=1e-6), minibatch=3 prompts", ["E0401"]),
    ("adamw(lr=1e-6), minibatch=4", ["E0206"]),
    ("adamw(lr=1e-6), minibatch=4 samples", ["E0206"]),
    ("adamw(lr=1e-6), minibatch=0 prompts", ["E0113"]),
    ("adamw(lr=1e-6), minibatches=3", ["E0401"]),
    ("adamw(lr=1e-6), minibatch=4 prompts, minibatches=2", ["E0109"]),
    ("adamw(lr=1e-6), mini_batch=4 prompts", ["E0105"]),
    ("adamw(lr=1e-6), epochs=0", ["E0113"]),
    ("adamw(lr=1e-6), epochs=1.5", ["E0113"]),
    ("adamw(), minibatch=4 prompts", ["E0108"]),
    ("adamw(1e-6)", ["E0109"]),
    ("adamw(lr=-1)", ["E0113"]),
    ("adamw(lr=reward)", ["E0113"]),
    ("adamw(lr=1e-6, beta1=2)", ["E0113"]),
    ('adamw(lr=1e-6, schedule="cos")', ["E0113"]),
    ("adamw(lr=1e-6, betas=0.9)", ["E0105"]),
    ("adam(lr=1e-6)", ["E0101"]),
    ("minibatch=4 prompts", ["E0108"]),
]


@pytest.mark.parametrize(("header", "codes"), UPDATES, ids=[u[0] for u in UPDATES])
def test_a_wrong_header_of_an_update_is_refused(bench: Workbench, header: str, codes: list[str]) -> None:
    assert bench.codes(flow().replace("adamw(lr=1e-6)", header)) == codes


READS = [
    ('"train.jsonl"', ["E0108"]),
    ('"train.jsonl", batch=8', ["E0206"]),
    ('"train.jsonl", batch=8 tokens', ["E0206"]),
    ('"train.jsonl", batch=8 prompts, all=true', ["E0108"]),
    ('"train.jsonl", batch=8 prompts, epochs=0', ["E0113"]),
    ('"train.jsonl", batch=8 prompts, stream=2', ["E0113"]),
    ('"train.jsonl", batch=8 prompts, shufle=false', ["E0105"]),
    ("3, batch=8 prompts", ["E0113"]),
    ("rollout.text, batch=8 prompts", ["E0113"]),
    ('"tra" + "in.jsonl", batch=8 prompts', []),
]


@pytest.mark.parametrize(("args", "codes"), READS, ids=[r[0] for r in READS])
def test_a_wrong_read_is_refused(bench: Workbench, args: str, codes: list[str]) -> None:
    assert bench.codes(flow(f"more = read({args})\nmetric x = count(more.answer)")) == codes


# ---------------------------------------------------------------- constants


NUMBERS = [
    ("2 ** 3 + 1", 9),
    ("7 // 2 * 1.5", 4.5),
    ("-(3 - 5)", 2),
    ("where(1 < 2, 3, 4)", 3),
    ("clamp(5, 0, 1) + maximum(2, 3)", 4),
    ("sigmoid(-1000) + log_sigmoid(0 - 1000)", -1000.0),
    ("comb(4, 2)", 6.0),
    ("2 and 3", True),
    ("0 or 0.5", True),
    ("2 and 0", False),
    ("(64 prompts) // (16 prompts)", 4),
    ("(64 prompts) / (16 prompts)", 4.0),
]


@pytest.mark.parametrize(("expression", "value"), NUMBERS, ids=[n[0] for n in NUMBERS])
def test_constants_are_folded(bench: Workbench, expression: str, value: float) -> None:
    graph = bench.graph(flow(f"metric x = {expression}"))
    found = one(graph, "metric").args["value"]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("size", "codes"),
    [
        ("minibatches=batch // mini", []),
        ("minibatch=mini // 2", []),
        ("minibatch=2 * mini", []),
        ("minibatch=mini * mini", ["E0205"]),
        ("minibatch=mini ** 2", ["E0205"]),
        ("minibatch=batch // mini", ["E0206"]),
    ],
)
def test_the_ratio_of_sizes_is_a_number_and_their_product_is_none(
    bench: Workbench, size: str, codes: list[str]
) -> None:
    text = (
        flow()
        .replace("tune()", "tune(batch=8 prompts, mini=4 prompts)")
        .replace("batch=8 prompts)\n    r", "batch=batch)\n    r")
    )
    found = [c for c in bench.codes(text.replace("lr=1e-6)", f"lr=1e-6), {size}")) if c.startswith("E")]
    assert found == codes


@pytest.mark.parametrize(
    ("option", "codes"),
    [("top_p=0", ["E0113"]), ("top_p=1", []), ("top_p=-0.1", ["E0113"]), ("max_new_tokens=0", ["E0113"])],
)
def test_options_have_ranges(bench: Workbench, option: str, codes: list[str]) -> None:
    assert bench.codes(flow().replace("max_new_tokens=32", option)) == codes


def test_all_of_a_model_may_not_drop_out(bench: Workbench) -> None:
    (found,) = bench.found(flow().replace('"tiny")', '"tiny", dropout=1)'))
    assert (found.code, found.message) == ("E0113", "option `dropout` is between 0 and 1, but not 1, not 1")


@pytest.mark.parametrize("axis", ["token", "rollout.token"])
def test_a_definition_is_passed_an_axis(bench: Workbench, axis: str) -> None:
    define = "def over(x, a) = mean(x, over=a) + 0 * sum(x, over=a)\ndef outer(x, a) = over(x, a)\n\n"
    text = flow(f"x = outer(rollout.logprobs, {axis})\nmetric x = mean(x)").replace("flow tune", define + "flow tune")
    assert str(one(bench.graph(text), "map", "x").type.axis) == "rollout.sample"
    bench.plan(text)


def test_a_column_named_as_an_axis_is_still_a_value(bench: Workbench) -> None:
    define = 'def hit(x) = where(x == "a", 1, 0)\n\n'
    text = flow("metric x = mean(hit(prompts.prompt))").replace("flow tune", define + "flow tune")
    assert bench.codes(text) == []


NO_NUMBERS = ["1 / 0", "5 % 0", "10 ** 10 ** 10", "comb(100000000, 50000000)", "1e300 * 1e300", "1e999", "sqrt(-1)"]
NO_NUMBERS += ["(0 - 8) ** 0.5", "exp(1000)", "ln(0)", "comb(-3, 2)", "99999999999999999999", '"a" == 3', '"a" * 2']
NO_NUMBERS += ["64 prompts + 3 tokens"]


@pytest.mark.parametrize("expression", NO_NUMBERS)
def test_what_no_plan_can_hold_is_refused(bench: Workbench, expression: str) -> None:
    assert bench.codes(flow(f"metric x = {expression}")) == ["E0205"]


# ---------------------------------------------------------------- cascades


def test_one_mistake_is_one_error(bench: Workbench) -> None:
    missing = flow("metric x = mean(reward)").replace("import rewards", "import rewrds\nfrom nowhere import f")
    assert bench.codes(missing.replace("rewards.", "rewrds.")) == ["E0106", "E0106"]
    assert bench.codes(flow("x = np.mean(reward)\nmetric x = x + np.std(reward)")) == ["E0101"]
    bench.write("def exact_match(:\n", "broken.py")
    assert bench.codes("import broken\n" + flow("x = broken.f(reward)\nmetric x = mean(x)")) == ["E0601"]
    assert bench.codes(flow("x = mean(unknown)\ny = x + 1\nmetric z_ = y * mean(reward)")) == ["E0101"]
    assert bench.codes(flow("ref = frozen(policy)\nmetric x = mean(ref.logprobs(rollout))")) == ["E0312"]


def test_all_violations_are_reported_together(bench: Workbench) -> None:
    body = """
        a = mean(rewrd)
        b = rollout.txt
        c = policy.generate(prompts, n=0, max_new_tokens=8)
        d = mean(reward, by=answer)
        metric e = reward
        other = policy.generate(prompts, n=2, max_new_tokens=8)
        f = rollout.length - other.length
        next g = 2
        model h = causal_lm("tiny")
    """
    found = bench.codes(flow(body))
    assert found == ["E0101", "E0104", "E0113", "E0204", "E0210", "E0201", "E0310", "E0302"]
