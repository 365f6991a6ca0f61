"""The launcher, with a stand-in for the run: what it starts, what it says, and its exit status."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardflow.runtime import cli
from shardflow.runtime.ranks.address import parsed

from ..workshop import Result, Workshop
from . import standin

LAUNCH = """
import sys
from shardflow.runtime.ranks.launch import Nodes, start_ranks
sys.exit(start_ranks(sys.argv[3:], Nodes(int(sys.argv[1]), join_timeout=float(sys.argv[2]), NODES)))
"""


def launch(folder: Path, plan: str, ranks: int = 2, nodes: str = "", join: float = 120) -> "subprocess.Popen[str]":
    """The launcher as a process of its own, since it handles signals."""
    program = LAUNCH.replace(", NODES", f", {nodes}" if nodes else "")
    command = [sys.executable, "-c", program, str(ranks), str(join), *standin.write(folder, plan)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_ranks_run_and_end(tmp_path: Path) -> None:
    plan = "import os; os.write(1, f'{world.rank}/{world.size} '.encode())"  # in one piece
    (ended,) = standin.finish([launch(tmp_path, plan)])
    assert (ended.status, sorted(ended.out.split()), ended.err) == (0, ["0/2", "1/2"], "")


def test_two_nodes_meet(tmp_path: Path) -> None:
    endpoint = f"endpoint='127.0.0.1:{standin.free_port()}', nodes=2"
    plan = "import torch; print(int(world.channel('world').gather(torch.tensor([world.rank]), 'x').sum()))"
    (tmp_path / "b").mkdir()
    first = launch(tmp_path, plan, 1, f"{endpoint}, node=0")
    ended = standin.finish([first, launch(tmp_path / "b", plan, 1, f"{endpoint}, node=1")])
    assert [(e.status, e.out, e.err) for e in ended] == [(0, "1\n", "")] * 2


def test_a_node_that_finds_nobody_says_where_it_looked(tmp_path: Path) -> None:
    port = standin.free_port()
    (ended,) = standin.finish([launch(tmp_path, "", 1, f"endpoint='127.0.0.1:{port}', nodes=2, node=1", join=1)])
    assert ended.status == 1
    assert ended.err.startswith(f"flowrun: the 2 nodes haven't met at 127.0.0.1:{port} within 1 s (--join-timeout)")
    assert ended.err.count("\n") == 1


def test_a_node_waits_for_the_first_no_longer_than_it_says(tmp_path: Path) -> None:
    """`localhost` has addresses of two families where torch would wait for each."""
    began = time.monotonic()
    where = f"endpoint='localhost:{standin.free_port()}', nodes=2, node=1"
    (ended,) = standin.finish([launch(tmp_path, "", 1, where, join=5)])
    assert ended.status == 1 and "haven't met at localhost" in ended.err
    assert 5 <= time.monotonic() - began < 10


def test_a_failed_run_ends_with_its_error_and_one_line(tmp_path: Path) -> None:
    plan = """
import torch
from shardflow.runtime.errors import RunError
if world.rank == 1:
    raise RunError("no reward")
world.channel("world").add(torch.ones(1), "sum")
"""
    (ended,) = standin.finish([launch(tmp_path, plan)])
    assert ended.status == 1
    lines = [line for line in ended.err.splitlines() if "stopped, because" not in line]
    assert lines == ["error: rank 1 failed at the start:", "no reward", "flowrun: the run has failed"]


KILLED = """
import os, torch, pathlib
from shardflow.runtime.execution.stopping import stop_requests
with stop_requests(world.rank, world.size, lambda: world.is_ending):
    pathlib.Path(FOLDER, str(world.rank)).write_text(str(os.getpid()))
    while True:
        world.channel("world").add(torch.ones(1), "sum")
"""


def test_a_killed_rank_ends_the_run_within_seconds(tmp_path: Path) -> None:
    process = launch(tmp_path, KILLED.replace("FOLDER", repr(str(tmp_path))), 3)
    pids = [int(_content(tmp_path / str(rank))) for rank in range(3)]
    time.sleep(1)
    os.kill(pids[1], signal.SIGKILL)
    killed = time.monotonic()
    (ended,) = standin.finish([process])
    assert time.monotonic() - killed < 10
    assert ended.status == 1 and ended.err.endswith("flowrun: the run has failed: rank 1 was ended by SIGKILL\n")
    assert "stopping after this step" not in ended.err  # although the launcher signals the survivors
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_step_end(tmp_path: Path, number: signal.Signals) -> None:
    plan = f"""
