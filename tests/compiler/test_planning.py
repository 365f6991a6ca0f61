"""`--cluster`: from a flow to a placement, its plan, its explanation and its refusals."""

import json
from itertools import pairwise

import msgspec
import pytest

from shardflow.compiler.cli import main
from shardflow.compiler.plan import decode
from shardflow.compiler.search.decision import Decision

from .workbench import Workbench, flow

pytest.importorskip("ortools")

Output = pytest.CaptureFixture[str]
SMALL = ["--model", "policy=qwen2.5-0.5b", "--prompt-tokens", "64", "--response-tokens", "32,64"]


def run(capsys: Output, *args: str) -> tuple[int, str, str]:
    status = main(args)
    said = capsys.readouterr()
    return status, said.out, said.err


def placed(lines: str, cluster: str = "h100(devices=4)") -> str:
    return flow() + f"\nplace tune on {cluster}:\n" + "".join(f"    {line}\n" for line in lines.splitlines())


def decision(capsys: Output, *args: str) -> Decision:
    status, out, err = run(capsys, "compile", "--target", "multi", "--emit", "decision", *SMALL, *args)
    assert status == 0, err
    return msgspec.json.decode(out, type=Decision)


def test_a_flow_without_a_place_block_gets_a_plan(bench: Workbench, capsys: Output) -> None:
    path = str(bench.write(flow()))
    args = ["compile", path, "--target", "multi", "--cluster", "4xH100", "--runnable", *SMALL]
    status, out, _ = run(capsys, *args)
    plan = decode(out.encode())
    assert status == 0 and plan.ranks == 4 and not plan.demands
    assert run(capsys, *args)[1] == out
    (update,) = (i for i in plan.program if i.op == "update")
    found = msgspec.convert(plan.decision, Decision).phase("policy.update")
    assert (update.attrs["dp"], update.attrs["fsdp"]) == (found.layout.dp, found.layout.fsdp)
    assert update.attrs["micro"] == found.layout.micro


def test_the_meaning_of_a_plan_is_that_without_a_placement(bench: Workbench, capsys: Output) -> None:
    path = str(bench.write(flow()))
    _, out, _ = run(capsys, "compile", path, "--target", "multi", "--cluster", "4xH100", *SMALL)
    assert decode(out.encode()).meaning == bench.plan(flow()).meaning


def test_place_lines_are_wishes_that_hold(bench: Workbench, capsys: Output) -> None:
    path = str(
        bench.write(placed("policy.update on nodes, tp=2, fsdp=2, micro=4096 tokens\npolicy.generate on nodes, tp=1"))
    )
    found = decision(capsys, path, "--cluster", "4xH100")
    layout = found.phase("policy.update").layout
    assert (layout.tp, layout.fsdp, layout.micro) == (2, 2, 4096)
    assert found.phase("policy.generate").layout.tp == 1


@pytest.mark.parametrize(("slower", "number"), [("A100", 4), ("L40S", 2)])
@pytest.mark.parametrize("lines", ["", "policy.update on nodes[0], fsdp=4", "policy.generate on nodes, tp=2"])
def test_nothing_that_lost_is_faster(bench: Workbench, capsys: Output, slower: str, number: int, lines: str) -> None:
    """Lines that ask for what is slower than others rule out those, and nothing else."""
    both = f"h100(devices=4) + {slower.lower()}(devices={number})"
    path = str(bench.write(placed(lines, both) if lines else flow()))
    found = decision(capsys, path, "--cluster", f"4xH100+{number}x{slower}")
    assert found.optimal and all(a.by is None or a.by > -1e-4 for a in found.alternatives)
    for slot in found.slots:
        assert found.peak(slot.name) <= slot.memory


def test_more_nodes_are_no_slower(bench: Workbench, capsys: Output) -> None:
    """Whatever divides: fewer may be used than there are."""
    path = str(bench.write(flow()))
    periods = [decision(capsys, path, "--cluster", f"{n}x8xH100").period for n in (8, 17, 37)]
    assert periods[0] >= periods[1] * (1 - 1e-3) and periods[1] >= periods[2] * (1 - 1e-3)


