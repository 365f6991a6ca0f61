"""flowrun as its user meets it: errors in the user's terms, and runs that go on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from shardflow.compiler.plan import encode, sealed
from shardflow.runtime import cli
from shardflow.runtime.commits import CommitStore
from shardflow.runtime.errors import RunError, RunWarning

from . import tiny
from .rewarded import FLOW, PLAIN, add_function, column, rollout_of
from .workshop import Result, Workshop, bit_equal, untimed

# ---------------------------------------------------------------- errors, in the user's terms


def failing(workshop: Workshop, capsys: pytest.CaptureFixture[str], *options: str, flow: str = PLAIN) -> str:
    """What a run that fails prints, from a compiled plan; there is no traceback and the status is 1."""
    plan = workshop.folder / "plan.json"
    plan.write_bytes(encode(workshop.compile(flow)))
    out = workshop.out()
    status = cli.main([str(plan), "--steps", "2", "--out", str(out), "--no-tensorboard", *options])
    printed = capsys.readouterr()
    text = printed.err
    assert status == 1, text
    assert "Stopped after" not in printed.out  # the error is the end of what it tells
    assert "Traceback" not in text and "shardflow/runtime" not in text and "runtime/execution" not in text
    return text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    return {}['missing']", "raised KeyError: 'missing'"),
        ("    return None", "returned None, where a float is expected"),
        ("    return float('nan')", "returned nan, where a finite number is expected"),
        ("    return 'good'", "returned 'good' (str), where a float is expected"),
        ("    raise SystemExit(3)", "raised SystemExit: 3"),
    ],
)
def test_a_bad_reward_is_told_with_its_row(
    workshop: Workshop, capsys: pytest.CaptureFixture[str], body: str, said: str
) -> None:
    add_function(workshop, f"def bad(text: str, answer: str) -> float:\n{body}\n")
    text = failing(workshop, capsys, flow=FLOW.format(reward="rewards.bad(rollout.text, prompts.answer)"))
    assert text.startswith(f"error: reward: rewards.bad {said}")
    assert "row 0 (rollout.sample 0):" in text and "answer = '0'" in text
    if "raised" in said:
        assert "rewards.py:" in text and body.strip() in text


def test_a_changed_function_is_refused(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    plan = workshop.folder / "plan.json"
    plan.write_bytes(encode(workshop.compile(PLAIN)))
    add_function(workshop, "X = 1\n")
    assert cli.main([str(plan), "--steps", "1", "--out", str(workshop.out())]) == 1
    assert "rewards.py has changed since the plan was compiled" in capsys.readouterr().err


def test_a_missing_function_is_told_where_it_was_looked_for(workshop: Workshop) -> None:
    plan = workshop.compile(PLAIN)
    (workshop.folder / "rewards.py").rename(workshop.folder / "elsewhere.py")
    with pytest.raises(RunError, match=r"`rewards.share` is in `rewards.py`, which isn't under .*--allow"):
        workshop.run(plan, 1)


def test_a_plan_runs_from_another_folder(workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = workshop.run(PLAIN, 2)
    monkeypatch.chdir(workshop.folder)
    path = Path("test.flow")
    from shardflow.compiler.compilation import check_flow, choose_flow, compile_flow, load_source

    source = load_source(path)
    plan = encode(compile_flow(check_flow(source, choose_flow(source, None), {})))
    (workshop.folder / "plan.json").write_bytes(plan)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    arguments = ["--steps", "2", "--dtype", "float64", "--no-tensorboard"]
    assert cli.main(["../plan.json", "--out", "beside", *arguments]) == 0
    shutil.copy("../plan.json", "plan.json")
    assert cli.main(["plan.json", "--base", str(workshop.folder), "--out", "based", *arguments]) == 0
    assert cli.main(["plan.json", "--out", "lost", *arguments]) == 1
    for out in ("beside", "based"):
        assert bit_equal(Result(elsewhere / out).state, expected.state)


def test_a_plan_for_many_ranks_says_how_they_are_started(workshop: Workshop) -> None:
    plan = workshop.compile(PLAIN)
    with pytest.raises(RunError, match=r"for 4 ranks, not for 1: give `--target multi --nproc 4`, or .* one process"):
        workshop.run(sealed(msgspec.structs.replace(plan, target="multi", ranks=4)), 1)


def test_a_changed_plan_is_no_plan(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    plan = workshop.folder / "plan.json"
    plan.write_bytes(encode(workshop.compile(PLAIN)).replace(b"0.001", b"0.002"))
    assert cli.main([str(plan), "--steps", "1"]) == 1
    assert "compile the flow again" in capsys.readouterr().err
    plan.write_text("{}")
    assert cli.main([str(plan), "--steps", "1"]) == 1
    assert cli.main([str(workshop.folder / "none.json"), "--steps", "1"]) == 2
    assert "no file" in capsys.readouterr().err


def test_a_prompt_without_room_is_named(workshop: Workshop) -> None:
    rows = (
        [{"prompt": "1+1=", "answer": "2"}] * 2
        + [{"prompt": "9" * 126, "answer": "0"}]
        + [{"prompt": "2", "answer": "2"}]
    )
    (workshop.folder / "d.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    said = r"(?s)`rollout`: row 2 of `prompts.prompt` has a prompt of 126 tokens and may get 4 more"
    with pytest.raises(RunError, match=said + ".*reads at most 128.*prompt = '9999"):
        workshop.run(PLAIN, 1)


def test_a_data_row_without_room_is_named(workshop: Workshop) -> None:
    rows = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "1+1=", "answer": "3" * 130}]
    (workshop.folder / "d.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    text = """
