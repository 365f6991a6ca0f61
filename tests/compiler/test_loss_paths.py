"""How a gradient gets from the model to its loss: through operators that carry it, on rows it didn't choose."""

import textwrap

import pytest

from .workbench import Workbench, flow

OPERATORS = """
from jaxtyping import Float
from torch import Tensor
from typing import NamedTuple
from shardflow.dsl.ragged import PerSequence, Ragged

class Both(NamedTuple):
    a: float
    b: float

def ident(x: float) -> float: ...
def pair(x: float) -> Both: ...
def spread(x: "Group[float]") -> float: ...
def pool(x: "Batch[float]") -> float: ...
def same(x: Float[Tensor, "token"]) -> Float[Tensor, "token"]: ...
def scan(x: Ragged, by: float = 0.9) -> Ragged: ...
def each(x: PerSequence) -> PerSequence: ...
def mix(x: "Batch[float]", y: float) -> "Batch[float]": ...
"""


@pytest.fixture
def ops(bench: Workbench) -> Workbench:
    (bench.folder / "ops.py").write_text(OPERATORS, encoding="utf-8")
    return bench


def update(body: str) -> str:
    lines = textwrap.indent(body, "    ")
    return "import ops\n" + flow(
        f"update policy(adamw(lr=1e-6)):\n    logp = policy.logprobs(rollout)\n{lines}", update=False
    )


@pytest.mark.parametrize(
    ("loss", "codes"),
    [
        ("mean(ops.same(logp) * reward)", []),
        ("mean(ops.scan(logp) * reward)", []),
        ("mean(ops.each(logp) * reward)", []),
        ("mean(ops.ident(logp) * reward)", ["E0304"]),
        ("mean(ops.pair(logp).b * reward)", ["E0304"]),
        ("mean(logp * reward) + mean(ops.ident(logp))", ["E0304"]),
        ("mean(logp * ops.ident(logp))", ["E0304"]),
        ("mean(logp * ops.ident(stop_gradient(logp)))", []),
        ("mean(ops.spread(logp) * reward)", ["E0304"]),
        ("ops.pool(logp)", ["E0304"]),
        ("mean(logp * ops.ident(rollout.logprobs))", []),
        ("mean(comb(logp, 2))", ["E0304"]),
    ],
)
def test_a_gradient_passes_only_through_tensors(ops: Workbench, loss: str, codes: list[str]) -> None:
    assert ops.codes(update(f"minimize {loss}")) == codes


def test_a_metric_may_take_plain_numbers_of_the_model(ops: Workbench) -> None:
    assert ops.codes(update("metric x = mean(ops.ident(logp))\nminimize mean(logp * reward)")) == []


@pytest.mark.parametrize("condition", ["mean(logp, over=token) > -5", "rank(sum(logp, over=token), by=prompt) == 0"])
def test_rows_are_not_chosen_by_the_model_in_training(ops: Workbench, condition: str) -> None:
    body = f"good = keep(rollout, where={condition})\nminimize mean(policy.logprobs(good) * good.length)"
    (found,) = ops.found(update(body))
    assert found.code == "E0316" and found.message.startswith("the rows of `good`")


@pytest.mark.parametrize(
    ("call", "codes"),
    [
        ("mean(ops.mix(reward, 2))", []),
        ("mean(ops.mix(reward, mean(reward)))", []),
        ("mean(ops.mix(reward, reward))", ["E0201"]),
        ("mean(ops.scan(rollout.logprobs, 0.5))", []),
        ("mean(ops.scan(rollout.logprobs, reward))", ["E0201"]),
        ("mean(ops.scan(reward))", []),
        ('mean(ops.scan(prompts.answer == "1"))', ["E0205"]),
        ("mean(ops.each(mean(reward)))", ["E0205"]),
    ],
)
def test_beside_all_rows_there_are_scalars(ops: Workbench, call: str, codes: list[str]) -> None:
    assert ops.codes("import ops\n" + flow(f"metric x = {call}")) == codes