def test_a_micro_batch_has_a_row_however_small_it_is(bench: Workbench, capsys: Output) -> None:
    path = str(bench.write(placed("policy.update on nodes, micro=8 tokens")))
    found = decision(capsys, path, "--cluster", "4xH100")
    (count,) = (q for q in found.arithmetic if q.name == "micro-batches of policy.update per rank")
    (rows,) = (q for q in found.arithmetic if q.name == "rows of the batch of policy.update per rank")
    assert count.value <= rows.value and "a row, which no micro cuts" in count.source


def test_an_engine_has_weights_of_its_own(bench: Workbench, capsys: Output) -> None:
    found = decision(capsys, str(bench.write(flow())), "--cluster", "4xH100", "--runnable")
    for slot in found.slots:
        kept = [x.memory.resident for x in found.on(slot.name)]
        assert sum(found.resident(slot.name).values()) == pytest.approx(sum(sum(r.values()) for r in kept))


def test_experts_are_cut_over_devices_and_never_where_runs_can_not(bench: Workbench, capsys: Output) -> None:
    path = str(bench.write(flow()))
    mixture = ["--model", "policy=qwen3-30b-a3b"]
    found = decision(capsys, path, "--cluster", "16xH100", *mixture)
    degrees = [x.layout.ep for x in found.phases]
    assert max(degrees) > 1 and all((x.layout.dp * x.layout.fsdp) % x.layout.ep == 0 for x in found.phases)
    _, out, _ = run(capsys, "compile", path, "--target", "multi", "--cluster", "16xH100", *SMALL, *mixture)
    assert "ep=" in str(decode(out.encode()).demands)
    runnable = decision(capsys, path, "--cluster", "32xH100", "--runnable", *mixture)
    assert {x.layout.ep for x in runnable.phases} == {1}


def test_lines_that_name_nodes_place_their_phases_there(bench: Workbench, capsys: Output) -> None:
    lines = "policy.update on nodes[1]\npolicy.generate on nodes[0]"
    path = str(bench.write(placed(lines, "h100(nodes=2, devices=2)")))
    found = decision(capsys, path, "--cluster", "2x2xH100")
    assert found.slot(found.phase("policy.update").slot).ranks == range(2, 4)
    assert found.slot(found.phase("policy.generate").slot).ranks == range(2)
    assert [t.kind for t in found.transfers if t.source != t.target and t.kind != "rows"] == ["weights"]


def test_a_plan_says_what_it_demands_of_a_run(bench: Workbench, capsys: Output) -> None:
    path = str(bench.write(placed("policy.update on nodes, tp=2")))
    _, out, _ = run(capsys, "compile", path, "--target", "multi", "--cluster", "4xH100", *SMALL)
    demands = decode(out.encode()).demands
    assert isinstance(demands, tuple) and "tp=2 of policy.update" in demands


def test_another_cluster_than_the_blocks_is_refused(bench: Workbench, capsys: Output) -> None:
    path = str(bench.write(placed("policy.update on nodes")))
    status, _, err = run(capsys, "compile", path, "--target", "multi", "--cluster", "8xH100", *SMALL)
    assert status == 1
    assert "`place` is on a cluster of 4 devices, but a placement on 8 was asked for" in err


def test_memory_that_does_not_fit_is_told_by_kind(bench: Workbench, capsys: Output) -> None:
    path = str(bench.write(flow()))
    args = ["--target", "multi", "--cluster", "2xH100", "--model", "policy=llama-3.1-70b"]
    status, _, err = run(capsys, "compile", path, *args)
    assert status == 1 and "E0507" in err
    for part in ("`policy.update` on 2 devices", "optimizer", "weights", "gradients", "a device has"):
        assert part in err


def test_a_line_for_which_memory_is_too_small_gets_the_nearest_that_fit(bench: Workbench, capsys: Output) -> None:
    path = str(bench.write(placed("policy.update on nodes, fsdp=1, tp=1, pp=1", "h100")))
    args = ["--target", "multi", "--cluster", "8xH100", "--model", "policy=qwen2.5-7b"]
    status, _, err = run(capsys, "compile", path, *args)
    assert status == 1 and "E0507" in err and "`policy.update` fits with" in err


