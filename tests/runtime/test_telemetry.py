"""What a run tells: exact records, samples, curves, TensorBoard events, and the screen with and without a terminal."""

import contextlib
import io
import json
import math
import os
import pty
import re
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shardflow.runtime import threads
from shardflow.runtime.commits import CommitStore, restore_logs
from shardflow.runtime.errors import RunWarning
from shardflow.runtime.telemetry import LogFile, Telemetry, plot
from shardflow.runtime.telemetry.columns import duration, short
from shardflow.runtime.telemetry.console import open_console


def record(step: int) -> dict[str, Any]:
    return {
        "reward": step / 10 + 1e-17,
        "step": step,
        "kl": 0.1 + 0.2,
        "loss.policy": -0.01,
        "length": 30.5,
        "tokens_per_second": 12_345.6,
        "seconds": 0.25,
    }


def quiet(out: Path, *, resume: bool = False, steps: int = 3, tensorboard: bool = False) -> Telemetry:
    return Telemetry.open(out, flow="grpo", steps=steps, resume=resume, tensorboard=tensorboard, console=False)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_records_are_exact_and_in_order(tmp_path: Path) -> None:
    with quiet(tmp_path / "run") as telemetry:
        telemetry.step(record(1))
        telemetry.step({"step": 2, "seconds": 1, "a": np.float64(1 / 3), "b": torch.tensor(5), "c": True})
    first, second = lines(tmp_path / "run" / "metrics.jsonl")
    assert first == record(1)
    assert list(first)[:3] == ["step", "seconds", "reward"]
    assert second == {"step": 2, "seconds": 1, "a": 1 / 3, "b": 5, "c": 1}
    assert type(second["seconds"]) is int


def test_what_is_not_finite_becomes_null_with_a_warning(tmp_path: Path) -> None:
    with (
        quiet(tmp_path, tensorboard=True) as telemetry,
        pytest.warns(RunWarning, match="step 4: kl is nan, loss is -inf"),
    ):
        telemetry.step({"step": 4, "seconds": 1.0, "kl": math.nan, "loss": -math.inf})
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 4, "seconds": 1.0, "kl": None, "loss": None}]


def test_metrics_are_numbers(tmp_path: Path) -> None:
    with quiet(tmp_path) as telemetry, pytest.raises(TypeError, match="a metric is a number, not str"):
        telemetry.step({"step": 1, "seconds": 1.0, "note": "x"})  # type: ignore[dict-item]


def test_samples_are_readable(tmp_path: Path) -> None:
    rows = [
        {"prompt": "2+2?", "text": "é: 4", "reward": np.float32(1), "tokens": torch.tensor([1, 2]), "kl": math.nan},
        {"prompt": [{"role": "user", "content": "hi"}], "text": "half \ud83d pair", "reward": 0.0},
    ]
    with quiet(tmp_path) as telemetry:
        telemetry.samples(3, rows)
    text = (tmp_path / "samples.jsonl").read_text(encoding="utf-8")
    assert "é: 4" in text
    first, second = lines(tmp_path / "samples.jsonl")
    assert first == {"step": 3, "prompt": "2+2?", "text": "é: 4", "reward": 1.0, "tokens": [1, 2], "kl": None}
    assert second["prompt"] == rows[1]["prompt"] and second["text"] == "half ? pair"