import pathlib, time
from shardflow.runtime.execution.stopping import Stopped, stop_requests
with stop_requests(world.rank, world.size) as stopping:
    pathlib.Path({str(tmp_path)!r}, str(world.rank)).write_text("here")
    while not stopping():
        time.sleep(0.05)
    time.sleep(0.5)
    pathlib.Path({str(tmp_path)!r}, f"commit{{world.rank}}").touch()
    raise Stopped(3)
"""
    process = launch(tmp_path, plan)
    for rank in range(2):
        _content(tmp_path / str(rank))
    process.send_signal(number)
    (ended,) = standin.finish([process])
    assert "stopping after this step" not in ended.err  # it has stopped before that would have been said
    assert ended.status == 130 and (tmp_path / "commit0").exists() and (tmp_path / "commit1").exists()
    assert ended.err.count("stopped after 3 steps") == 1
    assert ended.err.endswith(f"flowrun: stopped by {number.name}\n")


def _content(path: Path) -> str:
    """What a rank writes once it has come so far."""
    deadline = time.monotonic() + 120
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return path.read_text()


# ---------------------------------------------------------------- real runs

FLOW = """
import rewards
flow f():
    model policy = causal_lm("p")
    d = read("d.jsonl", batch=4 prompts)
    rollout = policy.generate(d, n=2, max_new_tokens=3)
    reward = rewards.told(rollout.text)
    update policy(adamw(lr=1e-3)):
        minimize -mean(policy.logprobs(rollout) * (reward - mean(reward)))
"""
TOLD = """
import os
def told(text: str) -> float:
    return len(text) / 8
"""
RAISES = (
    TOLD
    + """
def told(text: str) -> float:
    return 1 / (1 - int(os.environ["RANK"]))