def test_explain_tells_of_the_placement(bench: Workbench, capsys: Output) -> None:
    path = str(bench.write(flow()))
    status, out, _ = run(capsys, "explain", path, "--cluster", "4xH100", *SMALL)
    assert status == 0
    for part in (
        "placement on 4xH100: a step every",
        "bound",
        "gap",
        "policy.update",
        "lost",
        "batch",
        "space",
        "always",
    ):
        assert part in out
    _, out, _ = run(capsys, "explain", path, "--cluster", "4xH100", *SMALL, "--format", "json")
    found = msgspec.convert(json.loads(out)["placement"], Decision)
    assert found.gap <= 0.02 and found.bound <= found.period


def test_phases_of_a_slot_do_not_overlap_and_fit(bench: Workbench, capsys: Output) -> None:
    found = decision(capsys, str(bench.write(flow())), "--cluster", "4xH100")
    for slot in found.slots:
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(found.on(slot.name)))
        assert found.peak(slot.name) <= slot.memory
    assert max(x.end for x in found.phases) <= found.period + 1e-9


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cluster", "16xH100"], "`--cluster` places a plan for many ranks: give `--target multi` too"),
        (["--target", "multi", "--cluster", "16xH10"], "no device `H10`"),
        (["--target", "multi", "--cluster", "2xH100", "--ranks", "2"], "leave one out"),
        (["--target", "multi", "--model", "policy=llama-2-7b"], "`--model` is for a placement"),
        (["--target", "multi", "--cluster", "2xH100", "--model", "policy"], "isn't ROLE=MODEL"),
        (["--target", "multi", "--cluster", "2xH100", "--model", "judge=llama-2-7b"], "this flow has no model `judge`"),
        (["--target", "multi", "--cluster", "2xH100", "--model", "policy=lama-2-7b"], "isn't known"),
        (["--target", "multi", "--cluster", "2xH100", "--prompt-tokens", "many"], "it is a number of tokens"),
        (["--target", "multi", "--emit", "decision"], "`--emit decision` is of a placement"),
    ],
)
def test_options_that_can_not_be_are_refused(bench: Workbench, capsys: Output, options: list[str], said: str) -> None:
    status, out, err = run(capsys, "compile", str(bench.write(flow())), *options)
    assert (status, out) == (2, "") and said in err


