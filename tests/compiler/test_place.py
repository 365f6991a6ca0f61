"""Placement: what a target can't carry out is refused or warned of, and never ignored."""

import pytest

from shardflow.compiler.passes.check.degrees import nearest_legal
from shardflow.compiler.placement import Placement, Spot
from shardflow.compiler.plan import Plan

from .workbench import Workbench, flow

REF = "model ref = frozen(policy)\nadv = z(reward)\nmetric x = mean(ref.logprobs(rollout)) + mean(adv)"


def placed(cluster: str, *lines: str, body: str = "") -> str:
    return flow(body) + f"\nplace tune on {cluster}:\n" + "".join(f"    {line}\n" for line in lines)


def placement(bench: Workbench, text: str, ranks: int | None = None) -> Placement:
    return bench.checked(text, target="multi", ranks=ranks).placement


# ---------------------------------------------------------------- one process


@pytest.mark.parametrize(
    ("cluster", "line", "codes"),
    [
        ("local", "policy.update on local, micro=4096 tokens, checkpointing=true, compile=true", []),
        ("local", "policy.update on local, fsdp=1", []),
        ("local", "policy.update on local, fsdp=8", ["W0501"]),
        ("cpu", "policy.update on nodes[0], dp=2", ["W0501"]),
        ("local(devices=4)", "policy.update on local, fsdp=8", ["E0505"]),
        ("local", "policy.update on local, offload=true", ["E0114"]),
        ("local", "policy.update on local, offload=false", []),
        ("local", "policy.generate on local, engine=vllm", ["E0114"]),
        ("local(nodes=2, devices=8)", "policy.update on nodes[0], micro=4096 tokens", ["W0501"]),
        ("local(devices=4)", "policy.update on local", ["W0501"]),
        ("local(nodes=2)", "policy.update on nodes[1]", ["W0501"]),
        ("local(nodes=1)", "policy.update on local, micro=4096 tokens", []),
        ("local", "reward on controller", []),
        ("h100", "policy.update on nodes[0], tp=2, pp=2, fsdp=2", ["W0501"]),
        ("h100", "policy.update on nodes[0], tp=4", ["W0501"]),
        ("h100", "policy.update on nodes[0], tp=8", ["E0506"]),
        ("h100", "policy.update on nodes[0], tp=3", ["E0506"]),
        ("h100", "policy.update on nodes[0], pp=8", ["E0506"]),
    ],
)
def test_one_process(bench: Workbench, cluster: str, line: str, codes: list[str]) -> None:
    assert bench.codes(placed(cluster, line)) == codes


@pytest.mark.parametrize(
    ("cluster", "line", "what"),
    [
        ("h100(nodes=2)", "policy.update on nodes[0]", "16 h100 devices (2 nodes of 8)"),
        ("local(devices=4)", "policy.update on local", "4 local devices"),
        ("local(nodes=2)", "policy.update on local", "2 local nodes"),
        ("local", "policy.update on local, dp=2, fsdp=4", "dp=2 × fsdp=4 of `policy.update`"),
    ],
)
def test_one_process_says_what_it_does_not_carry_out(bench: Workbench, cluster: str, line: str, what: str) -> None:
    (found,) = bench.found(placed(cluster, line))
    assert found.message == f"one process runs this: what `place` says of {what} is checked, not carried out"


def test_the_nearest_degrees_that_fit_are_named(bench: Workbench) -> None:
    (found,) = bench.found(placed("h100", "policy on nodes[0], tp=3"))
    assert found.message == (
        "`tp=3` doesn't fit `policy`, which has 4 heads, 2 key-value heads and 4 tokens in its vocabulary"
    )
    assert found.help == "nearest that fit: `tp=2` or `tp=4`"


def test_legal_degrees() -> None:
    assert nearest_legal(8, lambda v: v <= 2) == [2]
    assert nearest_legal(3, lambda v: 12 % v == 0 and v != 2) == [1, 4]


def test_a_plan_is_the_same_without_a_placement_on_a_cluster(bench: Workbench) -> None:
    line = "policy.update on nodes[0], micro=4096 tokens, checkpointing=true, compile=true"
    with_it, without = bench.plan(placed("h100", line)), bench.plan(flow())
    assert with_it.program == without.program and with_it.meshes == without.meshes
    assert bench.plan(placed("local", line)).program != without.program


