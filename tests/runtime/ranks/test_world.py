"""Joining: what is said when a rank is missing, the address is wrong, or a rank runs something else."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import PrefixStore

from shardflow.runtime.errors import RunError
from shardflow.runtime.ranks import World
from shardflow.runtime.ranks.rollcall import call_roll

from . import standin
from .pool import Pool

NOTHING = "pass"


def joined_by_two_of_four(world: World) -> str:
    assert world.store is not None
    world.channel("world").barrier("start")
    with pytest.raises(RunError) as caught:
        call_roll(PrefixStore("roll", world.store), world.rank, 4, timedelta(seconds=1))
    return str(caught.value)


def test_missing_ranks_are_named_at_the_deadline(pool: Pool) -> None:
    for said in pool.run(joined_by_two_of_four, ranks=2):
        assert said.startswith("ranks 2 and 3 of 4 have not joined after 1 s: ")


def test_a_wrong_address_is_named(tmp_path: Path) -> None:
    command, port = [*standin.write(tmp_path, NOTHING), "--join-timeout", "2"], standin.free_port()
    (ended,) = standin.finish([standin.start(command, 1, 2, port, local=0)])
    assert ended.status == 1
    assert ended.err.startswith(
        f"error: rank 1 found no run at 127.0.0.1:{port} within 2 s (Connection refused): is that"
    )


def test_another_plan_on_one_rank_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    a, b, port = standin.write(tmp_path / "a", NOTHING), standin.write(tmp_path / "b", "print()"), standin.free_port()
    ended = standin.finish([standin.start(a, 0, 3, port), standin.start(a, 1, 3, port), standin.start(b, 2, 3, port)])
    assert [e.status for e in ended] == [1, 1, 1]
    said = "".join(e.err for e in ended)
    assert len(re.findall(r"rank 2 runs something else than rank 0: the plan is \w+ on rank 0 and \w+ on", said)) == 1


def test_another_option_on_one_rank_is_named(tmp_path: Path) -> None:
    command, port = standin.write(tmp_path, NOTHING), standin.free_port()
    other = [*command, "--seed", "7"]
    ended = standin.finish([standin.start(command, 0, 2, port), standin.start(other, 1, 2, port)])
    assert [e.status for e in ended] == [1, 1]
    assert "rank 1 runs something else than rank 0: the option --seed is 0 on rank 0 and 7 on rank 1" in "".join(
        e.err for e in ended
    )


def test_without_a_launcher_it_says_how_ranks_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RunError, match=r"RANK isn't set(?s:.*)torchrun --nproc-per-node N"):
        World.join()


def test_a_world_of_one_needs_nobody() -> None:
    world = World()
    world.open({"world": (0,)})
    assert (world.rank, world.size, world.channel("world").ranks) == (0, 1, (0,))
    assert world.where(0) == "the start"
