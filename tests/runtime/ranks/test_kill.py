"""`kill -9` of ranks: all of them end within seconds, and go on from the last commit as if nothing had happened.

The test that kills again and again has its own marker, `pytest -m kill`: it starts the ranks more than twenty times.
"""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shardflow.runtime.commits import CommitStore

from ..workshop import Result, Workshop, bit_equal, untimed
from .equivalence import compiled, together
from .pool import Pool

FLOW = """
import rewards
flow killed():
    model policy = causal_lm("p")
    prompts = read("d.jsonl", batch=4 prompts)
    rollout = policy.generate(prompts, n=2, max_new_tokens=3, max_staleness=1)
    reward = rewards.share(rollout.text)
    update policy(adamw(lr=1e-3), minibatch=2 prompts):
        minimize -mean(policy.logprobs(rollout) * (reward - mean(reward)))
place killed on cpu(nodes=2, devices=1):
    policy.update on nodes, fsdp=2
    policy.generate on nodes
"""
_RANKS = 2
_END = 10.0  # seconds within which a set ends
_WAIT = 240.0  # seconds for a set to come where it is killed, or to its end, its imports included


@dataclass
class Launched:
    """A run that flowrun started, and every process that belongs to it."""

    out: Path
    log: Path
    process: "subprocess.Popen[bytes]"
    mark: str
    commits: int = field(init=False)

    def __post_init__(self) -> None:
        self.commits = newest(self.out)

    def processes(self) -> dict[int, dict[str, str]]:
        """The environments of its living processes, by their ids: they inherit its mark."""
        found: dict[int, dict[str, str]] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                entries = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:  # it has ended, or is another user's
                continue
            if f"MARK={self.mark}" in entries:
                found[int(folder.name)] = dict(e.partition("=")[::2] for e in entries if "=" in e)
        return found

    def ranks(self) -> dict[int, int]:
        """The processes of its ranks, once all are there; they have no children of their own."""
        found = {int(e["RANK"]): pid for pid, e in self.processes().items() if "RANK" in e}
        return found if len(found) == _RANKS else {}

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for that, or for the end of the run."""
        deadline = time.monotonic() + _WAIT
        while self.process.poll() is None and not condition():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.005)

    def kill(self, victims: set[int]) -> None:
        """End some of its ranks, without a word."""
        pids = self.ranks()
        for rank in victims & pids.keys():
            os.kill(pids[rank], signal.SIGKILL)

    def ended(self) -> int:
        """Its exit status; within seconds nothing of it is left."""
        deadline = time.monotonic() + _END
        while self.process.poll() is None or self.processes():
            assert time.monotonic() < deadline, f"{self.processes().keys()} are left:\n{self.said()}"
            time.sleep(0.05)
        return self.process.returncode

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


class Launcher:
    """Starts the flow, or goes on with it, and leaves no process behind."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps = folder, steps
        self._runs: list[Launched] = []
        (folder / "f.flow").write_text(FLOW)

    def __call__(self) -> Launched:
        out, mark = self._folder / "out", uuid.uuid4().hex
        options = ["--target", "multi", "--nproc", str(_RANKS), "--steps", str(self._steps), "--save-every", "1"]
        options += ["--dtype", "float64", "--no-tensorboard", "--out", str(out)]
        options += ["--resume"] if (out / "metrics.jsonl").exists() else []
        log = self._folder / f"log{len(self._runs)}"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "shardflow.runtime.cli", "f.flow", *options],
                cwd=self._folder,
                stdout=stream,
                stderr=stream,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MARK": mark},
            )
        self._runs.append(Launched(out, log, process, mark))
        return self._runs[-1]

    def close(self) -> None:
        for run in self._runs:
            run.close()


@pytest.fixture
def launcher(workshop: Workshop, request: pytest.FixtureRequest) -> Iterator[Launcher]:
    made = Launcher(workshop.folder, request.param)
    yield made
    made.close()


