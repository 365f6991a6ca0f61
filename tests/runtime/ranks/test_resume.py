"""Runs that go on elsewhere: a commit made in one layout, or by one process, is taken over by any other.

However often a run moves on its way, in float64 it computes what one process does without a break, to 1e-9; where it
stays in its layout, bit for bit.
"""

import argparse
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from shardflow.compiler.plan import Plan, encode
from shardflow.runtime.errors import RunError, RunWarning
from shardflow.runtime.ranks.world import World
from shardflow.runtime.run import run_plan

from ..test_flows import TEXT
from ..workshop import Result, Workshop, bit_equal, untimed
from .equivalence import Outcome, Tokens, alone, assert_same, compiled, together
from .pool import Pool


@dataclass(frozen=True)
class Flow:
    """A flow, and which models it has to place. generates: whether its policy also samples."""

    name: str
    text: str = TEXT
    trained: Sequence[str] = ("policy",)
    frozen: Sequence[str] = ()
    generates: bool = True
    params: Mapping[str, Any] = field(default_factory=lambda: {"data": "d.jsonl"})

    def plan(self, workshop: Workshop, where: str) -> Plan:
        """The plan for a place: `single`, or a layout and a number of ranks such as `fsdp 4`."""
        layout, _, ranks = where.partition(" ")
        if not ranks:
            return compiled(workshop.folder, self.text, self.name, None, **self.params)
        text = f"{self.text}\n{self._place(layout, int(ranks))}"
        return compiled(workshop.folder, text, self.name, int(ranks), **self.params)

    def _place(self, layout: str, ranks: int) -> str:
        half = ranks // 2
        update, frozen, generate = {
            "dp": (f"nodes, dp={ranks}", "nodes", "nodes"),
            "fsdp": (f"nodes, fsdp={ranks}", f"nodes, fsdp={ranks}", "nodes"),
            "mixed": (f"nodes, fsdp={half}, dp=2", "nodes", "nodes"),
            "split": (f"nodes[0], fsdp={half}", "nodes[1]", "nodes[1]"),
        }[layout]
        lines = [f"{model}.update on {update}" for model in self.trained]
        lines += [f"{model} on {frozen}" for model in self.frozen]
        lines += [f"policy.generate on {generate}"] if self.generates else []
        return f"place {self.name} on cpu(nodes=2, devices={half}):" + "".join(f"\n    {x}" for x in lines) + "\n"


STALE = """
import rewards
flow stale():
    model policy = causal_lm("p")
{draws}
    update policy(adamw(lr=1e-3), minibatch=3 prompts):
        minimize -mean(policy.logprobs(rollout) * (reward - mean(reward)))
    metric r = mean(reward)
"""
COLLECT = """
    collect(6 prompts, rounds=4):
        prompts = read("d.jsonl", batch=4 prompts)
        rollout = policy.generate(prompts, n=2, max_new_tokens=4, max_staleness=1)
        reward = rewards.share(rollout.text)
        bonus = exp(reward)
        keep prompts where prompts.answer != "0"
        metric unfiltered = mean(reward)
    metric bonus = mean(bonus)
"""
RANKED = COLLECT.replace("        keep", "        standing = rank(reward)\n        keep")
SHORT = COLLECT.replace("rounds=4", "rounds=2, short=skip").replace(
    'where prompts.answer != "0"', "where count(reward, by=prompt) * 0 + step != 2"
)
ENDS = COLLECT.replace("batch=4 prompts", "batch=4 prompts, epochs=1")
TWO = """
    prompts = read("d.jsonl", batch=6 prompts)
    rollout = policy.generate(prompts, n=2, max_new_tokens=4, max_staleness=2)
    other = policy.generate(prompts, n=3, max_new_tokens=4, max_staleness=1)
    reward = rewards.share(rollout.text) - mean(rewards.share(other.text), by=prompt)
"""