# ---------------------------------------------------------------- what a line places, whatever the target


@pytest.mark.parametrize("target", ["single", "multi"])
@pytest.mark.parametrize(
    ("lines", "code", "said"),
    [
        (["polcy.update on nodes"], "E0502", "`polcy` is neither a model nor a value"),
        (["policy.score on nodes"], "E0502", "`tune` runs no phase `policy.score`"),
        (["prompts on controller"], "E0502", "`prompts` has no place of its own: it is read wherever"),
        (["rollout on nodes"], "E0502", "it is computed where `policy.generate` runs"),
        (["logp on nodes"], "E0502", "it is computed in an update"),
        (["policy on nodes", "policy.update on nodes"], "E0503", "`policy.update` is placed twice"),
        (["reward on nodes", "reward on controller"], "E0503", "`reward` is placed twice"),
        (["ref on somewhere"], "E0504", "this names no devices"),
        (["ref on nodes[1]"], "E0505", "`nodes[1]` is outside this cluster: it has only nodes[0]"),
        (["ref on nodes[0:0]"], "E0505", "`nodes[0:0]` names no nodes"),
        (["ref with critic"], "E0502", "`critic` is neither"),
        (["ref with adv", "adv with ref"], "E0112", "`ref.logprobs` with `adv` with `ref.logprobs`: none of them"),
        (["ref with ref"], "E0112", "`ref.logprobs` with `ref.logprobs`"),
        (["reward on nodes, micro=64 tokens"], "E0114", "option `micro` of a value"),
        (["policy.generate on nodes, fsdp=2"], "E0114", "`fsdp` of a `generate`"),
        (["ref on nodes, checkpointing=true"], "E0114", "`checkpointing` of a phase that trains nothing"),
        (["policy.generate on nodes, compile=true"], "E0114", "`compile` of a phase that trains nothing"),
        (["policy.update on nodes, offload=true"], "E0114", "option `offload` is not supported"),
        (["policy.generate on nodes, engine=vllm"], "E0114", "option `engine` is not supported"),
        (["reward on nodes, micr=64 tokens"], "E0105", "has no option `micr`"),
        (["policy.update on nodes, dp=0"], "E0113", "option `dp` is at least 1"),
    ],
)
def test_a_line_is_refused(bench: Workbench, lines: list[str], code: str, said: str, target: str) -> None:
    body = REF + "\nupdate policy(adamw(lr=1e-6)):\n    logp = policy.logprobs(rollout)\n    minimize mean(logp * adv)"
    text = flow(body, update=False) + "\nplace tune on local:\n" + "".join(f"    {line}\n" for line in lines)
    (found,) = bench.found(text, target=target)
    assert found.code == code and said in found.message


# ---------------------------------------------------------------- many ranks


@pytest.mark.parametrize(
    ("cluster", "ranks", "line", "codes"),
    [
        ("local", 4, "policy.update on local, dp=2, fsdp=2, micro=64 tokens, checkpointing=true", []),
        ("h100(nodes=2)", None, "policy.update on nodes[0], fsdp=8", []),
        ("h100(nodes=2)", 16, "policy.update on nodes[0], fsdp=8", []),
        ("local", 4, "policy on nodes, fsdp=2", []),
        ("local", 4, "policy.update on nodes, dp=1, fsdp=3", []),
        ("local", 4, "policy.update on nodes, fsdp=3", ["E0505"]),
        ("local", 4, "policy.update on nodes, dp=3, fsdp=2", ["E0505"]),
        ("local(nodes=2)", 4, "policy.update on nodes[1], dp=3", ["E0505"]),
        ("local(nodes=2)", 5, "policy.update on nodes[1]", ["E0505"]),
        ("h100(nodes=2)", 4, "policy.update on nodes[0]", ["E0505"]),
        ("local(devices=2)", 4, "policy.update on local", ["E0505"]),
        ("local", 4, "policy.update on local, tp=2", ["E0114"]),
        ("local", 4, "policy.update on local, pp=2", ["E0114"]),
        ("h100", None, "policy.update on nodes, tp=2, pp=2", ["E0114", "E0114"]),
    ],
)
def test_many_ranks(bench: Workbench, cluster: str, ranks: int | None, line: str, codes: list[str]) -> None:
    assert bench.codes(placed(cluster, line), target="multi", ranks=ranks) == codes


