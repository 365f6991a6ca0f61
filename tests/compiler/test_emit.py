"""From the scheduled graph to the plan: names, files, axes, models, and the bytes."""

import json

import msgspec
import pytest

from shardflow.compiler.plan import Instruction, Plan, PlanError, Value, decode, encode

from .workbench import Workbench, flow


def instruction(plan: Plan, out: str) -> Instruction:
    (found,) = (i for i in plan.walk() if i.out == out)
    return found


def test_every_operand_names_a_value_made_before(bench: Workbench) -> None:
    plan = bench.plan(flow("adv = z(reward)\nmetric adv = mean(adv)\nwhen step > 3:\n    metric x = mean(exp(adv))"))

    def check(block: tuple[Instruction, ...], known: set[str]) -> None:
        for i in block:
            assert {a.ref for a in i.args.values() if isinstance(a, Value)} <= known
            check(i.body, known)
            known = known | {i.out}

    check(plan.program, set())


def test_axes_and_models(bench: Workbench) -> None:
    body = "model ref = frozen(policy)\nnext ref = policy\nmetric x = mean(ref.logprobs(rollout))"
    plan = bench.plan(flow(body))
    assert [(a.name, a.kind, a.parent) for a in plan.axes] == [
        ("prompts.prompt", "prompt", None),
        ("rollout.sample", "sample", "prompts.prompt"),
        ("rollout.token", "token", "rollout.sample"),
    ]
    policy, ref = plan.models
    assert (policy.kind, policy.path, policy.frozen, policy.trained, policy.replaced) == (
        "causal_lm", "tiny", False, True, False,
    )  # fmt: skip
    assert (ref.of, ref.frozen, ref.trained, ref.replaced) == ("policy", True, False, True)


def test_operators_are_named_by_file_and_hash(bench: Workbench) -> None:
    plan = bench.plan(flow("metric x = mean(whiten(reward))"))
    (operator,) = plan.operators
    assert (operator.key, operator.file, operator.name) == ("rewards.exact_match", "rewards.py", "exact_match")
    assert [(p.name, p.sees, p.dtype) for p in operator.params] == [("text", "row", "text"), ("answer", "row", "text")]
    bench.write((bench.folder / "rewards.py").read_text() + "\n", "rewards.py")
    (changed,) = bench.plan(flow("metric x = mean(whiten(reward))")).operators
    assert changed.sha256 != operator.sha256


def test_a_reduction_says_what_it_keeps(bench: Workbench) -> None:
    plan = bench.plan(flow("a = mean(rollout.logprobs, over=token)\nb = mean(a, by=prompt)\nmetric c = mean(b)"))
    assert instruction(plan, "a").attrs == {"fn": "mean", "to": "rollout.sample"}
    assert instruction(plan, "b").attrs == {"fn": "mean", "to": "prompts.prompt"}


def test_sizes_lose_their_unit_once_checked(bench: Workbench) -> None:
    plan = bench.plan(flow().replace("lr=1e-6)", "lr=1e-6), minibatch=4 prompts"))
    assert instruction(plan, "prompts").attrs["batch"] == 8
    (update,) = (i for i in plan.walk() if i.op == "update")
    assert update.attrs["minibatch"] == 4
    assert update.attrs["loss"]["uncut"] == ["rollout.sample"]


def test_no_error_node_is_emitted(bench: Workbench) -> None:
    assert "error" not in {i.op for i in bench.plan(flow()).walk()}


def test_the_hash_is_of_everything(bench: Workbench) -> None:
    plan = bench.plan(flow())
    assert bench.plan(flow()).hash == plan.hash
    assert bench.plan(flow() + "# a comment\n").hash != plan.hash
    raw = json.loads(encode(plan))
    raw["program"][0]["attrs"]["batch"] = 9
    with pytest.raises(PlanError, match="was changed"):
        decode(msgspec.json.encode(raw))
    with pytest.raises(PlanError, match="schema"):
        decode(msgspec.json.encode(raw | {"schema": 99}))
    with pytest.raises(PlanError, match="no plan"):
        decode(b"[]")
