"""Commits of several ranks: from any layout to any other, bit for bit, and whole or not at all."""

import os
import pkgutil
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from shardflow.runtime.commits import CommitStore
from shardflow.runtime.commits.commit import Commit, CommitError, read_commit
from shardflow.runtime.errors import RunError, RunWarning
from shardflow.runtime.execution.optimizer import Trainer
from shardflow.runtime.models import Role, count_passes, load_role
from shardflow.runtime.models.sharding import device_group, lay_out, open_mesh
from shardflow.runtime.ranks import ALONE, PeerError, World

from .pool import Pool
from .test_sharding import BUDGET, OPTIMIZER, agreed, all_rows, assert_close, assert_equal, learn, placed, rows_of


def state_of(role: Role, trainer: Trainer) -> dict[str, Tensor]:
    weights = {f"model.{name}": p.detach() for name, p in role.module.named_parameters()}
    return weights | {f"optimizer.{name}": tensor for name, tensor in trainer.tensors().items()}


def resumed(role: Role, trainer: Trainer, commits: CommitStore, commit: Commit) -> None:
    names = [n.removeprefix("optimizer.") for n in commit.tensor_names() if n.startswith("optimizer.")]
    targets = trainer.targets(names)
    weights = {f"model.{name}": p.detach() for name, p in role.module.named_parameters()}
    commits.load(commit, weights | {f"optimizer.{name}": t for name, t in targets.items()})
    trainer.load(targets, commit.meta["count"])


def train(world: World, role: Role, trainer: Trainer, step: int) -> None:
    mine = rows_of(world.rank, step) if world.size > 1 else all_rows(4, step)
    learn(role, mine, ("logprobs",), None, agreed(world, count_passes(mine, BUDGET)))
    trainer.step()


def goes_on(world: World, path: str, out: Path, fsdp: int, dtype: torch.dtype, step: int, trains: bool) -> None:
    """Take over the newest commit, if there is one, train a step or not, and commit."""
    role = load_role("causal_lm", path, dtype=dtype)
    if world.size > 1:
        placed(world, fsdp, role)
    trainer = Trainer(role, OPTIMIZER)
    commits = CommitStore(out, keep=9, channel=world.channel("world"))
    commits.clean()
    if (commit := commits.latest()) is not None:
        resumed(role, trainer, commits, commit)
    if trains:
        train(world, role, trainer, step)
    saved = commits.save(step, state_of(role, trainer), {"count": trainer.count, "rank": world.rank})
    assert saved.meta == {"count": trainer.count, "rank": 0} and saved.step == step


def of_step(out: Path, step: int) -> dict[str, Tensor]:
    found = read_commit(out / "commits" / f"step-{step:06d}")
    return found.load_tensors()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_commit_moves_from_layout_to_layout(
    pool: Pool, tiny_dirs: dict[str, str], tmp_path: Path, dtype: torch.dtype
) -> None:
    path = tiny_dirs["llama_varied"]
    pool.run(goes_on, path, tmp_path, 4, dtype, 1, True)  # fsdp 4
    pool.run(goes_on, path, tmp_path, 1, dtype, 2, False, ranks=2)  # dp 2
    goes_on(ALONE, path, tmp_path, 1, dtype, 3, False)
    pool.run(goes_on, path, tmp_path, 2, dtype, 4, False)  # dp 2 x fsdp 2
    first = of_step(tmp_path, 1)
    assert any(name.startswith("optimizer.master") for name in first) == (dtype == torch.bfloat16)
    for step in (2, 3, 4):
        assert_equal(of_step(tmp_path, step), first)
    shutil.rmtree(tmp_path / "commits" / "step-000004")
    shutil.copytree(tmp_path, tmp_path / "alone")
    pool.run(goes_on, path, tmp_path, 2, dtype, 4, True)
    goes_on(ALONE, path, tmp_path / "alone", 1, dtype, 4, True)
    assert_close(of_step(tmp_path, 4), of_step(tmp_path / "alone", 4), 1e-12 if dtype == torch.float64 else 0.05)


# ---------------------------------------------------------------- who writes what