FLOWS = {
    "grpo": Flow("grpo", frozen=("ref",)),
    "ppo": Flow("ppo_adaptive", trained=("policy", "critic"), frozen=("ref", "rm")),
    "dapo": Flow("dapo"),
    "ema": Flow("ema_ref", frozen=("ref",)),
    "dpo": Flow("dpo", frozen=("ref",), generates=False),
    "stale 1": Flow("async_tis", TEXT.replace("max_staleness=2", "max_staleness=1")),
    "stale 2": Flow("async_tis"),
    "collect": Flow("stale", STALE.format(draws=COLLECT), params={}),
    "ranked": Flow("stale", STALE.format(draws=RANKED).replace("(reward - ", "(standing - "), params={}),
    "short": Flow("stale", STALE.format(draws=SHORT), params={}),
    "ends at once": Flow("stale", STALE.format(draws=ENDS.replace(", max_staleness=1", "")), params={}),
    "ends": Flow("stale", STALE.format(draws=ENDS), params={}),
    "two": Flow("stale", STALE.format(draws=TWO), params={}),
}


def run(
    workshop: Workshop, pool: Pool, flow: Flow, where: str, breaks_at: int | None = None, **options: Any
) -> Outcome:
    """Run the flow, or go on with it, at a place."""
    plan = flow.plan(workshop, where)
    if where == "single":
        return alone(workshop, plan, breaks_at, **options)
    return together(pool, workshop, plan, breaks_at, **options)


def moved(
    workshop: Workshop, pool: Pool, flow: Flow, places: Sequence[str], steps: int, dtype: str = "float64"
) -> Outcome:
    """A run of which each place makes one step, is at work on the next when it breaks off, and the last goes on."""
    tokens: Tokens = {}
    options: dict[str, Any] = {"steps": steps, "save_every": 1, "dtype": dtype, "out": workshop.out()}
    for made, where in enumerate(places):
        breaks_at = made + 1 if made + 1 < len(places) else None
        part = run(workshop, pool, flow, where, breaks_at, resume=made > 0, **options)
        for key, row in part.tokens.items():
            assert tokens.setdefault(key, row) == row, (where, key)
    return Outcome(part.result, tokens)


def assert_same_state(a: Result, b: Result) -> None:
    """What a commit holds beside tensors: states, the position in the data, and which draws wait."""
    assert a.meta["cursors"] == b.meta["cursors"]
    assert a.meta["states"] == pytest.approx(b.meta["states"], rel=1e-9)
    waiting = [{k: {*q} for k, q in r.meta["queues"].items()} for r in (a, b)]
    assert waiting[0] == waiting[1]


# ---------------------------------------------------------------- elsewhere

ROUTES = [
    ("grpo", ["single", "fsdp 4", "dp 2", "single"]),
    ("grpo", ["split 4", "mixed 4"]),
    ("ppo", ["mixed 4", "single", "split 4", "fsdp 2"]),
    ("dapo", ["split 2", "single", "fsdp 4"]),
    ("dpo", ["fsdp 2", "dp 4", "single"]),
    ("stale 1", ["single", "split 4", "single"]),
    ("stale 1", ["fsdp 2", "split 2", "mixed 4"]),
    ("stale 2", ["single", "fsdp 4", "single"]),
    ("stale 2", ["split 4", "single", "dp 2"]),
    ("collect", ["single", "split 4", "single"]),
    ("collect", ["fsdp 4", "single", "split 2"]),
    ("ranked", ["split 4", "single", "fsdp 2"]),
    ("short", ["fsdp 4", "single", "split 2"]),
    ("ends", ["split 2", "single", "fsdp 2"]),
    ("ends at once", ["split 4", "dp 2"]),
    ("ema", ["split 2", "single", "mixed 4"]),
    ("two", ["single", "split 2", "single"]),
    ("two", ["split 4", "dp 2", "single"]),
]


@pytest.mark.filterwarnings("ignore:.*was made with:shardflow.runtime.errors.RunWarning")
@pytest.mark.parametrize(("name", "places"), ROUTES, ids=[f"{n}: {', '.join(p)}" for n, p in ROUTES])
def test_a_run_moves_from_place_to_place(workshop: Workshop, pool: Pool, name: str, places: list[str]) -> None:
    flow, steps = FLOWS[name], len(places) + 1
    whole = run(workshop, pool, flow, "single", steps=steps)
    there = moved(workshop, pool, flow, places, steps)
    assert_same(whole, there)
    assert_same_state(whole.result, there.result)


# ---------------------------------------------------------------- in the same layout


def assert_equal(a: Outcome, b: Outcome) -> None:
    """To the last bit, queues included."""
    assert a.tokens == b.tokens
    assert untimed(a.result.metrics) == untimed(b.result.metrics)
    assert a.result.samples == b.result.samples
    assert bit_equal(a.result.state, b.result.state)
    assert a.result.meta == b.result.meta