@pytest.mark.parametrize(
    ("cluster", "ranks", "line", "message", "help"),
    [
        (
            "local", 6, "policy.update on nodes, fsdp=4",
            "`fsdp=4` doesn't divide the 6 ranks of `policy.update`",
            "nearest that do: `fsdp=3` or `fsdp=6`; or `dp=1` too, to use 4 of the 6",
        ),
        (
            "h100(nodes=2)", 4, "policy.update on nodes",
            "this cluster has 16 h100 devices (2 nodes of 8), but a plan for 4 ranks was asked for",
            "start 16 ranks (`flowrun --nproc 16`, `flowc --ranks 16`), or write `h100(nodes=2, devices=2)`",
        ),
        (
            "local(devices=2)", 1, "policy.update on nodes",
            "this cluster has 2 local devices, but a plan for 1 rank was asked for",
            "start 2 ranks (`flowrun --nproc 2`, `flowc --ranks 2`), or write `local(devices=1)`",
        ),
        (
            "cpu(nodes=2, devices=2)", 3, "policy.update on nodes[1]",
            "this cluster has 4 cpu devices (2 nodes of 2), but a plan for 3 ranks was asked for",
            "start 4 ranks (`flowrun --nproc 4`, `flowc --ranks 4`)",
        ),
        (
            "cpu(devices=4)", 3, "policy.update on nodes, fsdp=2",
            "this cluster has 4 cpu devices, but a plan for 3 ranks was asked for",
            "start 4 ranks (`flowrun --nproc 4`, `flowc --ranks 4`)",
        ),
        (
            "local(nodes=2)", 5, "policy.update on nodes",
            "5 ranks can't be the same number on each of 2 nodes",
            "ask for 4 or 6 ranks",
        ),
        (
            "local", 4, "policy.update on nodes, dp=4, fsdp=2",
            "dp=4 × fsdp=2 needs 8 devices, but this mesh has 4",
            "choose degrees whose product is at most 4",
        ),
        (
            "local", 4, "policy.update on nodes, tp=2",
            "option `tp` is not supported by `--target multi` by this version",
            "leave it out; a later version carries it out, and `fsdp=` shards weights today",
        ),
    ],
)  # fmt: skip
def test_a_refusal_has_numbers_and_the_nearest_legal_values(
    bench: Workbench, cluster: str, ranks: int, line: str, message: str, help: str
) -> None:
    (found,) = bench.found(placed(cluster, line), target="multi", ranks=ranks)
    assert (found.message, found.help) == (message, help)


def test_several_violations_are_reported_together(bench: Workbench) -> None:
    lines = ["policy.update on nodes[0], fsdp=3", "policy.generate on nodes[2]", "ref on nodes, dp=16, offload=true"]
    text = placed("h100(nodes=2, devices=4)", *lines, "adv on nodes, micro=64 tokens", body=REF)
    found = bench.found(text, target="multi", ranks=6)
    assert [d.code for d in found] == ["E0505", "E0505", "E0505", "E0505", "E0114", "E0114"]
    assert len({d.message for d in found}) == len(found)


# ---------------------------------------------------------------- where things come to be


def test_without_a_placement_every_phase_is_on_all_ranks(bench: Workbench) -> None:
    found = placement(bench, flow(), 4)
    assert found.spot("policy.update") == found.spot("policy.generate") == Spot(0, 4, 4)
    assert placement(bench, flow()).ranks == 8


@pytest.mark.parametrize(
    ("line", "spot"),
    [
        ("policy.update on nodes", Spot(0, 8, 8)),
        ("policy.update on nodes[1]", Spot(4, 4, 4)),
        ("policy.update on nodes[0:2], fsdp=2", Spot(0, 8, 4, 2)),
        ("policy.update on nodes[1], fsdp=4", Spot(4, 4, 1, 4)),
        ("policy.update on nodes[1], dp=2", Spot(4, 2, 2)),
        ("policy.update on nodes[1], dp=1, fsdp=2", Spot(4, 2, 1, 2)),
        ("policy.update on controller", Spot(0, 1, 1)),
    ],
)
@pytest.mark.parametrize(("cluster", "ranks"), [("cpu(nodes=2)", 8), ("a100(nodes=2, devices=4)", None)])
def test_a_line_becomes_ranks_and_degrees(
    bench: Workbench, cluster: str, ranks: int | None, line: str, spot: Spot
) -> None:
    assert placement(bench, placed(cluster, line), ranks).spots["policy.update"] == spot


