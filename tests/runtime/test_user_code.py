"""Python operators in a run: what one call sees of each hint, and random ones."""

import pytest
import torch

from shardflow.runtime import operators
from shardflow.runtime.errors import RunError
from shardflow.runtime.values import Value

from .rewarded import FLOW, add_function, column, rollout_of, with_function
from .workshop import Workshop

GROUP = """
from typing import NamedTuple
from jaxtyping import Float
from torch import Tensor
from shardflow.dsl.ragged import Batch, Group

def ranks(texts: Group[str], lengths: Group[int], answer: str) -> Group[float]:
    assert len(texts) == len(lengths) == 3 and answer.isdigit()
    return [float(sorted(texts).index(t)) for t in texts]

def longest(texts: Group[str]) -> float:
    return float(max(map(len, texts)))

def centred(x: Batch[float]) -> Batch[float]:
    return [v - sum(x) / len(x) for v in x]

def ramp(logprobs: Float[Tensor, "token"], length: int) -> Float[Tensor, "token"]:
    assert len(logprobs) == length
    return logprobs.cumsum(0)

class Judged(NamedTuple):
    score: float
    reason: str

def judge(text: str) -> Judged:
    return Judged(len(text) / 10, f"it has {len(text)} characters")

async def served(text: str) -> float:
    import asyncio
    await asyncio.sleep(0.001 * (len(text) % 3))
    return float(len(text))
"""


def test_a_group_is_the_rows_under_one_parent(workshop: Workshop) -> None:
    result = with_function(workshop, GROUP, "rewards.ranks(rollout.text, rollout.length, prompts.answer)")
    texts = rollout_of(result).fields["text"].rows
    expected = [float(sorted(g).index(t)) for g in (texts[i : i + 3] for i in range(0, 12, 3)) for t in g]
    assert column(result, "reward") == expected
    result = with_function(workshop, "", "rewards.longest(rollout.text)")
    assert column(result, "reward") == [float(max(map(len, texts[i : i + 3]))) for i in range(0, 12, 3)]


def test_a_batch_is_all_rows_in_scope(workshop: Workshop) -> None:
    result = with_function(workshop, GROUP, "rewards.centred(rewards.share(rollout.text))")
    assert sum(column(result, "reward")) == pytest.approx(0, abs=1e-12)


def test_a_sequence_is_one_rows_tokens(workshop: Workshop) -> None:
    result = with_function(workshop, GROUP, "rewards.ramp(rollout.logprobs, rollout.length)")
    rollout, reward = rollout_of(result), result.values[0]["reward"]
    assert isinstance(reward, Value) and reward.frame is rollout.fields["logprobs"].frame
    parts = torch.split(rollout.fields["logprobs"].tensor, rollout.fields["length"].rows)
    assert reward.tensor.equal(torch.cat([p.cumsum(0) for p in parts]))


def test_a_named_tuple_gives_fields(workshop: Workshop) -> None:
    add_function(workshop, GROUP)
    text = FLOW.format(reward="judged.score").replace(
        "    reward =", "    judged = rewards.judge(rollout.text)\n    reason = judged.reason\n    reward ="
    )
    result = workshop.run(text + "    metric reasons = count(reason)\n", 1)
    assert column(result, "reason") == [f"it has {len(t)} characters" for t in rollout_of(result).fields["text"].rows]
    assert result.column("reasons") == [12]
    assert result.samples[0]["reason"].startswith("it has")


def test_async_functions_are_awaited_in_order(workshop: Workshop) -> None:
    result = with_function(workshop, GROUP, "rewards.served(rollout.text)")
    assert column(result, "reward") == [float(len(t)) for t in rollout_of(result).fields["text"].rows]


def test_a_late_async_function_is_given_up(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = operators.AsyncLimits(timeout=0.05, retries=1, backoff=0.01)
    defaults = dict(operators.call_rows.__kwdefaults__ or {}) | {"limits": limits}
    monkeypatch.setattr(operators.call_rows, "__kwdefaults__", defaults)
    source = "async def slow(text: str) -> float:\n    import asyncio\n    await asyncio.sleep(60)\n    return 0.0\n"
    with pytest.raises(RunError, match=r"reward: rewards.slow took longer than 0.05 s \(the last of 2 attempts\)"):
        with_function(workshop, source, "rewards.slow(rollout.text)")


def test_a_group_of_the_wrong_size_is_refused(workshop: Workshop) -> None:
    """Also where the total is right: results may not slip from one group to the next."""
    source = (
        "from shardflow.dsl.ragged import Group\nCALLS = []\n"
        "def uneven(texts: Group[str]) -> Group[float]:\n"
        "    CALLS.append(1)\n    return [0.0] * (4 if len(CALLS) % 2 else 2)\n"
    )
    with pytest.raises(
        RunError, match=r"call 0 of `rewards.uneven` returned 4 elements for 3 rows of `rollout.sample`"
    ):
        with_function(workshop, source, "rewards.uneven(rollout.text)")


DICE = """
import numpy as np

def dice(text: str, rng: np.random.Generator) -> float:
    return float(rng.integers(1_000_000))

def noise(logprob: float, rng: np.random.Generator) -> float:
    return float(rng.random())
"""


def test_random_functions_are_keyed_by_row(workshop: Workshop) -> None:
    add_function(workshop, DICE)
    flow = FLOW.format(reward="rewards.dice(rollout.text)")
    few, again, many = (workshop.run(flow.replace("batch=4", f"batch={n}"), 1) for n in (4, 4, 8))
    assert column(few, "reward") == column(again, "reward") == column(many, "reward")[:12]
    assert len(set(column(many, "reward"))) == 24
    other = workshop.run(flow, 1, seed=1)
    assert column(other, "reward") != column(few, "reward")


def test_random_functions_differ_from_token_to_token(workshop: Workshop) -> None:
    add_function(workshop, DICE)
    result = workshop.run(FLOW.format(reward="rewards.noise(rollout.logprobs)"), 1)
    assert len(set(column(result, "reward"))) == len(column(result, "reward")) > 12


def test_two_draws_of_one_function_are_two(workshop: Workshop) -> None:
    add_function(workshop, DICE)
    text = FLOW.format(reward="first - second").replace(
        "    reward =", "    first = rewards.dice(rollout.text)\n    second = rewards.dice(rollout.text)\n    reward ="
    )
    assert all(x != 0 for x in column(workshop.run(text, 1), "reward"))


KEYWORDS = """
def scaled(text: str, *, factor: float, offset: float = 1.0) -> float:
    return len(text) * 0 + factor * offset

async def later(text: str, shift: float = 1.0, *, factor: float = 2.0) -> float:
    return shift * factor
"""


def test_parameters_that_go_by_name_only(workshop: Workshop) -> None:
    result = with_function(workshop, KEYWORDS, "rewards.scaled(rollout.text, offset=3, factor=2)")
    assert set(column(result, "reward")) == {6.0}
    assert set(column(with_function(workshop, "", "rewards.scaled(rollout.text, factor=2)"), "reward")) == {2.0}
    assert set(column(with_function(workshop, "", "rewards.later(rollout.text, factor=5)"), "reward")) == {5.0}