"""
)


def run(shop: Workshop, command: list[str], reward: str = TOLD, flow: str = FLOW) -> standin.Ended:
    """Run a flow by a command line, in the folder where its models are."""
    (shop.folder / "rewards.py").write_text(reward)
    (shop.folder / "f.flow").write_text(flow)
    pipe, env = subprocess.PIPE, {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=shop.folder, stdout=pipe, stderr=pipe, text=True, env=env)
    return standin.finish([process], 150)[0]


FLOWRUN = [sys.executable, "-m", "shardflow.runtime.cli", "f.flow", "--target", "multi", "--nproc", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ONE_STEP = ["--steps", "1", "--out", "out", "--no-tensorboard"]


def test_flowrun_runs_a_flow_on_many_ranks(workshop: Workshop) -> None:
    ended = run(workshop, [*FLOWRUN, *ONE_STEP])
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("Finished 1 step") == 1
    assert len(Result(workshop.folder / "out").metrics) == 1


def test_torchrun_runs_a_flow_which_rank_0_compiles(workshop: Workshop) -> None:
    ended = run(workshop, [*TORCHRUN, "-m", "shardflow.runtime", "f.flow", *ONE_STEP])
    assert ended.status == 0, ended.err
    assert ended.out.count("Finished 1 step") == 1


def test_a_reward_that_raises_on_one_rank_is_told_as_in_one_process(workshop: Workshop) -> None:
    ended = run(workshop, [*FLOWRUN, *ONE_STEP], RAISES)
    assert ended.status == 1
    assert ended.err.startswith("error: rank 1 failed at step 0")
    assert "reward: rewards.told raised ZeroDivisionError" in ended.err
    assert "    rewards.py:7, in told" in ended.err
    assert ended.err.endswith("flowrun: the run has failed\n")


def test_a_flow_that_is_refused_starts_nothing(workshop: Workshop) -> None:
    ended = run(workshop, [*FLOWRUN, *ONE_STEP], flow=FLOW.replace("reward - mean", "rewerd - mean"))
    assert ended.status == 2 and "rewerd" in ended.err and "flowrun:" not in ended.err


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nproc", "2"], "--nproc is for runs of many ranks: give --target multi too"),
        (["--rdzv-id", "x"], "--rdzv-id is for runs of many ranks: give --target multi too"),
        (["--target", "multi"], "--target multi needs --nproc, the number of ranks on this node"),
        (["--target", "multi", "--nproc", "0"], "--nproc is at least 1, not 0"),
        (["--target", "multi", "--nproc", "2", "--nnodes", "2"], "--nnodes needs --rdzv-endpoint HOST:PORT"),
        (["--target", "multi", "--nproc", "2", "--node-rank", "1"], "--node-rank is from 0 to 0 on 1 nodes, not 1"),
        (["--timeout", "0"], "--timeout is more than 0 seconds, not 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    (tmp_path / "a.flow").write_text("")
    assert cli.main([str(tmp_path / "a.flow"), *options]) == 2
    assert capsys.readouterr().err.startswith(f"flowrun: {said}")


@pytest.mark.parametrize(
    "endpoint", ["localhost:http", "29500", "foo", "node0:", ":29500", "node0:0", "node0:65536", "::1:29500", "a b:1"]
)
def test_an_endpoint_is_a_host_and_a_port(tmp_path: Path, capsys: pytest.CaptureFixture[str], endpoint: str) -> None:
    (tmp_path / "a.flow").write_text("")
    options = ["--target", "multi", "--nproc", "1", "--nnodes", "2", f"--rdzv-endpoint={endpoint}"]
    assert cli.main([str(tmp_path / "a.flow"), *options]) == 2
    said = capsys.readouterr().err
    assert f"--rdzv-endpoint `{endpoint}`" in said and said.endswith("write HOST:PORT, such as node0:29500\n")


def test_an_endpoint_may_be_an_ipv6_address() -> None:
    assert parsed("[fe80::1]:29500") == ("fe80::1", 29500)
    assert parsed("node-0.lan:1") == ("node-0.lan", 1)


def test_a_host_that_is_not_known_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.flow").write_text("")
    options = ["--target", "multi", "--nproc", "1", "--nnodes", "2", "--rdzv-endpoint", "nowhere.invalid:29500"]
    assert cli.main([str(tmp_path / "a.flow"), *options]) == 1
    said = "flowrun: --rdzv-endpoint names a host that isn't known here, `nowhere.invalid`"
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("target", "ranks", "options", "said"),
    [
        ("multi", 4, ["--nproc", "2"], "give `--target multi --nproc 4`, or compile the flow again with `--target"),
        ("single", 1, ["--nproc", "2"], "this plan is for one process"),
        (
            "multi", 4, ["--nproc", "4", "--nnodes", "2", "--rdzv-endpoint", "localhost:29500"],
            "this plan is for 4 ranks, not for 8: give `--target multi --nproc 2` on each of the 2 nodes",
        ),
    ],
)  # fmt: skip
def test_a_plan_for_other_ranks_starts_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, ranks: int, options: list[str], said: str
) -> None:
    (tmp_path / "m.json").write_text(json.dumps({"target": target, "ranks": ranks}))
    assert cli.main([str(tmp_path / "m.json"), "--target", "multi", *options]) == 2
    assert said in capsys.readouterr().err


def test_gpus_that_are_not_here_start_no_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.json").write_text(json.dumps({"target": "multi", "ranks": 4}))
    command = [str(tmp_path / "m.json"), "--target", "multi", "--nproc", "4", "--device", "cuda"]
    monkeypatch.setattr("shardflow.runtime.ranks.launch._quieten", lambda: None)  # this process has other tests
    for count, said in (
        (0, "--device cuda isn't here; this machine has cpu and no GPU"),
        (2, "takes a GPU for each rank of a node, here at least 4; this machine has 2 GPUs (cuda:0, cuda:1)"),
    ):
        monkeypatch.setattr("torch.cuda.device_count", lambda count=count: count)
        assert cli.main(command) == 1
        assert said in capsys.readouterr().err


def test_one_rank_alone_says_how_ranks_are_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardflow.runtime import __main__ as rank

    monkeypatch.delenv("RANK", raising=False)
    (tmp_path / "a.flow").write_text("")
    assert rank.main([str(tmp_path / "a.flow")]) == 2
    assert "start them by `flowrun FLOW --target multi --nproc N` or by `torchrun" in capsys.readouterr().err
