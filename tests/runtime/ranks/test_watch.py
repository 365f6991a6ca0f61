"""The end of a run in which a rank fails: all ranks end within seconds, and one of them says why."""

import time
from pathlib import Path

from . import standin

# Ranks 0 and 2 go into a collective in which rank 1 never arrives.
HANG = """
import time, os, signal, torch, pathlib
world.place = "step 3, `reward`"
channel = world.channel("world")
channel.barrier("start")
if world.rank == 1:
    time.sleep(1)
    pathlib.Path(FOLDER, "failing").touch()
    FAIL
while True:
    channel.add(torch.ones(2), "step 3, mean of `reward`")
"""


def hang(folder: Path, fail: str) -> tuple[list[standin.Ended], float]:
    """How three ranks end when rank 1 fails in that way, and how many seconds after."""
    ended = standin.run(folder, HANG.replace("FOLDER", repr(str(folder))).replace("FAIL", fail))
    return ended, time.time() - (folder / "failing").stat().st_mtime


def said(ended: list[standin.Ended]) -> str:
    return "".join(e.err for e in ended)


def test_an_exception_is_told_with_its_traceback_and_ends_all(tmp_path: Path) -> None:
    ended, seconds = hang(tmp_path, "raise ValueError('wrong number')")
    assert [e.status for e in ended] == [1, 1, 1] and seconds < 10
    assert ended[1].err.startswith("error: rank 1 failed at step 3, `reward`:\nTraceback")
    assert ended[1].err.endswith("ValueError: wrong number\n")
    assert ended[0].err == "rank 0: stopped, because rank 1 failed\n"
    assert ended[2].err == "rank 2: stopped, because rank 1 failed\n"


def test_a_run_error_is_its_message_alone(tmp_path: Path) -> None:
    fail = "from shardflow.runtime.errors import RunError; raise RunError('reward: no such row')"
    ended, seconds = hang(tmp_path, fail)
    assert [e.status for e in ended] == [1, 1, 1] and seconds < 10
    assert ended[1].err == "error: rank 1 failed at step 3, `reward`:\nreward: no such row\n"


def test_a_rank_that_is_killed_is_missed(tmp_path: Path) -> None:
    ended, seconds = hang(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert [e.status for e in ended] == [1, -9, 1] and seconds < 10
    assert said(ended).count("error: rank 1 (process ") == 1
    assert said(ended).count("ended without a word") == 1
    assert "stopped, because rank 1 failed" in said(ended)


def test_a_collective_of_torch_that_loses_a_rank_is_no_cause(tmp_path: Path) -> None:
    own = "import torch.distributed as dist\nx = torch.ones(10)\nwhile True:\n    dist.all_reduce(x)"
    plan = HANG.partition("while True:")[0].replace("FOLDER", repr(str(tmp_path))) + own
    ended = standin.run(tmp_path, plan.replace("FAIL", "os.kill(os.getpid(), signal.SIGKILL)"))
    assert [e.status for e in ended] == [1, -9, 1]
    assert said(ended).count("error: ") == said(ended).count("error: rank 1 (process ") == 1


def test_a_rank_that_does_not_come_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    plan = HANG.replace("FOLDER", repr(str(tmp_path))).replace("FAIL", "world.place = 'step 2'; time.sleep(50)")
    ended = standin.run(tmp_path, plan, options=["--timeout", "3"])
    assert [e.status for e in ended] == [1, 1, 1]
    assert said(ended).count("error: rank 1 is still at step 2 after 3 s; rank ") == 1
    assert said(ended).count(" waits for it at step 3, mean of `reward` (--timeout)\n") == 1
    # Although its main thread sleeps.
    assert ended[1].err.startswith("rank 1, for which others waited, is here:\n") and "<string>:9, in" in ended[1].err


def test_what_all_ranks_meet_is_told_once(tmp_path: Path) -> None:
    plan = """
from shardflow.runtime.errors import RunError
world.channel("world").barrier("start")
raise RunError("nothing says when this run ends")
"""
    ended = standin.run(tmp_path, plan, 2)
    assert [e.status for e in ended] == [1, 1]
    assert said(ended).count("nothing says when this run ends") == 1


def test_ranks_that_end_at_different_times_are_not_missed(tmp_path: Path) -> None:
    ended = standin.run(tmp_path, "import time; time.sleep(world.rank); print('done')", 2)
    assert [(e.status, e.out, e.err) for e in ended] == [(0, "done\n", "")] * 2


def test_a_run_that_stops_early_says_so_once(tmp_path: Path) -> None:
    plan = "from shardflow.runtime.execution.stopping import Stopped; raise Stopped(4)"
    ended = standin.run(tmp_path, plan, 2)
    assert [e.status for e in ended] == [130] * 2
    assert said(ended) == "stopped after 4 steps; `--resume` goes on from there\n"


def test_a_second_request_ends_all_at_once(tmp_path: Path) -> None:
    ended, seconds = hang(tmp_path, "raise KeyboardInterrupt('stopped; there is no commit yet')")
    assert [e.status for e in ended] == [130] * 3 and seconds < 10
    assert said(ended) == "stopped; there is no commit yet\n"