def test_without_a_solver_it_says_how_to_get_one(
    bench: Workbench, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ortools.sat.python", None)
    path = str(bench.write(flow()))
    status, _, err = run(capsys, "compile", path, "--target", "multi", "--cluster", "2xH100", *SMALL)
    assert status == 2 and "pip install 'shardflow[plan]'" in err


def test_a_mean_above_the_longest_response_is_refused(bench: Workbench, capsys: Output) -> None:
    args = ["--cluster", "4xH100", "--model", "policy=qwen2.5-0.5b", "--response-tokens", "64,32"]
    status, _, err = run(capsys, "explain", str(bench.write(flow())), *args)
    assert status == 2 and "a mean of 64 is above the longest, 32" in err


def test_responses_above_the_flows_limit_are_told_of(bench: Workbench, capsys: Output) -> None:
    args = ["--cluster", "4xH100", "--model", "policy=qwen2.5-0.5b", "--response-tokens", "16,4096"]
    _, out, _ = run(capsys, "explain", str(bench.write(flow())), *args)
    assert "no response is longer than 32 tokens" in out


@pytest.mark.parametrize("command", [["simulate", "--steps", "2"], ["graph"], ["compile", "--target", "multi"]])
def test_planning_warns_of_no_files_it_does_not_need(bench: Workbench, capsys: Output, command: list[str]) -> None:
    path = str(bench.write(flow().replace("train.jsonl", "elsewhere.jsonl")))
    status, _, err = run(capsys, command[0], path, *command[1:], "--cluster", "4xH100", *SMALL)
    assert status == 0 and not err


def test_every_optimizer_step_has_a_micro_batch_on_each_rank(bench: Workbench, capsys: Output) -> None:
    text = flow().replace("update policy(adamw(lr=1e-6)", "update policy(adamw(lr=1e-6), minibatch=4 prompts, epochs=3")
    found = decision(capsys, str(bench.write(text)), "--cluster", "4xH100")
    numbers = {q.name: q for q in found.arithmetic}
    steps = numbers["optimizer steps of policy.update"].value
    count = numbers["micro-batches of policy.update per rank"]
    assert steps > 3 and count.value >= steps and count.value % steps == 0
    minibatch = numbers["minibatch of policy.update"].value
    data = found.phase("policy.update").layout.dp * found.phase("policy.update").layout.fsdp
    assert numbers["rows of a minibatch of policy.update per rank"].value == -(-minibatch // data)
    assert all(q.value == int(q.value) for q in numbers.values())


def test_explain_says_which_rows_move_and_for_whom(bench: Workbench, capsys: Output) -> None:
    lines = "policy.update on nodes[1]\npolicy.generate on nodes[0]"
    path = str(bench.write(placed(lines, "h100(nodes=2, devices=2)")))
    _, out, _ = run(capsys, "explain", path, "--cluster", "2x2xH100", *SMALL)
    (rows,) = (line for line in out.splitlines() if line.startswith("  rows"))
    assert "of policy.generate, ranks0-1 → ranks2-3" in rows and rows.endswith("for policy.update")
    assert " kB into a device in " in rows and "µs" in rows


def test_what_the_lines_rule_out_has_not_lost(bench: Workbench, capsys: Output) -> None:
    lines = "policy.update on nodes[1], tp=2\npolicy.generate on nodes[0]"
    path = str(bench.write(placed(lines, "h100(nodes=2, devices=2)")))
    lost = {a.what: a for a in decision(capsys, path, "--cluster", "2x2xH100").alternatives}
    assert lost["all phases on all devices"].why == "excluded by the `place` lines"
    assert not any(what.startswith("policy.update with") for what in lost)


def test_a_line_that_leaves_too_little_memory_is_told_with_how_many_are_enough(
    bench: Workbench, capsys: Output
) -> None:
    lines = "policy.update on nodes[0], fsdp=8\npolicy.generate on nodes[1]"
    path = str(bench.write(placed(lines, "h100(nodes=2)")))
    args = ["--cluster", "16xH100", "--model", "policy=llama-3.1-70b"]
    status, _, err = run(capsys, "explain", path, *args)
    assert status == 1 and "E0507" in err
    for part in ("`policy.update` on 8 devices", "optimizer 70.6 GB", "give `policy.update` 16 of these devices"):
        assert part in err


@pytest.mark.parametrize(
    ("degree", "code", "said", "help"),
    [
        ("tp=3", "E0506", "doesn't divide `qwen2.5-0.5b`, which has 14 heads", "nearest that fit: `tp=2`"),
        ("pp=64", "E0506", "doesn't fit `qwen2.5-0.5b`, which has 24 layers", "nearest that fit: `pp=24`"),
        ("fsdp=3", "E0505", "doesn't divide the 64 devices of `policy.update`", "`fsdp=2` or `fsdp=4`"),
    ],
)
def test_a_degree_that_can_not_be_is_told_with_the_nearest(
    bench: Workbench, capsys: Output, degree: str, code: str, said: str, help: str
) -> None:
    path = str(bench.write(placed(f"policy.update on nodes, {degree}", "h100(nodes=8)")))
    status, _, err = run(capsys, "explain", path, "--cluster", "64xH100", *SMALL)
    assert status == 1 and code in err and said in err and help in err


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("policy.update on nodes[0]\npolicy.generate on nodes", "overlap; groups of devices are the same or apart"),
        ("policy.generate on nodes, fsdp=4", "a placement gives engines whole weights"),
    ],
)
def test_lines_that_can_not_be_met_say_why(bench: Workbench, capsys: Output, lines: str, said: str) -> None:
    path = str(bench.write(placed(lines, "h100(nodes=2, devices=2)")))
    status, _, err = run(capsys, "explain", path, "--cluster", "2x2xH100", *SMALL)
    assert status == 1 and "E0508" in err and said in err