def saves_parts(world: World, path: str, out: Path) -> None:
    """One role in shards on two ranks, another whole on the other two, and a tensor that a single rank has."""
    parts: dict[str, Tensor] = {}
    for name, ranks, fsdp in (("policy", (0, 1), 2), ("critic", (2, 3), 1)):
        world.open({name: ranks})
        mesh = open_mesh("cpu", ranks, fsdp, world.timeout)
        if mesh is not None:
            role = load_role("causal_lm", path, dtype=torch.float64, name=name)
            lay_out(role, mesh, world.channel(name))
            parts |= {f"{name}.{key}": p.detach() for key, p in role.module.named_parameters()}
    if world.rank == 3:
        parts["waiting"] = torch.arange(5)
    parts["everywhere"] = torch.full((2,), 7.0)
    CommitStore(out, channel=world.channel("world")).save(1, parts, {})


def test_each_rank_writes_what_it_has(pool: Pool, tiny_dirs: dict[str, str], tmp_path: Path) -> None:
    pool.run(saves_parts, tiny_dirs["llama_varied"], tmp_path)
    role = load_role("causal_lm", tiny_dirs["llama_varied"], dtype=torch.float64)
    weights = {key: p.detach() for key, p in role.module.named_parameters()}
    expected = {f"{name}.{key}": p for name in ("policy", "critic") for key, p in weights.items()}
    assert_equal(of_step(tmp_path, 1), expected | {"waiting": torch.arange(5), "everywhere": torch.full((2,), 7.0)})
    found = CommitStore(tmp_path).latest()
    assert found is not None
    sizes = sorted(file.stat().st_size for file in (found.path / "tensors").glob("*.distcp"))
    assert len(sizes) == 4 and sizes[-1] < sum(sizes) / 3  # what two have alike, they share


def on_a_part_of_the_world(world: World, out: Path) -> None:
    world.open({"some": (1, 3)})
    group = device_group((1, 3), world.timeout)
    if world.rank in (1, 3):
        commits = CommitStore(out, channel=world.channel("some"), group=group)
        commits.save(1, {f"of {world.rank}": torch.tensor(world.rank)}, {})
        found = commits.latest()
        assert found is not None and sorted(found.tensor_names()) == ["of 1", "of 3"]
        world.channel("some").barrier("reading")
        commits.clear()
        assert commits.latest() is None


def test_a_store_can_be_of_some_ranks(pool: Pool, tmp_path: Path) -> None:
    pool.run(on_a_part_of_the_world, tmp_path)


# ---------------------------------------------------------------- errors