SAME = [
    ("ppo", "fsdp 4", "float64"),
    ("dapo", "mixed 4", "float64"),
    ("collect", "fsdp 4", "float64"),
    ("ranked", "split 4", "float64"),
    ("two", "dp 2", "float64"),
    ("grpo", "fsdp 2", "bfloat16"),
    ("stale 2", "split 4", "float32"),
]


@pytest.mark.parametrize(("name", "where", "dtype"), SAME)
def test_in_the_same_layout_a_run_goes_on_bit_for_bit(
    workshop: Workshop, pool: Pool, name: str, where: str, dtype: str
) -> None:
    whole = run(workshop, pool, FLOWS[name], where, steps=4, dtype=dtype)
    assert_equal(whole, moved(workshop, pool, FLOWS[name], [where, where], 4, dtype=dtype))


# ---------------------------------------------------------------- longer than first meant

LONGER = Flow("stale", STALE.format(draws=TWO) + "    every 3 steps:\n        metric seen = mean(reward)\n", params={})


@pytest.mark.filterwarnings("ignore:.*was made with:shardflow.runtime.errors.RunWarning")
@pytest.mark.parametrize("places", [("fsdp 2", "fsdp 2"), ("single", "split 4"), ("split 4", "single")])
def test_a_run_is_made_longer(workshop: Workshop, pool: Pool, places: tuple[str, str]) -> None:
    """What was drawn ahead beyond the first end waits in the last commit."""
    first, second = places
    whole = run(workshop, pool, LONGER, second, steps=4)
    short = run(workshop, pool, LONGER, first, steps=2)
    longer = run(workshop, pool, LONGER, second, steps=4, out=short.result.out, resume=True)
    there = Outcome(longer.result, {**short.tokens, **longer.tokens})
    if first == second:
        assert_equal(whole, there)
    assert_same(whole, there)
    assert_same_state(whole.result, there.result)


# ---------------------------------------------------------------- what is said


def said(world: World, plan: bytes, args: argparse.Namespace) -> tuple[list[str], str]:
    """The warnings of one rank, and the error that ended its run."""
    error = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run_plan(plan, args, world)
        except RunError as found:
            error = str(found)
    return [str(w.message) for w in caught if w.category is RunWarning], error


def test_the_newest_commit_that_is_whole_counts(workshop: Workshop, pool: Pool) -> None:
    plan = FLOWS["two"].plan(workshop, "fsdp 2")
    whole = together(pool, workshop, plan, steps=3, save_every=1)
    out = workshop.out()
    shutil.copytree(whole.result.out, out)
    next((out / "commits" / "step-000003" / "tensors").glob("*.distcp")).write_bytes(b"")
    options = workshop.options(steps=3, save_every=1, out=out, resume=True)
    first, second = pool.run(said, encode(plan), options, ranks=2)
    assert first[0][0].startswith("Going back to the commit of step 2: step-000003 is damaged")
    assert len(first[0]) == 1 and second == ([], "")
    assert_equal(whole, Outcome(Result(out), whole.tokens))


def test_another_run_is_refused_by_all_ranks_alike(workshop: Workshop, pool: Pool) -> None:
    flow = FLOWS["stale 1"]
    made = run(workshop, pool, flow, "single", steps=1)
    other = Flow(flow.name, flow.text.replace("cap=2.0", "cap=3.0")).plan(workshop, "fsdp 2")
    options = workshop.options(steps=2, out=made.result.out, resume=True)
    (_, error), second = pool.run(said, encode(other), options, ranks=2)
    assert "is of another run: its `cap` is 2.0, this one's is 3.0" in error
    assert second == ([], error)


def test_another_number_of_ranks_is_told_once(workshop: Workshop, pool: Pool) -> None:
    """And nothing else is: functions, data and models are the same, wherever they are used."""
    flow = FLOWS["ppo"]
    made = run(workshop, pool, flow, "split 2", steps=1)
    plan = flow.plan(workshop, "split 4")
    options = workshop.options(steps=2, out=made.result.out, resume=True)
    told = pool.run(said, encode(plan), options)
    about_commit = [[text for text in texts if "head" not in text] for texts, _ in told]
    assert about_commit[1:] == [[], [], []] and len(about_commit[0]) == 1
    assert "step-000001 was made with 2 ranks, this run has 4 ranks: the last bits" in about_commit[0][0]