def newest(out: Path) -> int:
    """The steps that the newest commit holds; it is whole, and so is every other."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        commit = CommitStore(out).latest()
    return commit.step if commit else 0


def assert_unharmed(pool: Pool, workshop: Workshop, out: Path, steps: int) -> None:
    """The run is what it is when nobody kills it."""
    plan = compiled(workshop.folder, FLOW, "killed", _RANKS)
    expected, found = together(pool, workshop, plan, steps=steps).result, Result(out)
    assert untimed(found.metrics) == untimed(expected.metrics)
    assert found.samples == expected.samples
    assert bit_equal(found.state, expected.state)
    assert found.meta == expected.meta


# ---------------------------------------------------------------- once


@pytest.mark.parametrize("launcher", [6], indirect=True)
def test_a_run_goes_on_after_one_rank_was_killed(launcher: Launcher, pool: Pool, workshop: Workshop) -> None:
    run = launcher()
    run.until(lambda: (run.out / "commits" / "step-000002").exists())
    run.kill({1})
    assert run.ended() == 1
    assert run.said().endswith("flowrun: the run has failed: rank 1 was ended by SIGKILL\n")
    done = newest(run.out)
    assert 2 <= done < 6
    again = launcher()
    again.until(lambda: False)
    assert again.ended() == 0, again.said()
    assert_unharmed(pool, workshop, run.out, 6)


@pytest.mark.kill
@pytest.mark.parametrize("launcher", [60], indirect=True)
def test_ranks_end_with_their_launcher(launcher: Launcher) -> None:
    run = launcher()
    run.until(lambda: (run.out / "commits" / "step-000002").exists())
    run.process.kill()
    assert run.ended() == -signal.SIGKILL
    assert newest(run.out) < 60


# ---------------------------------------------------------------- again and again

KILLS = 20
STEPS = 50  # more than are made between kills


def starting(run: Launched, rng: random.Random) -> None:
    """Some moment from the first line of Python to the first commit."""
    run.until(run.ranks)
    _wait(run, rng.uniform(0, 8), 1)


def in_a_step(run: Launched, rng: random.Random) -> None:
    """Some moment of a step, or of its commit."""
    run.until(lambda: _commits(run.out) > run.commits)
    _wait(run, rng.uniform(0, 0.5), 2)


def _wait(run: Launched, seconds: float, commits: int) -> None:
    """So many seconds, or until it has made so many commits."""
    end = time.monotonic() + seconds
    run.until(lambda: time.monotonic() > end or _commits(run.out) >= run.commits + commits)


def in_a_commit(run: Launched, rng: random.Random) -> None:
    """While the ranks write, which takes a few hundredths of a second, or soon after."""
    run.until(lambda: _commits(run.out) > run.commits)
    run.until(lambda: (run.out / "commits" / f"step-{_commits(run.out) + 1:06d}.tmp").exists())
    time.sleep(rng.uniform(0, 0.05))


def _commits(out: Path) -> int:
    """As `newest`, of a run that is at work: by the names alone."""
    names = [p.name for p in (out / "commits").glob("step-??????")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


MOMENTS = (starting, in_a_step, in_a_commit, in_a_commit)
VICTIMS = ({0}, {1}, {0, 1})


@pytest.mark.kill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("launcher", [STEPS], indirect=True)
def test_ranks_are_killed_again_and_again(launcher: Launcher, pool: Pool, workshop: Workshop) -> None:
    rng, done = random.Random(0), 0
    for number in range(KILLS):
        run, moment, victims = launcher(), rng.choice(MOMENTS), rng.choice(VICTIMS)
        moment(run, rng)
        run.kill(victims)
        started = time.monotonic()
        status = run.ended()
        before, done = done, newest(run.out)
        print(f"{number}: {moment.__name__}, {victims}: {status} after {time.monotonic() - started:.1f} s, step {done}")
        assert status == 1 and before <= done < STEPS, run.said()
    last = launcher()
    last.until(lambda: False)
    assert last.ended() == 0, last.said()
    assert_unharmed(pool, workshop, last.out, STEPS)