flow sft():
    model policy = causal_lm("p")
    d = read("d.jsonl", batch=2 prompts, shuffle=false)
    update policy(adamw(lr=1e-3)):
        minimize -mean(policy.logprobs(d.prompt, d.answer))
"""
    with pytest.raises(RunError, match=r"`policy.logprobs`: row 1 of `d.prompt` has 135 tokens, but `policy` reads"):
        workshop.run(text, 1)


def test_a_loss_without_a_value_is_told(workshop: Workshop) -> None:
    with pytest.raises(RunError, match=r"the loss of `policy` is -?nan at step 0"):
        workshop.run(PLAIN.replace("* reward)", "* reward) + ln(mean(policy.logprobs(rollout)))"), 1)


def test_the_largest_of_nothing_is_told(workshop: Workshop) -> None:
    with pytest.raises(RunError, match=r"step 0: max\(reward\): the largest of nothing has no value"):
        workshop.run(PLAIN + "    metric m = max(reward, where=reward > 5)\n", 1)


def test_nothing_says_when_it_ends(workshop: Workshop) -> None:
    text = (
        'flow e():\n    model p = causal_lm("p")\n    r = read("test.jsonl", all=true)\n    update p(adamw(lr=1e-3)):\n'
    )
    with pytest.raises(RunError, match="nothing says when this run ends"):
        workshop.run(text + "        minimize -mean(p.logprobs(r.prompt, r.answer))\n", steps=None)


# ---------------------------------------------------------------- other tokenizers


@pytest.fixture
def other(workshop: Workshop) -> str:
    """A reward model whose tokenizer numbers the bytes the other way round."""
    path = workshop.folder / "other"
    tiny.save(path, "qwen2", 5)
    file = path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"] = {letter: 255 - i for letter, i in content["model"]["vocab"].items()}
    file.write_text(json.dumps(content))
    return "other"


def test_score_tokenises_again(workshop: Workshop, other: str) -> None:
    from shardflow.runtime.models import Sequences, encode_pair, evaluate, load_role

    text = PLAIN.replace(
        "    reward =",
        f'    model rm = frozen(reward_model("{other}"))\n    score = rm.score(rollout)\n    reward = score + 0 *',
    )
    result = workshop.run(text, 1)
    rollout = rollout_of(result)
    rm = load_role("reward_model", str(workshop.folder / other), dtype=torch.float64, name="rm")
    pairs = [
        encode_pair(rm.tokenizer, p, t)
        for p, t in zip(rollout.hidden["prompt"].rows, rollout.fields["text"].rows, strict=True)
    ]
    expected = evaluate(rm, Sequences([c for c, _ in pairs], [r for _, r in pairs]), ("score",))["score"]
    assert column(result, "score") == pytest.approx(expected.tolist(), abs=1e-12)


def test_a_trained_reward_model_tokenises_again(workshop: Workshop, other: str) -> None:
    """Inside its own update too: the loss is made of the same scores as outside."""
    text = (
        PLAIN
        + f"""
    model rm = reward_model("{other}")
    outside = mean(rm.score(rollout) ** 2)
    update rm(adamw(lr=1e-3)):
        minimize mean(rm.score(rollout) ** 2)
    metric outside = outside
