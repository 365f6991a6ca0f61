"""One program for many ranks, and what each of them does of it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from shardflow.compiler.compilation import check_flow, choose_flow, compile_flow, load_source
from shardflow.compiler.passes.check.place import Target
from shardflow.compiler.plan import Instruction, Plan, Value, decode, encode, project
from shardflow.compiler.plan.spec import problems
from shardflow.compiler.plan.text import plan_text, rank_text

from .test_golden import FLOWS, REWARDS, without_hashes
from .workbench import Workbench, flow

Golden = Callable[[str, str], None]

ROOT = Path(__file__).parent.parent.parent
TEXT = FLOWS[: FLOWS.index("\nplace ")]
SPLIT = ("policy.update on nodes[0], fsdp={half}", "policy.generate on nodes[1]")


def compiled(path: Path, name: str | None = None, ranks: int = 4) -> Plan:
    source = load_source(path)
    return compile_flow(check_flow(source, choose_flow(source, name), {}, Target("multi", ranks)))


def placed(text: str, name: str, *lines: str) -> str:
    block = "".join(f"    {line}\n" for line in lines)
    return f"{text}\nplace {name} on cpu(nodes=2):\n{block}" if block else text


@dataclass(frozen=True)
class Laid:
    """Compiles flows of the acceptance set for many ranks."""

    bench: Workbench

    def __call__(self, name: str, *lines: str, ranks: int = 4) -> Plan:
        self.bench.write(REWARDS, "rewards.py")
        shown = (line.format(half=ranks // 2) for line in lines)
        return compiled(self.bench.write(placed(TEXT, name, *shown)), name, ranks)


@pytest.fixture
def laid(bench: Workbench) -> Laid:
    return Laid(bench)


# ---------------------------------------------------------------- as a person reads it


def example(bench: Workbench, name: str, *lines: str) -> Plan:
    """An example of the repository with another placement, four ranks of two nodes."""
    text = (ROOT / "examples" / f"{name}.flow").read_text(encoding="utf-8")
    bench.write("def right(text: str, answer: str) -> float:\n    return 0.0\n", "rewards.py")
    return compiled(bench.write(placed(text, name, *lines)), name)


def test_grpo_on_all_ranks(bench: Workbench, golden: Golden) -> None:
    golden("multi/grpo.txt", without_hashes(plan_text(example(bench, "grpo"))))


def test_ppo_of_the_library(golden: Golden) -> None:
    golden("multi/ppo.txt", without_hashes(plan_text(compiled(ROOT / "stdlib" / "ppo.flow"))))


def test_async_grpo_on_nodes_apart(bench: Workbench, golden: Golden) -> None:
    plan = example(bench, "async_grpo", "policy.update on nodes[0], fsdp=2", "policy.generate on nodes[1]")
    golden("multi/async_grpo.txt", without_hashes(plan_text(plan)))


def test_dapo_on_nodes_apart(laid: Laid, golden: Golden) -> None:
    plan = laid("dapo", *SPLIT)
    golden("multi/dapo.txt", without_hashes(plan_text(plan)))
    for rank in (0, 2):
        golden(f"multi/dapo_rank{rank}.txt", without_hashes(rank_text(project(plan, rank), rank)))


def test_a_reward_on_the_controller(laid: Laid, golden: Golden) -> None:
    plan = laid("grpo", *SPLIT, "reward on controller")
    golden("multi/grpo_controller.txt", without_hashes(plan_text(plan)))


# ---------------------------------------------------------------- its size


def without_numbers(plan: Plan) -> bytes:
    return re.sub(rb"\d+", b"0", encode(msgspec.structs.replace(plan, source="", hash="")))


@pytest.mark.parametrize("lines", [(), SPLIT, (*SPLIT, "reward on controller", "critic on nodes, dp={half}, fsdp=2")])
def test_a_plan_is_as_long_for_4_ranks_as_for_1024(laid: Laid, lines: tuple[str, ...]) -> None:
    few, many = (laid("ppo_adaptive", *(x for x in lines if "reward" not in x), ranks=n) for n in (4, 1024))
    assert len(few.walk()) == len(many.walk())
    assert len(few.groups) == len(many.groups) and len(few.meshes) == len(many.meshes)
    assert without_numbers(few) == without_numbers(many)


def test_one_rank_of_1024_does_what_one_of_4_does(laid: Laid) -> None:
    few, many = (laid("ppo_adaptive", *SPLIT, ranks=n) for n in (4, 1024))
    for one, other in ((0, 0), (1, 511), (2, 512), (3, 1023)):
        here, there = project(few, one), project(many, other)
        assert [i.op for i in here.walk()] == [i.op for i in there.walk()]


def test_the_same_input_gives_the_same_bytes(laid: Laid) -> None:
    assert encode(laid("ppo_adaptive", *SPLIT)) == encode(laid("ppo_adaptive", *SPLIT))


def test_a_plan_comes_back_from_its_file(laid: Laid) -> None:
    plan = laid("dapo", *SPLIT)
    assert decode(encode(plan)) == plan


# ---------------------------------------------------------------- what every plan keeps to

VALUES = {
    "ppo_adaptive": ("kls on controller", "adv on nodes[1]"),
    "grpo": ("reward on controller",),
    "dapo": ("right on controller", "adv with policy.generate"),
    "online_dpo": ("best on controller",),
    "async_tis": ("adv on controller", "w with policy.generate"),
    "evaluate": ("right on nodes[0]",),
}
"""Lines for values, by flow."""
PLACES: dict[str, tuple[str, ...]] = {
    "all": (),
    "sharded": ("policy.update on nodes, fsdp=2",),
    "split": SPLIT,
    "overlapping": ("policy.update on nodes, fsdp=2", "policy.generate on nodes[1]"),
    "values": SPLIT,
    "apart": ("policy.update on nodes[0]", "policy.logprobs on nodes[1]", "policy.generate on controller"),
}
CASES = [
    (name, place)
    for name in ("ppo_adaptive", "grpo", "dapo", "dpo", "online_dpo", "async_tis", "evaluate")
    for place in PLACES
]
BODIES = {
    "whole": "metric x = quantile(reward, 0.9)\nfirst = rank(reward)\nmetric y = mean(where(first == 0, reward, 0))",
    "two_passes": "update policy(adamw(lr=1e-6)):\n    l = policy.logprobs(rollout)\n"
    "    minimize -mean(exp(l - mean(l)) * reward)",
    "controlled": "state s = 0.5\nnext s = s * mean(reward)\nwhen s > 0.1:\n    metric x = s",
    "in_an_update": "model ref = frozen(policy)\nmodel rival = causal_lm('tiny')\n"
    "update rival(adamw(lr=1e-6)):\n    minimize -mean(rival.logprobs(rollout) * reward)\n"
    "update policy(adamw(lr=1e-6)):\n    best = keep(rollout, where=reward > mean(reward))\n"
    "    minimize -mean(policy.logprobs(best) * (ref.logprobs(best) - rival.logprobs(best)))",
    "swapped": "model a = frozen(policy)\nmodel b = frozen(policy)\nnext a = b\nnext b = a\n"
    "metric x = mean(a.logprobs(rollout) - b.logprobs(rollout))",
}


def phases_of(name: str, lines: tuple[str, ...]) -> list[str]:
    """The lines of a placement for phases that a flow has."""
    (body,) = re.findall(rf"^flow {name}\(.*?(?=^flow |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    outside = re.split(r"^    update policy", body, maxsplit=1, flags=re.MULTILINE)[0]
    known = {"update": "update policy" in body, "generate": "policy.generate" in body}
    known["logprobs"] = "policy.logprobs" in outside or "policy.logprobs" in body
    return [line for line in lines if known[line.split()[0].partition(".")[2]]]


@pytest.fixture(
    params=[*CASES, *((body, place) for body in BODIES for place in ("all", "split", "apart"))], ids="-".join
)
def plan(request: pytest.FixtureRequest, laid: Laid) -> Plan:
    """Plans of many shapes for four ranks, each compiled once."""
    if request.param not in _made:
        _made[request.param] = made(laid, *request.param)
    return _made[request.param]


_made: dict[tuple[str, str], Plan] = {}


def made(laid: Laid, name: str, place: str) -> Plan:
    lines = PLACES[place]
    if name not in BODIES:
        values = VALUES.get(name, ()) if place == "values" else ()
        return laid(name, *phases_of(name, lines), *values)
    body = BODIES[name].replace("'", '"')
    text = flow(body, update="update policy" not in body)
    return compiled(laid.bench.write(placed(text, "tune", *(line.format(half=2) for line in lines))), "tune")


Steps = list[Instruction]


def steps(plan: Plan) -> list[Steps]:
    """The instructions of each block of a plan, those in regions included: what runs ahead, what follows, the step."""
    blocks = [*(b for a in plan.ahead for b in (a.program, a.exchange)), plan.program]
    return [[x for i in block for x in i.walk()] for block in blocks]


def key(i: Instruction) -> tuple[str, ...]:
    """What tells an instruction from all others of its block."""
    return (i.op, i.out, *i.outs)


def ranks_of(plan: Plan, meshes: set[str]) -> set[int]:
    return {rank for m in plan.meshes if m.name in meshes for rank in m.ranks}


def members(plan: Plan) -> dict[str, set[int]]:
    """The ranks of each group."""
    return {g.name: ranks_of(plan, {*g.meshes}) for g in plan.groups}


def test_a_plan_holds_what_the_specification_allows(plan: Plan) -> None:
    assert problems(plan) == []


def test_together_the_ranks_do_everything_and_each_in_the_plans_order(plan: Plan) -> None:
    parts = [steps(project(plan, rank)) for rank in range(plan.ranks)]
    for number, block in enumerate(steps(plan)):
        order = {key(i): n for n, i in enumerate(block)}
        assert len(order) == len(block)
        places = [[order[key(i)] for i in part[number]] for part in parts]
        assert {n for part in places for n in part} == {*order.values()}
        assert all(a < b for part in places for a, b in pairwise(part))


def test_all_members_of_a_group_communicate_in_the_same_order(plan: Plan) -> None:
    """Why nothing deadlocks: in every group the same instructions wait for each other, and all ranks keep one order."""
    for name, ranks in members(plan).items():
        said = [
            [(n, key(i)) for n, block in enumerate(steps(project(plan, r))) for i in block if name in i.groups]
            for r in sorted(ranks)
        ]
        assert all(one == said[0] for one in said)


def test_who_communicates_is_in_the_group_and_who_is_in_the_group_communicates(plan: Plan) -> None:
    groups = members(plan)
    parts = [{key(i) for i in project(plan, rank).walk()} for rank in range(plan.ranks)]
    for i in plan.walk():
        talking = {rank for g in i.groups for rank in groups[g]}
        having = {rank for rank, part in enumerate(parts) if key(i) in part}
        if talking:
            assert having == talking, i.out


def test_a_region_is_run_by_all_who_have_a_part_in_it(plan: Plan) -> None:
    for rank in range(plan.ranks):
        for i in project(plan, rank).walk():
            assert i.op not in ("when", "every", "collect", "update") or i.body


def test_who_sends_and_who_receives(plan: Plan) -> None:
    parts = [{key(i): i for i in project(plan, rank).walk() if i.op == "move"} for rank in range(plan.ranks)]
    for i in (x for x in plan.walk() if x.op == "move"):
        sources, targets = ranks_of(plan, {i.attrs["source"]}), ranks_of(plan, {i.mesh})
        for rank, part in enumerate(parts):
            role = {(True, False): "send", (False, True): "receive", (True, True): "move", (False, False): None}[
                rank in sources, rank in targets
            ]
            assert (part[key(i)].attrs["role"] if key(i) in part else None) == role


def test_a_rank_has_every_value_that_it_reads(plan: Plan) -> None:
    """A rank of a projection computes from what it made or received itself."""
    for rank in range(plan.ranks):
        part = project(plan, rank)
        meshes = {m.name for m in part.meshes}
        made = {out for i in part.walk() for out in i.outs}
        for i in part.walk():
            reads = {a.ref for a in i.args.values() if isinstance(a, Value)}
            if i.op not in ("move", "share") and i.mesh in meshes:
                assert reads <= made, (rank, i.out)


def test_phases_run_where_their_weights_are(plan: Plan) -> None:
    held = {h.name: h.mesh for h in plan.holdings}
    for i in (x for x in plan.walk() if "micro" in x.attrs):
        assert held[i.attrs.get("holding", i.attrs["model"])] == i.mesh, i.out


def test_there_is_no_such_rank(laid: Laid) -> None:
    with pytest.raises(ValueError, match="this plan is for ranks 0 to 3"):
        project(laid("grpo"), 4)


def test_rows_that_come_as_others_were_dealt_find_those(plan: Plan) -> None:
    roots = {a.name: a.name for a in plan.axes}
    for a in plan.axes:
        roots[a.name] = roots[a.parent] if a.parent else a.name
    lies: dict[str, tuple[str, str, str]] = {}
    for i in plan.walk():
        axis = i.attrs.get("axis") if i.op == "move" else i.type.rstrip("]").partition("[")[2]
        lies |= {out: (roots.get(axis or "", ""), i.mesh, i.layout) for out in i.outs}
    kept = {lies[name] for a in plan.ahead for name in a.keeps}
    for block in steps(plan)[-1:]:
        for n, i in enumerate(block):
            if i.op == "move" and i.attrs["deal"] == "known":
                before = kept | {lies[out] for x in block[:n] for out in x.outs}
                assert (i.attrs["axis"], i.mesh, i.layout) in before, i.outs