def test_a_new_run_empties_the_files_and_a_resumed_one_continues(tmp_path: Path) -> None:
    for resume, expected in ((False, [1]), (True, [1, 2]), (False, [3])):
        with quiet(tmp_path, resume=resume) as telemetry:
            telemetry.step(record(expected[-1]))
        assert [r["step"] for r in lines(tmp_path / "metrics.jsonl")] == expected


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_resume_after_a_commit_tells_every_step_once(tmp_path: Path) -> None:
    telemetry = quiet(tmp_path, tensorboard=True, steps=4)
    commits = CommitStore(tmp_path)
    for step in (1, 2, 3):
        telemetry.step(record(step))
        telemetry.samples(step, [{"text": str(step)}])
        if step == 2:
            commits.save(step, {}, {}, telemetry.log_files())
    telemetry.flush()  # step 3 reached the files, but no commit: the run is killed here
    commit = commits.latest()
    assert commit is not None
    restore_logs(commit)
    time.sleep(1.01)  # event files are named by the second
    with quiet(tmp_path, resume=True, tensorboard=True, steps=4) as resumed:
        for step in (3, 4):
            resumed.step({**record(step), "reward": 100.0 + step})
            resumed.samples(step, [{"text": str(step)}])
    assert [r["step"] for r in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]
    assert [r["text"] for r in lines(tmp_path / "samples.jsonl")] == ["1", "2", "3", "4"]
    points = scalars(tmp_path / "tensorboard", "reward")
    assert [step for step, _ in points] == [1, 2, 3, 4]
    assert [value for _, value in points] == pytest.approx([0.1, 0.2, 103, 104])
    assert scalars(tmp_path / "tensorboard", "loss/policy")[0][1] == pytest.approx(-0.01)


def test_a_new_run_removes_older_events(tmp_path: Path) -> None:
    for step in (7, 1):
        with quiet(tmp_path, tensorboard=True) as telemetry:
            telemetry.step(record(step))
    assert [step for step, _ in scalars(tmp_path / "tensorboard", "reward")] == [1]


def test_log_lengths_are_what_is_on_disk(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.jsonl", resume=False)
    log.append({"text": "é"})
    assert log.sync() == (tmp_path / "a.jsonl").stat().st_size == 15
    log.close()
    log.close()


def png_size(file: Path) -> tuple[int, int]:
    data = file.read_bytes()
    assert data.startswith(b"\x89PNG")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_curves_have_a_panel_for_what_there_is(tmp_path: Path) -> None:
    metrics, png = tmp_path / "m.jsonl", tmp_path / "m.png"
    sizes = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for keys in (["reward"], ["reward", "kl"], ["reward", "kl", "loss.policy", "length"], ["my_score"]):
            metrics.write_text("".join(json.dumps({"step": s, **dict.fromkeys(keys, s / 7)}) + "\n" for s in range(40)))
            assert plot(metrics, png, title="grpo")
            sizes.append(png_size(png))
    one, two, four, other = sizes
    assert one == other and two[0] == 2 * one[0] and four[0] == two[0] and four[1] > 1.5 * two[1]


def test_curves_take_gaps_and_a_torn_last_line(tmp_path: Path) -> None:
    rows = [{"step": 1, "reward": None}, {"step": 2, "reward": 0.5, "loss.a": 1}, {"step": 3, "loss.b": 2}]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 4, "rew')
    assert plot(tmp_path / "m.jsonl", tmp_path / "m.png")
    assert png_size(tmp_path / "m.png")[0] > 0


def test_nothing_to_draw_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"step": 1, "seconds": 2.0}\n')
    assert not plot(tmp_path / "m.jsonl", tmp_path / "m.png")
    assert not (tmp_path / "m.png").exists()


def test_numbers_are_short() -> None:
    shown = [short(x) for x in (0.125, 0.0, 1.0, 1000.4, 12_345.6, 1.2e7, 3.0e-5, -0.5, 7, 12_345, None, math.nan)]
    assert shown == [
        "0.1250",
        "0.000",
        "1.000",
        "1000",
        "12.35k",
        "12.00M",
        "3.0e-05",
        "-0.5000",
        "7",
        "12.35k",
        "–",
        "nan",
    ]
    assert [short(x) for x in (9_999.96, 1e4, 1e9, 2e12)] == ["10.00k", "10.00k", "1.000G", "2.000T"]
    spans = [duration(x) for x in (0.084, 9.94, 42, 59.7, 200, 7500)]
    assert spans == ["0.084 s", "9.9 s", "42 s", "1 min 00 s", "3 min 20 s", "2 h 05 min"]