"""
    )
    result = workshop.run(text, 1, micro=40)
    assert result.column("loss.rm") == pytest.approx(result.column("outside"), abs=1e-12)


def test_token_ids_of_another_tokenizer_are_refused(workshop: Workshop, other: str) -> None:
    text = PLAIN + f'    model t = frozen(causal_lm("{other}"))\n    metric m = mean(t.logprobs(rollout))\n'
    with pytest.raises(Exception, match="tokenizer"):
        workshop.run(text, 1)


# ---------------------------------------------------------------- directories of runs


def test_a_run_is_not_overwritten_unasked(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    plan = workshop.compile(PLAIN)
    first = workshop.run(plan, 2)
    with pytest.raises(RunError, match=r"holds a run of 2 steps: go on with it by --resume, replace it by --overwrite"):
        workshop.run(plan, 3, out=first.out)
    assert len(first.metrics) == 2
    assert len(workshop.run(plan, 3, out=first.out, overwrite=True).metrics) == 3
    assert [c.name for c in CommitStore(first.out)._folders()] == ["step-000003"]
    assert cli.main(["x.flow", "--resume", "--overwrite"]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_a_run_can_not_be_made_shorter(workshop: Workshop) -> None:
    plan = workshop.compile(PLAIN)
    first = workshop.run(plan, 3)
    with pytest.raises(RunError, match=r"has made 3 steps already: --steps 2 ends before"):
        workshop.run(plan, 2, resume=True, out=first.out)


def test_a_run_that_failed_at_once_can_be_started_again(workshop: Workshop) -> None:
    plan = workshop.compile(PLAIN)
    broken = workshop.interrupted(plan, at=0, steps=2)
    assert len(workshop.run(plan, 2, out=broken.out).metrics) == 2


def test_resuming_needs_a_run(workshop: Workshop) -> None:
    plan = workshop.compile(PLAIN)
    with pytest.raises(RunError, match=r"there is no run in .* to resume"):
        workshop.run(plan, 2, resume=True)
    broken = workshop.interrupted(plan, at=0, steps=2)
    with pytest.warns(RunWarning, match="ended before its first commit, and starts anew"):
        result = workshop.run(plan, 2, resume=True, out=broken.out)
    assert bit_equal(result.state, workshop.run(plan, 2).state)


def test_only_the_same_run_is_resumed(workshop: Workshop) -> None:
    plan = workshop.compile(PLAIN)
    first = workshop.run(plan, 1)
    for changed, options in (
        (PLAIN.replace("1e-3", "1e-4"), {}),
        (PLAIN, {"seed": 3}),
        (PLAIN, {"dtype": "float32"}),
    ):
        with pytest.raises(RunError, match="is of another run"):
            workshop.run(changed, 2, resume=True, out=first.out, **options)
    result = workshop.run("# a comment\n" + PLAIN, 2, resume=True, out=first.out)
    assert bit_equal(result.state, workshop.run(plan, 2).state)


def test_a_mended_reward_may_go_on(workshop: Workshop) -> None:
    first = workshop.run(PLAIN, 1)
    add_function(workshop, "X = 1\n")
    with pytest.warns(
        RunWarning, match=r"^the code of rewards\.py changed since the commit of step 1; the run goes on"
    ):
        assert len(workshop.run(PLAIN, 2, resume=True, out=first.out).metrics) == 2


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_whose_end_moves_with_the_run_is_told(workshop: Workshop, schedule: str) -> None:
    plan = workshop.compile(PLAIN.replace("lr=1e-3", f'lr=1e-3, schedule="{schedule}"'))
    first = workshop.run(plan, 2)
    said = "schedule of `policy` ends with the run: after 2 steps until the commit of step 2, after 3 from here on"
    with pytest.warns(RunWarning, match=said):
        workshop.run(plan, 3, resume=True, out=first.out)
    with warnings.catch_warnings():  # its end is that of the run before
        warnings.simplefilter("error", RunWarning)
        workshop.run(plan, 3, resume=True, out=first.out)


@pytest.mark.parametrize("options", ["", ', schedule="cosine", decay=3'])
def test_a_later_end_is_that_of_an_uninterrupted_run(workshop: Workshop, options: str) -> None:
    plan = workshop.compile(PLAIN.replace("lr=1e-3", f"lr=1e-3{options}"))
    first = workshop.run(plan, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunWarning)
        resumed = workshop.run(plan, 4, resume=True, out=first.out)
    assert bit_equal(resumed.state, workshop.run(plan, 4).state)


def test_another_number_of_threads_is_told(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = workshop.compile(PLAIN)
    first = workshop.run(plan, 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: 7)
    with pytest.warns(RunWarning, match="made with 1 thread, this run has 7 threads: the last bits"):
        workshop.run(plan, 2, resume=True, out=first.out)


def test_a_resumed_run_that_was_finished_ends_again(workshop: Workshop) -> None:
    plan = workshop.compile(PLAIN + "    every 2 steps:\n        metric seen = step\n")
    first = workshop.run(plan, 2)
    before = untimed(first.metrics)
    again = workshop.run(plan, 2, resume=True, out=first.out)
    assert untimed(again.metrics) == before and [m["step"] for m in before] == [0, 1, 2]


def test_the_last_line_counts_steps(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    workshop.run(PLAIN + "    every 2 steps:\n        metric seen = step\n", 2)
    assert "Finished 2 steps" in capsys.readouterr().out


STOPS = """
import os, signal
SENT_NAME = []
def hit(text: str) -> float:
    if not SENT_NAME:
        SENT_NAME.append(1)
        os.kill(os.getpid(), signal.SIGNAME)
    return 0.5
