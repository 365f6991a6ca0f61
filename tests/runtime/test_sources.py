"""What a run reads from outside: is it what it was, is it what it seems, is the device here?"""

import shutil
from pathlib import Path

import pytest

from shardflow.runtime import cli
from shardflow.runtime.errors import RunError, RunWarning

from .rewarded import PLAIN
from .workshop import Workshop, write_rows

SCORED = """
flow test(batch=4 prompts):
    model policy = causal_lm("p")
    model judge = frozen(reward_model("rm"))
    prompts = read("d.jsonl", batch=batch)
    rollout = policy.generate(prompts, n=3, max_new_tokens=4)
    score = judge.score(rollout)
    update policy(adamw(lr=1e-3)):
        minimize -mean(policy.logprobs(rollout) * score)
"""


def test_changed_data_is_told(workshop: Workshop) -> None:
    first = workshop.run(PLAIN, 1)
    write_rows(workshop.folder / "d.jsonl", 30)
    with pytest.warns(RunWarning, match=r"d\.jsonl changed since the commit of step 1"):
        workshop.run(PLAIN, 2, resume=True, out=first.out)


def test_a_changed_frozen_model_is_told(workshop: Workshop) -> None:
    first = workshop.run(SCORED, 1)
    rm: Path = workshop.folder / "rm"
    real = rm.resolve()
    if rm.is_symlink():
        rm.unlink()
        shutil.copytree(real, rm)
    weights = rm / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\x00\x00\x80?")
    with pytest.warns(RunWarning, match="rm changed since the commit of step 1"):
        workshop.run(SCORED, 2, resume=True, out=first.out)


def test_a_frozen_model_with_a_random_head_is_told(workshop: Workshop) -> None:
    with pytest.warns(RunWarning, match="`p` has no scalar head: what `judge` says is random"):
        workshop.run(SCORED.replace('"rm"', '"p"'), 1)


def test_an_unwritable_character_is_told(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardflow.runtime.models import text

    class Digits:
        name_or_path, eos_token_id, all_special_ids = "digits", 0, [0]

        def __call__(self, written: str, **_: object) -> dict[str, list[int]]:
            return {"input_ids": [int(c) + 1 for c in written if c.isdigit()]}

    with pytest.warns(RunWarning, match="can't write '\\?'"):
        assert text.encode_prompt(Digits(), "1?2") == [2, 3]


@pytest.mark.parametrize("device", ["foo", "cuda:97"])
def test_a_device_that_is_not_here_is_refused(workshop: Workshop, device: str) -> None:
    with pytest.raises(RunError, match=f"--device {device} isn't here; this machine has cpu"):
        workshop.run(PLAIN, 1, device=device)


def test_a_resume_with_another_parameter_names_it(workshop: Workshop) -> None:
    first = workshop.run(PLAIN, 1)
    with pytest.raises(RunError, match="its `batch` is 4 prompts, this one's is 8 prompts"):
        workshop.run(PLAIN.replace("batch=4 prompts", "batch=8 prompts"), 2, resume=True, out=first.out)


def test_a_plan_takes_no_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan.json", "--set", "lr=1"]) == 2
    assert "a plan's parameters are fixed" in capsys.readouterr().err