def told(steps: int, tmp_path: Path, *, done: int = 0, until: int | None = None) -> list[str]:
    stream = io.StringIO()
    earlier = [record(step) for step in range(1, done + 1)]
    console = open_console(stream, flow="grpo", steps=steps, out=tmp_path, done=earlier)
    for step in range(done + 1, (until or steps) + 1):
        console.step(record(step))
    console.close(["metrics.jsonl", "curves.png"])
    assert "\x1b" not in stream.getvalue()
    return stream.getvalue().splitlines()


def test_without_a_terminal_ten_lines_tell_the_run(tmp_path: Path) -> None:
    opening, heading, *steps, summary, files = told(200, tmp_path)
    assert opening == f"grpo · 200 steps · {tmp_path}/"
    assert heading.split() == ["step", "reward", "kl", "loss", "length", "tokens/s", "seconds"]
    assert [int(line.split()[0]) for line in steps] == [1, 23, 45, 67, 89, 112, 134, 156, 178, 200]
    assert steps[0].split() == ["1", "0.1000", "0.3000", "-0.01000", "30.50", "12.35k", "0.2500"]
    assert len({len(line) for line in [heading, *steps]}) == 1
    assert re.fullmatch(r"Finished 200 steps · reward 0\.1000 → 20\.00 · .* s \(.* s a step\)", summary)
    assert files == f"{tmp_path}/: metrics.jsonl, curves.png"


def test_without_a_terminal_short_and_resumed_and_stopped_runs(tmp_path: Path) -> None:
    assert [line.split()[0] for line in told(3, tmp_path)[2:-2]] == ["1", "2", "3"]
    assert [line.split()[0] for line in told(1, tmp_path)[2:-2]] == ["1"]
    resumed = told(6, tmp_path, done=4)
    assert resumed[0].startswith("grpo · steps 5 to 6 · ")
    assert [line.split()[0] for line in resumed[2:-2]] == ["5", "6"]
    assert resumed[-2].startswith("Finished 6 steps · reward 0.1000 → 0.6000")
    assert told(6, tmp_path, until=2)[-2].startswith("Stopped after 2 of 6 steps · ")


