"""Placement: what one local device can't do is refused; on a cluster all is checked, nothing carried out."""

import pytest

from shardflow.compiler.passes.check.degrees import nearest_legal

from .workbench import Workbench, flow


def placed(cluster: str, line: str) -> str:
    return flow() + f"\nplace tune on {cluster}:\n    {line}\n"


@pytest.mark.parametrize(
    ("cluster", "line", "codes"),
    [
        ("local", "policy.update on local, micro=4096 tokens, checkpointing=true, compile=true", []),
        ("local", "policy.update on local, fsdp=8", ["E0505"]),
        ("cpu", "policy.update on nodes[0], dp=2", ["E0505"]),
        ("local", "policy.update on local, offload=true", ["E0114"]),
        ("local", "policy.update on local, offload=false", []),
        ("local", "policy.generate on local, engine=vllm", ["E0114"]),
        ("local(nodes=2, devices=8)", "policy.update on nodes[0], micro=4096 tokens", ["E0114"]),
        ("local(nodes=1)", "policy.update on local, micro=4096 tokens", []),
        ("h100", "policy.update on nodes[0], tp=2, pp=2, fsdp=2", ["W0501"]),
        ("h100", "policy.update on nodes[0], tp=4", ["W0501"]),
        ("h100", "policy.update on nodes[0], tp=8", ["E0506"]),
        ("h100", "policy.update on nodes[0], tp=3", ["E0506"]),
        ("h100", "policy.update on nodes[0], pp=8", ["E0506"]),
    ],
)
def test_placement(bench: Workbench, cluster: str, line: str, codes: list[str]) -> None:
    assert bench.codes(placed(cluster, line)) == codes


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
