"""A commit is there or it isn't, whatever happens while it is written."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from shardflow.runtime.commits import Commit, CommitError, CommitStore, disk, restore_logs, store, tensors
from shardflow.runtime.commits import commit as commit_module
from shardflow.runtime.errors import RunWarning
from shardflow.runtime.telemetry import LogFile


def state(step: int) -> dict[str, Tensor]:
    base = torch.arange(12.0).reshape(3, 4) + step
    return {
        "policy.weight": base,
        "policy.tied": base[1:],
        "policy.transposed": base.t(),
        "policy.bf16": base.bfloat16(),
        "critic.double": base.double(),
        "adam.step": torch.tensor(step),
        "mask": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.full((2,), float(step))),
    }


def assert_state(got: dict[str, Tensor], step: int) -> None:
    expected = state(step)
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), name


def latest(commits: CommitStore) -> Commit:
    found = commits.latest()
    assert found is not None
    return found


def names(commits: CommitStore) -> list[str]:
    return sorted(path.name for path in commits.folder.iterdir())


def test_a_commit_gives_back_what_was_saved(tmp_path: Path) -> None:
    commits = CommitStore(tmp_path / "run")
    assert commits.latest() is None
    meta = {"position": 64, "beta": 0.1 + 0.2, "threads": 1, "schedule": {"policy": 3}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved = commits.save(12, state(12), meta)
        found = latest(commits)
        assert_state(found.load_tensors(), 12)
    assert found == saved
    assert (found.step, found.meta, found.path.name) == (12, meta, "step-000012")


def test_tensors_are_filled_in_place(tmp_path: Path) -> None:
    commit = CommitStore(tmp_path).save(1, state(1), {})
    weight, parameter = torch.zeros(3, 4), torch.nn.Parameter(torch.zeros(2))
    loaded = commit.load_tensors({"policy.weight": weight, "parameter": parameter})
    assert loaded["policy.weight"] is weight and torch.equal(weight, state(1)["policy.weight"])
    assert torch.equal(parameter, torch.ones(2)) and parameter.requires_grad


@pytest.mark.parametrize(
    ("into", "told"),
    [
        ({"policy.wieght": torch.zeros(3, 4)}, "there is no tensor 'policy.wieght'"),
        ({"policy.weight": torch.zeros(4, 3)}, r"'policy.weight' is \(3, 4\) of torch.float32 there, and \(4, 3\)"),
        ({"policy.weight": torch.zeros(3, 4).double()}, "of torch.float64 in this run"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, into: dict[str, Tensor], told: str) -> None:
    commit = CommitStore(tmp_path).save(1, state(1), {})
    with pytest.raises(CommitError, match=told):
        commit.load_tensors(into)


def test_old_commits_go(tmp_path: Path) -> None:
    commits = CommitStore(tmp_path, keep=2)
    for step in (1, 2, 3, 10):
        commits.save(step, {"x": torch.tensor(step)}, {})
    assert names(commits) == ["step-000003", "step-000010"]
    with pytest.raises(ValueError, match="keep is 0"):
        CommitStore(tmp_path, keep=0)


def test_a_run_that_went_back_forgets_its_former_future(tmp_path: Path) -> None:
    commits = CommitStore(tmp_path)
    for step in (4, 5):
        commits.save(step, {"x": torch.tensor(step)}, {})
    commits.save(4, {"x": torch.tensor(40)}, {})
    assert names(commits) == ["step-000004"]
    assert latest(commits).load_tensors()["x"] == 40
    commits.clear()
    assert names(commits) == [] and commits.latest() is None


def test_logs_are_cut_to_the_commit(tmp_path: Path) -> None:
    log, other = LogFile(tmp_path / "metrics.jsonl", resume=False), LogFile(tmp_path / "samples.jsonl", resume=False)
    log.append({"step": 1, "text": "é"})
    commit = CommitStore(tmp_path).save(1, {}, {}, [log, other])
    log.append({"step": 2})
    other.append({"step": 2})
    with (tmp_path / "metrics.jsonl").open("ab") as torn:
        torn.write(b'{"step": 3, "rew')
    restore_logs(commit)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "text": "é"}\n'
    assert (tmp_path / "samples.jsonl").read_bytes() == b""
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(CommitError, match="has 0 bytes, but had 26 at step 1"):
        restore_logs(commit)


def test_a_run_can_be_moved(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    log = LogFile(tmp_path / "a" / "metrics.jsonl", resume=False)
    log.append({"step": 1})
    CommitStore(tmp_path / "a").save(1, state(1), {}, [log])
    log.append({"step": 2})
    log.close()
    (tmp_path / "a").rename(tmp_path / "b")
    moved = latest(CommitStore(tmp_path / "b"))
    restore_logs(moved)
    assert (tmp_path / "b" / "metrics.jsonl").read_text() == '{"step": 1}\n'
    assert_state(moved.load_tensors(), 1)


class Crash(BaseException):
    """Ends a save like a kill: nothing in the code expects it."""


STAGES: list[tuple[Any, str, int]] = [
    (tensors, "dcp_save", 0),
    (store, "_sizes", 0),
    (store, "sync_tree", 0),
    (disk, "sync_path", 0),
    (store, "rename", 0),
    (os, "rename", 0),
    (os, "rename", 1),
    (shutil, "rmtree", 0),
    (store, "read_commit", 0),
]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(("module", "name", "nth"), STAGES, ids=[f"{s[1]}-{s[2]}" for s in STAGES])
@pytest.mark.parametrize("step", [3, 2], ids=["new", "again"])
def test_a_crash_at_any_stage_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, module: Any, name: str, nth: int, before: bool
) -> None:
    commits = CommitStore(tmp_path, keep=1)
    commits.save(2, {"x": torch.tensor(2)}, {"x": 2})
    monkeypatch.setattr(module, name, crashing(getattr(module, name), nth, before))
    with pytest.raises(Crash):
        for new in (step, step + 1):  # a second save reaches the stages that only replacing has
            commits.save(new, {"x": torch.tensor(10 * new)}, {"x": 10 * new})
    monkeypatch.undo()
    found = latest(commits)
    assert found.meta["x"] in (2, 10 * step, 10 * (step + 1))
    assert found.load_tensors()["x"] == found.meta["x"]
    commits.clean()
    assert latest(commits) == found and not list(commits.folder.glob("*.tmp"))
    commits.save(5, {"x": torch.tensor(5)}, {})
    assert names(commits) == ["step-000005"]


def crashing(function: Callable[..., Any], nth: int, before: bool) -> Callable[..., Any]:
    calls = 0

    def run(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth + 1 and before:
            raise Crash
        result = function(*args, **options)
        if calls == nth + 1:
            raise Crash
        return result

    return run


def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = CommitStore(tmp_path)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(store, "sync_tree", raising(full))
    with pytest.raises(
        CommitError, match=r"step 1 can't be written: .*No space left on device. There is no earlier one"
    ):
        commits.save(1, state(1), {})
    monkeypatch.undo()
    commits.save(1, state(1), {})
    monkeypatch.setattr(tensors, "FileSystemWriter", raising(full))
    with pytest.raises(CommitError, match="The last one, of step 1, is untouched"):
        commits.save(2, state(2), {})
    monkeypatch.undo()
    assert latest(commits).step == 1
    commits.save(2, state(2), {})
    assert_state(latest(commits).load_tensors(), 2)


def test_an_error_inside_the_tensor_writer_keeps_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSystemWriter, "write_data", raising(OSError(28, "No space left on device")))
    with pytest.raises(CommitError, match="No space left on device"):
        CommitStore(tmp_path).save(1, state(1), {})


def test_old_commits_that_cannot_be_removed_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = CommitStore(tmp_path, keep=1)
    commits.save(1, {"x": torch.tensor(1)}, {})
    monkeypatch.setattr(shutil, "rmtree", raising(PermissionError(13, "Permission denied")))
    with pytest.warns(RunWarning, match="Old commits .* can't be removed"):
        commits.save(2, {"x": torch.tensor(2)}, {})
    assert latest(commits).step == 2


def raising(error: Exception) -> Callable[..., Any]:
    def run(*_: Any, **__: Any) -> Any:
        raise error

    return run


def delete(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def garble(file: Path) -> None:
    file.write_text('{"step": 2}')


DAMAGES: list[tuple[str, Callable[[Path], None], str]] = [
    ("tensors/__0_0.distcp", delete, "__0_0.distcp is missing"),
    ("tensors/__0_0.distcp", cut, "__0_0.distcp has .* bytes instead of"),
    ("tensors/.metadata", cut, ".metadata has"),
    ("meta.json", delete, "meta.json can't be read"),
    ("meta.json", cut, "meta.json can't be read"),
    ("meta.json", garble, "meta.json lacks"),
]


@pytest.mark.parametrize(("name", "damage", "told"), DAMAGES)
def test_a_damaged_commit_is_passed_over(tmp_path: Path, name: str, damage: Callable[[Path], None], told: str) -> None:
    commits = CommitStore(tmp_path)
    for step in (1, 2):
        commits.save(step, state(step), {})
    damage(commits.folder / "step-000002" / name)
    with pytest.warns(RunWarning, match=f"Going back to the commit of step 1: step-000002 is damaged .{told}"):
        found = latest(commits)
    assert_state(found.load_tensors(), 1)
    damage(commits.folder / "step-000001" / name)
    with pytest.raises(CommitError, match=r"No commit of .* is whole: step-000002 .*; step-000001 is damaged"):
        commits.latest()


def test_a_commit_of_another_format_is_not_guessed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = CommitStore(tmp_path)
    commits.save(1, {}, {})
    monkeypatch.setattr(commit_module, "FORMAT", 2)
    with pytest.raises(CommitError, match="it has format 1, this version reads 2"):
        commits.latest()


def test_nothing_in_a_commit_can_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("touch " + str(tmp_path / "owned"),)

    commit = CommitStore(tmp_path).save(1, state(1), {})
    index = commit.path / "tensors" / ".metadata"
    index.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CommitError, match=r"the index names (posix|nt)\.system"):
        commit.load_tensors()
    assert not (tmp_path / "owned").exists()


def test_flipped_bytes_are_an_error(tmp_path: Path) -> None:
    commit = CommitStore(tmp_path).save(1, state(1), {})
    data = commit.path / "tensors" / "__0_0.distcp"
    data.write_bytes(b"\0" * data.stat().st_size)
    with pytest.raises(CommitError, match="the tensors can't be read"):
        commit.load_tensors()


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from shardflow.runtime.commits import CommitStore, restore_logs
from shardflow.runtime.telemetry import LogFile

out = Path(sys.argv[1])
commits = CommitStore(out, keep=1)
commits.save(0, {"x": torch.zeros(50_000)}, {"step": 0})  # first, so that a child needs no warming up

def run():
    found = commits.latest()
    commits.clean()
    restore_logs(found)
    assert (found.load_tensors()["x"] == found.step).all() and found.meta["step"] == found.step
    log = LogFile(out / "metrics.jsonl", resume=found.step > 0)
    for step in range(found.step + 1, found.step + 1000):
        log.append({"step": step})
        commits.save(step, {"x": torch.full((50_000,), float(step))}, {"step": step}, [log])

rng = random.Random(0)
for _ in range(20):
    child = os.fork()
    if child == 0:
        try:
            run()
        finally:
            os._exit(1)
    time.sleep(rng.uniform(0.01, 0.12))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child failed by itself"
"""


def test_kill_at_any_moment_leaves_a_whole_commit(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    commits = CommitStore(tmp_path)
    found = latest(commits)
    assert found.step > 5
    commits.clean()
    assert latest(commits) == found
    restore_logs(found)
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, found.step + 1))  # no step is lost or told twice over twenty kills