"""


def test_a_stop_request_ends_with_a_commit(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C lets the step end and commits it, so that nothing is lost; SIGTERM does the same."""
    plan, before = workshop.folder / "plan.json", signal.getsignal(signal.SIGINT)
    for name in ("INT", "TERM"):
        add_function(workshop, STOPS.replace("NAME", name))
        plan.write_bytes(encode(workshop.compile(FLOW.format(reward="rewards.hit(rollout.text)"))))
        out = workshop.out()
        arguments = [str(plan), "--steps", "4", "--out", str(out), "--no-tensorboard"]
        assert cli.main(arguments) == 130
        assert "stopped after 1 steps; `--resume` goes on from there" in capsys.readouterr().err
        assert Result(out).meta["step"] == 1
        assert cli.main([*arguments, "--resume"]) == 0
        assert len(Result(out).metrics) == 4
    assert signal.getsignal(signal.SIGINT) is before


TWICE = STOPS.replace("SIGNAME)\n", "SIGNAME)\n        os.kill(os.getpid(), signal.SIGNAME)\n").replace("NAME", "INT")


def test_a_second_request_says_what_there_is_to_go_on_from(
    workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    add_function(workshop, TWICE)
    plan = workshop.folder / "plan.json"
    plan.write_bytes(encode(workshop.compile(FLOW.format(reward="rewards.hit(rollout.text)"))))
    assert cli.main([str(plan), "--steps", "4", "--out", str(workshop.out()), "--no-tensorboard"]) == 130
    assert capsys.readouterr().err.endswith("stopped; there is no commit yet\n")


def test_a_full_disk_is_told(
    workshop: Workshop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device", "metrics.jsonl")

    monkeypatch.setattr("shardflow.runtime.telemetry.logfile.LogFile.append", full)
    assert "error: No space left on device (metrics.jsonl)" in failing(workshop, capsys)


# ---------------------------------------------------------------- the real thing

ALGO = """
from shardflow.dsl import Prompts, adamw, causal_lm, flow, mean, minimize, read, update, use
rewards = use("rewards")

@flow
def grpo(batch=Prompts(4)):
    policy = causal_lm("p")
    prompts = read("d.jsonl", batch=batch)
    rollout = policy.generate(prompts, n=3, max_new_tokens=4)
    reward = rewards.share(rollout.text)
    with update(policy, adamw(lr=1e-3)):
        minimize(-mean(policy.logprobs(rollout) * reward))
"""


def flowrun(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "shardflow.runtime.cli", *arguments, "--no-tensorboard"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_flow_of_a_python_file(
    workshop: Workshop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop.folder)
    (workshop.folder / "algo.py").write_text(ALGO)
    assert cli.main(["algo.py:grpo", "--steps", "2", "--set", "batch=6prompts", "--no-tensorboard"]) == 0
    assert len(Result(workshop.folder / "runs" / "grpo").metrics) == 2
    assert cli.main(["algo.py:none", "--steps", "2"]) == 2


@pytest.mark.slow
def test_a_killed_flowrun_goes_on(workshop: Workshop) -> None:
    (workshop.folder / "test.flow").write_text(PLAIN)
    steps, out = "40", workshop.folder / "killed"
    arguments = ["test.flow", "--steps", steps, "--save-every", "3", "--dtype", "float64"]
    whole = flowrun(workshop.folder, *arguments, "--out", "whole")
    assert whole.wait(120) == 0, whole.stdout and whole.stdout.read()
    for lines in (4, 15):
        run = flowrun(workshop.folder, *arguments, "--out", "killed", *(["--resume"] if out.exists() else []))
        deadline = time.monotonic() + 120
        while len(Result(out).metrics) < lines and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    last = flowrun(workshop.folder, *arguments, "--out", "killed", "--resume")
    assert last.wait(120) == 0
    assert bit_equal(Result(out).state, Result(workshop.folder / "whole").state)
    assert untimed(Result(out).metrics) == untimed(Result(workshop.folder / "whole").metrics)