def test_columns_appear_when_they_first_do(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = open_console(stream, flow="f", steps=3, out=tmp_path, done=[])
    console.step({"step": 1, "seconds": 1.0, "reward": 0.5})
    console.step({"step": 2, "seconds": 1.0, "loss.policy": 1.0, "loss.critic": 2.0})
    console.step({"step": 3, "seconds": 1.0, "reward": 0.25, "loss.critic": 2.0})
    rows = [line.split() for line in stream.getvalue().splitlines()[1:]]
    assert rows == [
        ["step", "reward", "seconds"],
        ["1", "0.5000", "1.000"],
        ["step", "reward", "loss.policy", "loss.critic", "seconds"],
        ["2", "–", "1.000", "2.000", "1.000"],
        ["3", "0.2500", "–", "2.000", "1.000"],
    ]


def test_what_is_expected_has_its_column_from_the_first_step_on(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = open_console(stream, flow="f", steps=2, out=tmp_path, done=[], expected=["loss.policy"])
    console.step({"step": 1, "seconds": 1.0})
    console.step({"step": 2, "seconds": 1.0, "loss.policy": 2.0})
    rows = [line.split() for line in stream.getvalue().splitlines()[1:]]
    assert rows == [["step", "loss", "seconds"], ["1", "–", "1.000"], ["2", "2.000", "1.000"]]


def test_a_failed_run_has_no_summary_and_an_empty_one_no_list(tmp_path: Path) -> None:
    for failed, last in ((True, "f · 2 steps"), (False, "Stopped after 0 of 2 steps")):
        stream = io.StringIO()
        open_console(stream, flow="f", steps=2, out=tmp_path, done=[]).close([], failed)
        assert stream.getvalue().splitlines()[-1].startswith(last)


def test_a_pipe_that_has_no_arrows_gets_question_marks(tmp_path: Path) -> None:
    raw = io.BytesIO()
    console = open_console(io.TextIOWrapper(raw, "latin-1"), flow="f", steps=1, out=tmp_path, done=[])
    console.step(record(1))
    console.close([])
    assert b"reward 0.1000 ? 0.1000" in raw.getvalue()


def test_a_reader_that_leaves_does_not_end_the_run(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with contextlib.suppress(BrokenPipeError), os.fdopen(theirs, "w") as stream:  # closing flushes once more
        console = open_console(stream, flow="f", steps=2, out=tmp_path, done=[])
        console.step(record(1))
        console.close([])
        told_all = True
    assert told_all


RUN = """
import sys, time
from pathlib import Path
from shardflow.runtime.telemetry import Telemetry
with Telemetry.open(Path(sys.argv[1]), flow="grpo", steps=4, resume=False, tensorboard=False) as telemetry:
    for step in range(1, 5):
        telemetry.step({"step": step, "seconds": 0.1, "reward": step / 4, "loss.policy": 0.5})
        print("printed by the reward") if step == 2 else None
        time.sleep(0.15)
        if step == 3 and len(sys.argv) > 2:
            raise KeyboardInterrupt
"""


def in_terminal(*arguments: str) -> str:
    """What a program writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, *arguments], stdout=theirs, stderr=subprocess.PIPE, env=environment
    )
    os.close(theirs)
    written = bytearray()

    def read() -> None:
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # the other end was closed
                return
            if not chunk:
                return
            written.extend(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    process.communicate(timeout=60)
    reader.join(timeout=10)
    os.close(ours)
    return written.decode()


def test_a_terminal_gets_every_step_over_a_live_bar(tmp_path: Path) -> None:
    text = in_terminal(str(tmp_path))
    assert "\x1b[" in text and "━" in text and "4/4" in text and "left" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    rows = [line.split() for line in re.split(r"[\r\n]+", plain) if line.strip() and "━" not in line]
    assert rows[1:7] == [
        ["step", "reward", "loss", "seconds"],
        ["1", "0.2500", "0.5000", "0.1000"],
        ["2", "0.5000", "0.5000", "0.1000"],
        ["printed", "by", "the", "reward"],
        ["3", "0.7500", "0.5000", "0.1000"],
        ["4", "1.000", "0.5000", "0.1000"],
    ]
    assert " ".join(rows[7]).startswith("Finished 4 steps · reward 0.2500 → 1.000")
    assert " ".join(rows[8]).endswith("/: metrics.jsonl, curves.png")


def test_an_interrupted_run_still_ends_its_records(tmp_path: Path) -> None:
    text = in_terminal(str(tmp_path), "interrupt")
    assert "Stopped after 3 of 4 steps" in text and "\x1b[?25h" in text  # the cursor is shown again
    assert len(lines(tmp_path / "metrics.jsonl")) == 3 and (tmp_path / "curves.png").is_file()


def test_heavy_libraries_wait_until_they_are_needed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from shardflow.runtime.telemetry import Telemetry\n"
        f"t = Telemetry.open(Path({str(tmp_path)!r}), flow='f', steps=2, resume=False)\n"
        "assert not {'rich', 'matplotlib', 'tensorboard', 'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)


@pytest.fixture
def restored_threads(monkeypatch: pytest.MonkeyPatch) -> Any:
    before = torch.get_num_threads()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "")  # so that what the test sets is undone
        monkeypatch.delenv(name)
    yield
    torch.set_num_threads(before)


def test_threads_are_chosen_on_purpose(restored_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: 12)
    assert threads.default_threads(1_000_000) == 1
    assert threads.default_threads(500_000_000) == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # torchrun's: ranks of a node share its cores
    assert threads.default_threads(500_000_000) == 3
    assert threads.set_threads(1) == 1 == torch.get_num_threads()
    assert os.environ["OMP_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "1"
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    assert threads.default_threads(500_000_000) == 1 == threads.set_threads(None)
    with pytest.raises(ValueError, match="0 threads"):
        threads.set_threads(0)


def test_usable_cores_respect_affinity_siblings_and_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(siblings + "\n")
    monkeypatch.setattr(threads, "_CPUS", tmp_path)
    monkeypatch.setattr(threads, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert threads.usable_cores() == 2
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert threads.usable_cores() == 2
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert threads.usable_cores() == 1
