"""Every flow of the acceptance set really runs: three steps on tiny models."""

import math
import re
from pathlib import Path

import pytest

from .workshop import Workshop, small

FLOWS = Path(__file__).parent.parent / "data" / "flows.flow"
TEXT = small(FLOWS.read_text(encoding="utf-8"))
# `tool_use` needs environments, which come with the algorithm library.
NAMES = [name for name in re.findall(r"^flow (\w+)", TEXT, flags=re.MULTILINE) if name != "tool_use"]

TRAINED = {"ppo_adaptive": {"policy", "critic"}, "reward_modelling": {"rm"}}
NO_REWARD = {"sft", "reward_modelling", "dpo", "distill"}
"""Flows in which nothing gives a reward, or only inside the update."""


@pytest.mark.parametrize("name", NAMES)
def test_a_flow_of_the_acceptance_set_runs(workshop: Workshop, name: str) -> None:
    result = workshop.run(workshop.compile(TEXT, name, data="d.jsonl"), dtype="float32")
    metrics = [m for m in result.metrics if m["step"] < 3]
    assert [m["step"] for m in metrics] == [0, 1, 2]
    for record in metrics:
        assert record["seconds"] > 0
        assert all(math.isfinite(value) for value in record.values()), record
        assert ("reward" in record) == (name not in NO_REWARD)
    for model in TRAINED.get(name, {"policy"}):
        assert result.column(f"loss.{model}"), "it never trained"
        assert (result.out / "models" / model / "model.safetensors").is_file()


def test_what_a_flow_names_is_recorded(workshop: Workshop) -> None:
    metrics = workshop.run(workshop.compile(TEXT, "evaluate", data="d.jsonl"), dtype="float32").metrics
    tested = [m["step"] for m in metrics if "pass_1" in m]
    assert tested == [0, 2, 3]  # every 2 steps, and once more after the last
    assert all(0 <= m["pass_1"] <= m["pass_8"] <= m["best"] <= 1 for m in metrics if "pass_1" in m)


def test_a_warm_up_trains_the_critic_alone(workshop: Workshop) -> None:
    metrics = workshop.run(workshop.compile(TEXT, "ppo_adaptive", data="d.jsonl"), dtype="float32").metrics
    assert ["loss.policy" in m for m in metrics] == [False, True, True]
    assert all("loss.critic" in m and "kl" in m for m in metrics)