def told(work: Callable[[], Any]) -> str:
    try:
        work()
    except (RunError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def raising(error: BaseException) -> Callable[..., Any]:
    def run(*_: Any, **__: Any) -> Any:
        raise error

    return run


FULL = OSError(28, "No space left on device")


def fails_to_write(world: World, out: Path, rank: int, place: str) -> str:
    commits = CommitStore(out, channel=world.channel("world"))
    commits.save(1, {f"x{world.rank}": torch.tensor(1)}, {})
    with pytest.MonkeyPatch.context() as patch:
        if world.rank == rank:
            patch.setattr(place, raising(FULL))
        with pytest.raises(CommitError) as caught:
            commits.save(2, {f"x{world.rank}": torch.tensor(2)}, {})
    assert rank == (world.rank if caught.value.origin is None else caught.value.origin)
    assert not list(commits.folder.glob("*.tmp"))
    found = commits.latest()
    assert found is not None and found.step == 1
    commits.save(2, {f"x{world.rank}": torch.tensor(2)}, {})
    return f"CommitError: {caught.value}"


WRITER = "torch.distributed.checkpoint.filesystem.FileSystemWriter"
STAGES = [
    (3, f"{WRITER}.write_data"),
    (2, f"{WRITER}.prepare_local_plan"),
    (0, f"{WRITER}.finish"),
    (0, "shardflow.runtime.commits.store.rename"),
]


@pytest.mark.parametrize(("rank", "place"), STAGES, ids=[s[1].rpartition(".")[2] for s in STAGES])
def test_an_error_of_one_rank_is_told_by_all(pool: Pool, tmp_path: Path, rank: int, place: str) -> None:
    texts = pool.run(fails_to_write, tmp_path, rank, place)
    assert len(set(texts)) == 1 and "CommitError: The commit of step 2 can't be written: " in texts[0]
    assert "No space left on device. The last one, of step 1, is untouched." in texts[0]
    assert (f"rank {rank}" in texts[0]) == place.startswith(WRITER)


def does_not_fit(world: World, out: Path) -> str:
    commits = CommitStore(out, channel=world.channel("world"))
    commit = commits.save(1, {"x": torch.zeros(3)}, {})
    return told(lambda: commits.load(commit, {"x": torch.zeros(3 + (world.rank == 1))}))


def test_an_error_while_loading_is_told_by_all(pool: Pool, tmp_path: Path) -> None:
    texts = pool.run(does_not_fit, tmp_path, ranks=2)
    assert all("'x' is (3,) of torch.float32 there, and (4,)" in text for text in texts)
    assert texts[0].startswith("CommitError: rank 1: ") and texts[1].startswith("CommitError: ")


def finds(world: World, out: Path) -> tuple[int, int, str]:
    commits = CommitStore(out, channel=world.channel("world"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = commits.latest()
    assert found is not None
    world.channel("world").barrier("damage")
    if world.rank == 0:
        (out / "commits" / "step-000001" / "meta.json").unlink()
    return sum(w.category is RunWarning for w in caught), found.step, told(commits.latest)


def test_all_ranks_go_on_from_the_same_commit(pool: Pool, tmp_path: Path) -> None:
    for step in (1, 2):
        CommitStore(tmp_path).save(step, {"x": torch.tensor(step)}, {})
    (tmp_path / "commits" / "step-000002" / "meta.json").write_text("{")
    answers = pool.run(finds, tmp_path, ranks=2)
    assert [a[:2] for a in answers] == [(1, 1), (0, 1)]  # it is said once
    assert all("is whole: step-000002 is damaged" in a[2] for a in answers)


# ---------------------------------------------------------------- crashes


class Crash(BaseException):
    """Ends a rank like a kill: nothing in the code expects it."""


def crashes(world: World, out: Path, rank: int, place: str, before: bool) -> str:
    commits = CommitStore(out, keep=1, channel=world.channel("world"))
    commits.save(1, {f"x{world.rank}": torch.tensor(1)}, {"x": 1})
    function = pkgutil.resolve_name(place)

    def crash(*args: Any, **options: Any) -> Any:
        result = None if before else function(*args, **options)
        raise Crash(result)

    with pytest.MonkeyPatch.context() as patch:
        if world.rank == rank:
            patch.setattr(place, crash)
        try:
            commits.save(2, {f"x{world.rank}": torch.tensor(2)}, {"x": 2})
        except (Crash, PeerError, RunError) as error:
            return type(error).__name__
    return ""


CRASHES = [
    (0, "shardflow.runtime.commits.store.make_folder"),
    (0, "shardflow.runtime.commits.store.sync_tree"),
    (0, "shardflow.runtime.commits.store.rename"),
    (0, "shutil.rmtree"),
    (0, "shardflow.runtime.commits.store.read_commit"),
    (2, "shardflow.runtime.commits.tensors.dcp_save"),
    (1, "shardflow.runtime.commits.store.on_first"),
]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(("rank", "place"), CRASHES, ids=[s[1].rpartition(".")[2] for s in CRASHES])
def test_a_crash_of_one_rank_leaves_a_whole_commit(
    pool: Pool, tmp_path: Path, rank: int, place: str, before: bool
) -> None:
    ends = pool.run(crashes, tmp_path, rank, place, before)
    assert ends[rank] == "Crash"
    commits = CommitStore(tmp_path)
    found = commits.latest()
    assert found is not None and found.meta["x"] == found.step
    assert found.load_tensors() == {f"x{r}": torch.tensor(found.step) for r in range(4)}
    commits.clean()
    assert commits.latest() == found and not list(commits.folder.glob("*.tmp"))


def is_killed(world: World, out: Path) -> None:
    commits = CommitStore(out, channel=world.channel("world"))
    commits.save(1, {f"x{world.rank}": torch.tensor(1)}, {})
    if world.rank == 1:
        FileSystemWriter.write_data = lambda *args: os._exit(1)  # type: ignore[method-assign]
    try:
        commits.save(2, {f"x{world.rank}": torch.tensor(2)}, {})
    except PeerError as error:
        (out / f"rank {world.rank}").write_text(str(error))
        raise


def test_a_killed_rank_ends_the_save_of_the_others(tmp_path: Path) -> None:
    own = Pool()  # it loses a process
    try:
        with pytest.raises(Exception, match="the process has ended"):
            own.run(is_killed, tmp_path, ranks=2, timeout=60)
    finally:
        own.close()
    assert "the commit of step 2" in (tmp_path / "rank 0").read_text()
    found = CommitStore(tmp_path).latest()
    assert found is not None and found.step == 1
