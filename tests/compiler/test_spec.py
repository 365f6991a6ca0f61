"""Every plan holds only what the specification of its instructions allows, and the interpreter runs all of them."""

import msgspec
import pytest

from shardflow.compiler.plan import Instruction, Plan, Value
from shardflow.compiler.plan.spec import LAYOUTS, OPS, problems
from shardflow.compiler.plan.text import DEALS, USUAL
from shardflow.dsl.vocabulary import GENERATE_OPTIONS, OPTIMIZERS, READ_OPTIONS, UPDATE_OPTIONS, Options

from .workbench import Workbench, flow


def test_the_interpreter_runs_all_operators_and_no_others() -> None:
    import shardflow.runtime.execution.loop  # noqa: F401  (it imports the modules that hold handlers)
    from shardflow.runtime.execution.interpreter import HANDLERS

    assert HANDLERS.keys() == OPS.keys()


BODIES = [
    "metric x = quantile(reward, 0.9) + std(reward) + max(reward) + count(reward, where=reward > 0)",
    "metric x = mean(where(rollout.last, 1, 0)) + mean(policy.entropy(rollout))",
    "model a = frozen(policy)\nmodel b = frozen(policy)\nnext a = b\nnext b = ema(b, policy, decay=0.9)\n"
    "metric x = mean(a.logprobs(rollout) - b.logprobs(rollout))",
    "state s = 0.5\nnext s = s * mean(reward)\nwhen s > 0.1:\n    metric x = s",
    "best = keep(rollout, where=rank(reward, by=prompt) == 0)\nmetric x = mean(best.length)",
    "first = rank(reward)\nmetric x = mean(where(first == 0, reward, 0))",
]


@pytest.mark.parametrize("ranks", [None, 4])
@pytest.mark.parametrize("body", BODIES)
def test_plans_hold_what_the_specification_allows(bench: Workbench, body: str, ranks: int | None) -> None:
    plan = bench.plan(flow(body), target="multi" if ranks else "single", ranks=ranks)
    assert problems(plan) == []


@pytest.fixture
def plan(bench: Workbench) -> Plan:
    return bench.plan(flow(), target="multi", ranks=4)


def changed(plan: Plan, op: str, /, **changes: object) -> list[str]:
    """What is wrong with a plan whose first instruction of an operator is another."""
    index = next(n for n, i in enumerate(plan.program) if i.op == op)
    program = list(plan.program)
    program[index] = msgspec.structs.replace(program[index], **changes)
    return problems(msgspec.structs.replace(plan, program=tuple(program)))


@pytest.mark.parametrize(
    ("op", "changes", "said"),
    [
        ("call", {"op": "shell"}, "(shell): no such operator"),
        ("read", {"attrs": {"path": "d", "secret": 1}}, "unknown attribute `secret`"),
        ("read", {"attrs": {}}, "no attribute `path`"),
        ("generate", {"args": {"prompts": Value("nowhere")}}, "`nowhere` isn't made before"),
        ("generate", {"args": {}}, "no operand `prompts`"),
        ("generate", {"mesh": "moon"}, "no mesh `moon`"),
        ("generate", {"layout": "scattered"}, "no layout `scattered`"),
        ("move", {"groups": ()}, "it communicates on no group"),
        ("move", {"groups": ("moon",)}, "no group `moon`"),
        ("call", {"groups": ("ranks0-3",)}, "it communicates"),
        ("call", {"body": (Instruction("step", "x", mesh="ranks0-3"),)}, "it holds no instructions"),
    ],
)
def test_what_a_plan_may_not_hold_is_found(plan: Plan, op: str, changes: dict[str, object], said: str) -> None:
    found = changed(plan, op, **changes)
    assert any(said in problem for problem in found), found


def test_one_process_has_nothing_of_many_ranks(plan: Plan) -> None:
    assert any("many ranks" in p for p in problems(msgspec.structs.replace(plan, target="single")))


# ---------------------------------------------------------------- what the text of a plan leaves out


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("read", READ_OPTIONS),
        ("generate", GENERATE_OPTIONS),
        ("adamw", OPTIMIZERS["adamw"]),
    ],
)
def test_a_plan_leaves_unsaid_what_a_flow_may_leave_unsaid(op: str, options: Options) -> None:
    assert {name: options[name].default for name in USUAL[op]} == USUAL[op]


def test_an_update_leaves_unsaid_what_a_flow_may_leave_unsaid() -> None:
    assert USUAL["update"]["epochs"] == UPDATE_OPTIONS["epochs"].default


def test_the_text_has_a_word_for_every_layout() -> None:
    assert DEALS.keys() == LAYOUTS - {""}
