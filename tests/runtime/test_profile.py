"""`flowrun --profile`: rows of real phases that `flowc calibrate` reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardflow.compiler.calibrate import read_rows
from shardflow.compiler.calibrate.rows import GenerateRow, TrainRow
from shardflow.compiler.cli import main
from shardflow.runtime.cli import parser, refused
from shardflow.runtime.telemetry.profile import FILE, Measured, rows_of

from .workshop import Result, Workshop, bit_equal

FLOW = """
import rewards

flow grpo(batch=8 prompts):
    model policy = causal_lm("p")
    prompts = read("d.jsonl", batch=batch)
    rollout = policy.generate(prompts, n=2, max_new_tokens=6)
    reward = rewards.exact_match(rollout.text, prompts.answer)
    adv = reward - mean(reward, by=prompt)
    update policy(adamw(lr=1e-3), minibatch=4 prompts, epochs=2):
        minimize -mean(policy.logprobs(rollout) * adv)
"""


@pytest.fixture
def profiled(workshop: Workshop) -> Result:
    return workshop.run(FLOW, 3, dtype="float32", profile=True)


def rows_in(result: Result) -> dict[str, Any]:
    return {row["phase"]: row for row in json.loads((result.out / FILE).read_text())}


def test_a_profile_holds_a_row_for_the_update_and_the_draw(profiled: Result) -> None:
    rows = rows_in(profiled)
    assert [r["id"] for r in rows.values()] == ["grpo policy.generate of rollout", "grpo policy.update"]
    train, draw = rows["train"], rows["generate"]
    assert train["global_batch"] == 8 and train["dtype"] == "fp32" and train["device"] == "cpu"  # 4 prompts × n=2
    assert train["parallel"] == {"dp": 1} and train["recompute"] == "none" and train["devices"] == 1
    assert draw["batch"] == 16 and 1 <= draw["response"] <= 6
    assert train["sequence"] == pytest.approx(draw["prompt"] + draw["response"], abs=1.5)
    assert train["source"].endswith("median of 2 steps")
    assert 0 < train["measured"]["step_seconds"] * 4 < sum(m["seconds"] for m in profiled.metrics)


def test_calibrate_accepts_a_profile(profiled: Result, capsys: pytest.CaptureFixture[str]) -> None:
    found = {type(row): row for row in read_rows(profiled.out / FILE)}
    assert set(found) == {TrainRow, GenerateRow}
    assert all(row.unused == () for row in found.values())
    assert main(["calibrate", str(profiled.out / FILE)]) == 0
    assert "policy.update" in capsys.readouterr().out


def test_a_profile_changes_no_number(workshop: Workshop, profiled: Result) -> None:
    plain = workshop.run(FLOW, 3, dtype="float32")
    assert not (plain.out / FILE).exists()
    assert bit_equal(plain.state, profiled.state)


def test_float64_has_no_profile() -> None:
    said = refused(parser().parse_args([str(Path(__file__)), "--profile", "--dtype", "float64"]))
    assert said is not None and "float64" in said


def measured(step: int, seconds: float, sequences: int = 4, phase: str = "policy.update", steps: int = 2) -> Measured:
    said = {"model": "qwen2.5-0.5b", "device": "h100", "devices": 2, "dtype": "bf16", "micro": 64}
    said |= {"parallel": {"dp": 1, "fsdp": 2}, "recompute": "full", "compiled": True}
    return Measured(phase, "train", step, seconds, sequences, 10 * sequences, 6 * sequences, steps, 1, said)


def test_of_a_step_the_slowest_rank_counts_and_of_steps_the_median() -> None:
    one = [measured(n, s) for n, s in enumerate((9.0, 1.0, 2.0, 6.0))]
    two = [measured(n, s, sequences=6) for n, s in enumerate((8.0, 3.0, 1.0, 4.0))]
    (row,) = rows_of("f", [one, two])
    assert row["measured"] == {"step_seconds": 1.5}  # the median of 3, 2 and 6 seconds for 2 optimizer steps
    assert row["global_batch"] == 5 and row["sequence"] == 16 and row["micro_batch"] == 2


def test_rounds_of_a_collect_count_as_one() -> None:
    found = [measured(1, 1.0, phase="policy.generate"), measured(1, 2.0, phase="policy.generate")]
    draws = [Measured(**{**{f: getattr(m, f) for f in m.__struct_fields__}, "kind": "generate"}) for m in found]
    (row,) = rows_of("f", [draws])
    assert row["batch"] == 8 and row["measured"]["output_tokens_per_second"] == pytest.approx(48 / 3)