@pytest.mark.parametrize(
    ("line", "phase", "spot"),
    [
        ("ref with policy.update", "ref.logprobs", Spot(2, 2, 1, 2)),
        ("ref with policy", "ref.logprobs", Spot(2, 2, 1, 2)),
        ("ref with policy.generate", "ref.logprobs", Spot(0, 2, 2)),
        ("adv with ref", "adv", Spot(0, 4, 4)),
        ("adv with policy.generate", "adv", Spot(0, 2, 2)),
        ("adv on controller", "adv", Spot(0, 1, 1)),
        ("adv on nodes[1]", "adv", Spot(2, 2, 2)),
    ],
)
def test_with_is_where_the_other_is(bench: Workbench, line: str, phase: str, spot: Spot) -> None:
    text = placed("cpu(nodes=2)", line, "policy.update on nodes[1], fsdp=2", "policy.generate on nodes[0]", body=REF)
    assert placement(bench, text, 4).spots[phase] == spot


def plan_of(bench: Workbench, *lines: str, body: str = REF) -> Plan:
    return bench.plan(placed("cpu(nodes=2)", *lines, body=body), target="multi", ranks=4)


def test_a_value_is_computed_where_its_line_says(bench: Workbench) -> None:
    plan = plan_of(bench, "adv on nodes[1]", "policy.generate on nodes[0]", "reward on controller")
    (adv,) = (i for i in plan.walk() if i.out == "adv")
    (reward,) = (i for i in plan.walk() if i.out == "reward")
    assert (adv.mesh, reward.mesh) == ("ranks2-3", "rank0")


def test_a_number_is_computed_where_its_line_says(bench: Workbench) -> None:
    plan = plan_of(
        bench, "best on nodes[1]", "half on controller", body="best = max(reward)\nhalf = best / 2\nmetric x = half"
    )
    made = {i.out: i.mesh for i in plan.walk()}
    assert (made["best"], made["half"]) == ("ranks2-3", "rank0")


def test_a_line_for_what_is_not_computed_is_warned_of(bench: Workbench) -> None:
    same = "a = mean(reward)\nb = mean(reward)\nmetric x = a + b"
    found = bench.found(placed("cpu", "b on controller", body=same), target="multi", ranks=2)
    assert [(d.code, d.message) for d in found] == [
        ("W0501", "this line has no effect: the compiled step computes nothing under the name `b`")
    ]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["policy.logprobs on controller"], ["`policy.logprobs`: it only runs within `policy.update`"]),
        (["policy.update on nodes, fsdp=2", "policy.logprobs on nodes"], ["`policy.logprobs`: it only runs within"]),
        (["policy.logprobs with policy.update"], []),
        (["policy on controller"], []),
        (["policy.update on nodes, fsdp=2"], []),
    ],
)
def test_a_phase_within_an_update_is_where_that_is(bench: Workbench, lines: list[str], said: list[str]) -> None:
    found = bench.found(placed("cpu", *lines), target="multi", ranks=2)
    assert [d.code for d in found] == ["W0501"] * len(said)
    assert all(part in d.message for part, d in zip(said, found, strict=True))


def test_options_of_a_phase_reach_its_instructions(bench: Workbench) -> None:
    plan = plan_of(bench, "policy.update on nodes, micro=64 tokens, compile=true", "ref on nodes, micro=32 tokens")
    (update,) = (i for i in plan.walk() if i.op == "update")
    (scored,) = (i for i in plan.walk() if i.attrs.get("model") == "ref")
    assert (update.attrs["micro"], update.attrs["compile"], scored.attrs["micro"]) == (64, True, 32)


def test_whole_weights_generate_where_the_model_is_sharded(bench: Workbench) -> None:
    plan = plan_of(bench, "policy on nodes, fsdp=2")
    held = {h.name: (h.dp, h.fsdp) for h in plan.holdings if h.model == "policy"}
    assert [*held.values()] == [(2, 2), (4, 1)]
    (drawn,) = (i for i in plan.walk() if i.op == "generate")
    assert held[drawn.attrs["holding"]] == (4, 1)
