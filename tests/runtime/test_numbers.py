"""What isn't a number is refused where it is used as one, by the user's name for it and the row."""

import json
from pathlib import Path

import pytest
import torch

from shardflow.runtime.errors import RunError
from shardflow.runtime.execution.naming import Names
from shardflow.runtime.values import Concatenation, Value, root

from .rewarded import PLAIN, add_function
from .workshop import Workshop

SCORED = PLAIN.replace("d.jsonl", "scored.jsonl")
NULL = "`prompts.k` is no number at row {0} of `prompts.prompt` but null"
OBJECT = "`prompts.d` is no number at row 0 of `prompts.prompt` but {'a': 0} (dict)"


def with_scores(workshop: Workshop) -> Workshop:
    """Rows of which the first's `k` is null, so that others' may be; the batches are of 4 rows."""
    write_scores(workshop.folder / "scored.jsonl", [None, *range(1, 12)])
    return workshop


def write_scores(path: Path, scores: list[int | None]) -> None:
    rows = [{"prompt": f"{i}+1=", "answer": "x", "k": k, "d": {"a": i}} for i, k in enumerate(scores)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


USES = [
    "mean(prompts.k)",
    "max(rank(prompts.k))",
    "mean(prompts.k * 2)",
    "mean(-prompts.k)",
    "mean(reward, where=prompts.k)",
    "mean(prompts.k < 3)",
    "mean(prompts.k == 3)",
    "mean(prompts.k != prompts.k)",
    "mean(where(prompts.k, 1, 0))",
    "mean(where(reward > 0, prompts.k, 0))",
    'count(where(prompts.k, prompts.answer, "none"))',
    "mean(keep(rollout, where=prompts.k).length)",
]


@pytest.mark.parametrize("use", USES)
def test_a_null_that_is_used_as_a_number_is_refused_by_its_row(workshop: Workshop, use: str) -> None:
    with pytest.raises(RunError) as error:
        with_scores(workshop).run(SCORED + lines(use), 1)
    assert NULL.format(0) in str(error.value)
    assert type(error.value) is RunError


def lines(use: str) -> str:
    """A metric, with a `keep` on a line of its own."""
    if "keep(" not in use:
        return f"    metric used = {use}\n"
    kept = use.removeprefix("mean(").removesuffix(".length)")
    return f"    kept = {kept}\n    metric used = mean(kept.length)\n"


def test_the_first_row_that_is_no_number_is_named(workshop: Workshop) -> None:
    write_scores(workshop.folder / "scored.jsonl", [None, 1, 2, 3, 4, None, 6, None])
    text = (
        SCORED.replace("shuffle=false", "shuffle=false, epochs=1")
        + "    when step == 1:\n        metric k = mean(prompts.k)\n"
    )
    with pytest.raises(RunError, match=NULL.format(5)):
        workshop.run(text, 2)


@pytest.mark.parametrize("use", ["mean(prompts.d)", "mean(reward * prompts.d)", "max(prompts.d > 1)"])
def test_objects_are_no_numbers(workshop: Workshop, use: str) -> None:
    with pytest.raises(RunError) as error:
        with_scores(workshop).run(SCORED + f"    metric used = {use}\n", 1)
    assert OBJECT in str(error.value)


def test_what_is_only_counted_may_be_anything(workshop: Workshop) -> None:
    uses = {"k": "count(prompts.k)", "d": "count(prompts.d)", "same": "mean(prompts.d == prompts.d)"}
    metrics = "".join(f"    metric {name} = {use}\n" for name, use in uses.items())
    record = with_scores(workshop).run(SCORED + metrics, 1).metrics[0]
    assert (record["k"], record["d"], record["same"]) == (4, 4, 1)


def test_numbers_that_a_function_gave_as_anything_are_numbers(workshop: Workshop) -> None:
    add_function(workshop, "from typing import Any\ndef loose(text: str) -> Any:\n    return len(text) + 0.5\n")
    metrics = (
        "    metric loose = mean(rewards.loose(rollout.text))\n    metric strict = mean(rewards.share(rollout.text))\n"
    )
    assert workshop.run(PLAIN + metrics, 1).metrics[0]["loose"] > 0.5


def test_rounds_with_and_without_a_null_are_one_column() -> None:
    numbers, mixed = Value(torch.tensor([1, 2]), root("p.prompt", 2)), Value([3, None], root("p.prompt", 2))
    joined = Concatenation()([numbers, mixed])
    assert isinstance(joined, Value) and joined.rows == [1, 2, 3, None]


# ---------------------------------------------------------------- arithmetic without a value


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("step // step", "step 0: `step // step` divides an integer by zero"),
        ("mean(rollout.length % step)", "step 0: `rollout.length % step` divides an integer by zero"),
        (
            "quantile(reward, step * 2)",
            "step 1: quantile(reward): the fraction of a quantile is between 0 and 1, not 2",
        ),
    ],
)
def test_arithmetic_without_a_value_is_told_by_its_expression(workshop: Workshop, use: str, message: str) -> None:
    with pytest.raises(RunError) as error:
        workshop.run(PLAIN + f"    metric used = {use}\n", 2)
    assert message in str(error.value)


def test_a_negative_power_of_a_whole_number_is_a_fraction(workshop: Workshop) -> None:
    record = workshop.run(PLAIN + "    metric a = (step + 2) ** -1\n    metric b = (step + 2) ** 2\n", 1).metrics[0]
    assert (record["a"], record["b"]) == (0.5, 4)


# ---------------------------------------------------------------- names


def test_an_unnamed_call_is_told_by_its_expression(workshop: Workshop) -> None:
    add_function(workshop, "def same(x: float) -> float:\n    return x\n")
    with pytest.raises(RunError) as error:
        workshop.run(PLAIN + "    metric used = mean(rewards.same(ln(reward - 1)))\n", 1)
    assert str(error.value).startswith("rewards.same(ln(reward - 1)): rewards.same returned nan")


def test_values_are_called_as_the_user_wrote_them(workshop: Workshop) -> None:
    uses = ["-mean(policy.logprobs(rollout), over=token)", "reward > 0 and not (step > 1)", "maximum(reward, 0.5)"]
    plan = workshop.compile(PLAIN + "".join(f"    metric m{n} = mean({use})\n" for n, use in enumerate(uses)))
    called = Names(plan)
    shown = [called(i.args["value"]) for i in plan.walk() if i.op == "metric"]
    assert shown == ["mean(-mean(…))", "mean(reward > 0 and not …)", "mean(maximum(reward, 0.5))"]
