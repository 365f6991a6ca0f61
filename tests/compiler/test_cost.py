"""The cost model: what must hold whatever its constants are, published volumes, collectives."""

from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardflow.compiler.cluster import PRESETS, Device, Slice, parse_cluster
from shardflow.compiler.cost import (
    DEFAULT,
    KINDS,
    Batch,
    Constants,
    CostError,
    Forward,
    Generate,
    Layout,
    Lengths,
    Reshard,
    Train,
    Work,
    counts,
    described,
    host_seconds,
    move_bytes,
    move_seconds,
    phase_cost,
    read_profile,
    reshard_bytes,
    reshard_seconds,
    write_profile,
)
from shardflow.compiler.cost.collectives import Group, all_gather, all_reduce, all_to_all, deal, send
from shardflow.compiler.cost.queue import decode_profile
from shardflow.compiler.shapes import KNOWN, ModelShape

SMALL, LLAMA, SPARSE = KNOWN["qwen2.5-0.5b"], KNOWN["llama-3.1-8b"], KNOWN["qwen3-30b-a3b"]
H100 = PRESETS["h100"]
BATCH = Batch.of(512, 200, Lengths(900, 4096))
WORKS: tuple[Work, ...] = (Train(BATCH, 4), Forward(BATCH), Generate(512, 200, Lengths(900, 4096)))
LAYOUTS = (
    Layout(dp=16),
    Layout(fsdp=16, recompute="full"),
    Layout(tp=4, dp=2, pp=2, recompute="selective", chunks=2),
    Layout(tp=2, fsdp=2, dp=2, cp=2),
    Layout(dp=16, shared_optimizer=True, compiled=True),
)

works = st.sampled_from(WORKS)
layouts = st.sampled_from(LAYOUTS)
shapes = st.sampled_from((SMALL, LLAMA, SPARSE, KNOWN["deepseek-v3"]))


def devices_of(device: Device, layout: Layout, per_node: int = 8) -> Slice:
    return Slice(device, layout.devices, min(per_node, layout.devices))


# ---------------------------------------------------------------- what must hold


@given(works, layouts, shapes)
@settings(max_examples=60, deadline=None)
def test_parts_and_kinds_sum_to_their_totals(work: Work, layout: Layout, shape: ModelShape) -> None:
    cost = phase_cost(shape, work, layout, devices_of(H100, layout))
    assert cost.seconds == pytest.approx(sum(cost.parts.values())) and min(cost.parts.values()) >= 0
    memory = cost.memory
    assert memory.total == pytest.approx(sum(getattr(memory, kind) for kind in KINDS))
    assert memory.total == pytest.approx(memory.resident + memory.transient)
    assert {f.name for f in fields(memory)} == set(KINDS)


FASTER = ("flops", "bandwidth", "link", "nic")


@given(works, layouts, shapes, st.sampled_from(FASTER), st.floats(1.01, 8))
@settings(max_examples=120, deadline=None)
def test_a_faster_device_never_makes_a_phase_slower(
    work: Work, layout: Layout, shape: ModelShape, figure: str, times: float
) -> None:
    faster = replace(H100, **{figure: getattr(H100, figure) * times})
    before = phase_cost(shape, work, layout, devices_of(H100, layout)).seconds
    assert phase_cost(shape, work, layout, devices_of(faster, layout)).seconds <= before * (1 + 1e-9)


WIDER = {
    "tp": lambda n: Layout(tp=n),
    "pp": lambda n: Layout(pp=n),
    "fsdp": lambda n: Layout(fsdp=n),
    "dp": lambda n: Layout(dp=n),
    "cp": lambda n: Layout(cp=n),
    "ep": lambda n: Layout(dp=16, ep=n),
    "ep of fsdp": lambda n: Layout(fsdp=16, ep=n),
}


@pytest.mark.parametrize("axis", WIDER)
@pytest.mark.parametrize("shape", [LLAMA, SPARSE, KNOWN["llama-3.2-1b"]], ids=lambda s: s.name)
def test_more_devices_never_increase_what_one_holds(axis: str, shape: ModelShape) -> None:
    def held(degree: int) -> tuple[float, float]:
        layout = WIDER[axis](degree)
        memory = phase_cost(shape, Train(BATCH, 4), layout, devices_of(H100, layout)).memory
        return memory.weights, memory.weights + memory.gradients + memory.optimizer

    amounts = [held(degree) for degree in (1, 2, 4, 8, 16)]
    assert all(more[0] <= less[0] and more[1] <= less[1] for less, more in pairwise(amounts))


@pytest.mark.parametrize("work", WORKS, ids=lambda w: type(w).__name__)
def test_one_device_communicates_nothing(work: Work) -> None:
    cost = phase_cost(LLAMA, work, Layout(), Slice(H100, 1, 1))
    assert cost.communication == 0 and cost.parts.get("bubble", 0) == 0


@pytest.mark.parametrize("sequences", [64, 512, 4096])
@pytest.mark.parametrize("shape", [LLAMA, SPARSE], ids=lambda s: s.name)
def test_a_longer_tail_never_generates_faster(sequences: int, shape: ModelShape) -> None:
    def seconds(lengths: Lengths) -> float:
        return phase_cost(shape, Generate(sequences, 200, lengths), Layout(dp=8), Slice(H100, 8, 8)).seconds

    spreads = [seconds(Lengths(600, 4096, spread)) for spread in (0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)]
    assert all(a <= b * 1.001 for a, b in pairwise(spreads))
    maxima = [seconds(Lengths(600, maximum, 0.8)) for maximum in (700, 1000, 2000, 4000, 8000)]
    assert all(a <= b * 1.001 for a, b in pairwise(maxima))
    assert spreads[-1] > 1.3 * spreads[0]


def test_recomputing_takes_time_and_gives_room() -> None:
    costs = [
        phase_cost(LLAMA, Train(BATCH, 4), Layout(fsdp=8, recompute=level), Slice(H100, 8, 8))
        for level in ("none", "selective", "full")
    ]
    assert [c.seconds for c in costs] == sorted(c.seconds for c in costs)
    kept = [c.memory.activations for c in costs]
    assert kept == sorted(kept, reverse=True) and kept[0] > 3 * kept[2]
    assert 1.2 < costs[2].parts["compute"] / costs[0].parts["compute"] < 1.36


def test_a_pipeline_waits_as_published() -> None:
    """1F1B: (p-1)/m of the ideal time; interleaved: (p-1)/(v·m) (2104.04473, section 2.2)."""
    work = Train(Batch.fixed(64, 1024))
    for chunks in (1, 2, 4):
        layout = Layout(pp=4, chunks=chunks, micro=1024)
        parts = phase_cost(LLAMA, work, layout, Slice(H100, 4, 4)).parts
        ideal = sum(v for k, v in parts.items() if k in ("compute", "memory", "launch"))
        assert parts["bubble"] / ideal == pytest.approx(3 / 64 / chunks)


def test_smaller_micro_batches_need_less_and_take_no_less() -> None:
    layouts = [Layout(fsdp=8, micro=m) for m in (2048, 8192, 16384)]
    costs = [phase_cost(LLAMA, Train(BATCH, 4), layout, Slice(H100, 8, 8)) for layout in layouts]
    assert [c.memory.activations for c in costs] == sorted(c.memory.activations for c in costs)
    assert costs[0].seconds >= costs[1].seconds >= costs[2].seconds


def test_experts_over_engines_leave_room_and_are_dealt_to() -> None:
    work = Generate(512, 200, Lengths(900, 4096))
    alone, shared = (phase_cost(SPARSE, work, Layout(dp=8, ep=ep), Slice(H100, 8, 8)) for ep in (1, 8))
    assert shared.memory.weights < 0.3 * alone.memory.weights and shared.parts["memory"] < alone.parts["memory"]
    assert shared.parts["ep"] > alone.parts["ep"] == 0


def test_shared_prefills_are_computed_once() -> None:
    work = Generate(512, 1000, Lengths(100, 400))
    alone, shared = (
        phase_cost(LLAMA, replace(work, shared=n), Layout(dp=8), Slice(H100, 8, 8)).parts["compute"] for n in (1, 8)
    )
    assert shared < 0.5 * alone


def test_room_that_others_hold_leaves_fewer_slots() -> None:
    def slots(reserved: float) -> int:
        work = Generate(4096, 1000, Lengths(1000, 2000), reserved=reserved)
        return phase_cost(LLAMA, work, Layout(dp=8), Slice(H100, 8, 8)).slots

    assert slots(0) > slots(30e9) > 1 and slots(1e12) == 1


def test_a_layout_must_fit_its_mesh_and_its_model() -> None:
    with pytest.raises(CostError, match="the layout takes 4 devices, but the mesh has 8"):
        phase_cost(LLAMA, WORKS[0], Layout(dp=4), Slice(H100, 8, 8))
    with pytest.raises(CostError, match=r"64 stages of 1 chunks, but `llama-3.1-8b` has 32 layers"):
        phase_cost(LLAMA, WORKS[0], Layout(pp=64), Slice(H100, 64, 8))
    with pytest.raises(CostError, match="`tp=0`: it is at least 1"):
        Layout(tp=0)
    with pytest.raises(CostError, match="`ep=3` doesn't divide the 8 devices of dp × fsdp"):
        Layout(dp=8, ep=3)
    with pytest.raises(CostError, match="dtype `int3`: it is one of bf16"):
        phase_cost(LLAMA, Train(BATCH, dtype="int3"), Layout(), Slice(H100, 1, 1))


# ---------------------------------------------------------------- lengths and the queue


@pytest.mark.parametrize(("mean", "maximum"), [(100, 4096), (1019, 4096), (3251, 4096), (4000, 4096), (7, 8)])
def test_lengths_have_their_mean_after_the_cut(mean: float, maximum: int) -> None:
    lengths = Lengths(mean, maximum)
    drawn = [lengths.quantile((i + 0.5) / 20000) for i in range(20000)]
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=2e-3) and max(drawn) <= maximum
    assert sum(lengths.parts(37)) / 37 == pytest.approx(mean)
    assert mean <= lengths.longest(20000) <= maximum + 1e-6
    assert sum(d * d for d in drawn) / len(drawn) == pytest.approx(lengths.squared, rel=1e-2)
    assert mean <= lengths.weighted <= maximum


@given(st.integers(1, 300), st.integers(1, 300), st.floats(0, 1.5))
@settings(max_examples=60, deadline=None)
def test_a_queue_makes_all_tokens_and_keeps_to_its_slots(sequences: int, slots: int, spread: float) -> None:
    lengths = Lengths(200, 1000, spread)
    profile = decode_profile(sequences, slots, lengths, sequences)
    made = sum(steps * alive for steps, alive in profile)
    assert made == pytest.approx(sequences * 200, rel=0.25)  # few samples have another mean
    assert max(alive for _, alive in profile) <= slots + 1e-9
    assert sum(steps for steps, _ in profile) >= sequences * 200 * 0.75 / slots


def test_equal_lengths_run_in_rounds() -> None:
    assert decode_profile(8, 4, Lengths.fixed(100), 8) == ((200, 4),)
    assert decode_profile(3, 8, Lengths.fixed(100), 3) == ((100, 3),)
    many = decode_profile(100_000, 4, Lengths.fixed(10), 100_000)
    assert sum(s * a for s, a in many) == pytest.approx(1e6)


# ---------------------------------------------------------------- collectives

MEASURED = [
    ("h100", 8, 1e6, 34e-6), ("h100", 8, 4e6, 51e-6), ("h100", 8, 16.8e6, 115e-6), ("h100", 8, 67e6, 322e-6),
    ("h100", 4, 67e6, 318e-6), ("h100", 2, 67e6, 245e-6), ("a100", 8, 1e6, 64e-6), ("a100", 8, 67e6, 675e-6),
]  # fmt: skip
"""All-reduces inside a node, seconds: microsoft/vidur, `data/profiling/`."""


@pytest.mark.parametrize(("name", "ranks", "size", "seconds"), MEASURED)
def test_an_all_reduce_takes_about_what_was_measured(name: str, ranks: int, size: float, seconds: float) -> None:
    device = parse_cluster(name).nodes[0].device
    assert all_reduce(size, Group(ranks, ranks, device), DEFAULT) == pytest.approx(seconds, rel=0.5)


def test_between_nodes_the_nics_decide() -> None:
    """16 A100 in two machines of 200 Gb/s each: 67 MB in 7.2 ms (vidur)."""
    device = replace(PRESETS["a100_80"], nic=25e9 / 8)
    assert all_reduce(67e6, Group(16, 8, device), DEFAULT) == pytest.approx(7.19e-3, rel=0.2)


def test_a_tree_needs_fewer_hops_than_a_ring() -> None:
    small = [all_reduce(1e3, Group(8 * n, 8, H100), DEFAULT) for n in (8, 64)]
    assert small[1] < 2 * small[0]


def test_nothing_is_sent_in_a_group_of_one() -> None:
    alone = Group(1, 1, H100)
    assert [f(1e9, alone, DEFAULT) for f in (all_reduce, all_gather, all_to_all, send)] == [0, 0, 0, 0]


def test_a_token_goes_once_to_a_node_however_many_of_its_experts_are_there() -> None:
    """Two nodes: of 8 experts, half are on the other, and nearly every token goes there once."""
    pair, copied = Group(16, 8, H100), all_to_all(8e9, Group(16, 8, H100), DEFAULT)
    assert deal(1e9, 8, pair, DEFAULT) == pytest.approx(copied / 4, rel=0.15)
    assert deal(1e9, 1, pair, DEFAULT) == pytest.approx(copied / 8, rel=0.15)
    assert deal(1e9, 8, Group(1, 1, H100), DEFAULT) == 0


def test_experts_that_are_not_equally_busy_take_longer_where_they_are_shared() -> None:
    experts = SPARSE.experts
    assert experts is not None
    assert experts.busiest(1) == 1 < experts.busiest(2) < experts.busiest(8) < experts.busiest(64) < 1.6
    even = replace(SPARSE, experts=replace(experts, uneven=0))
    for work in (Train(BATCH, 4), Generate(512, 200, Lengths(900, 4096))):
        for ep, least in ((1, 1.0), (8, 1.01)):
            both = [phase_cost(s, work, Layout(dp=8, ep=ep), Slice(H100, 8, 8)).seconds for s in (even, SPARSE)]
            assert both[1] / both[0] >= least
            assert (both[1] > both[0]) == (ep > 1)


def test_few_tokens_per_expert_leave_tiles_half_empty() -> None:
    padded = [counts.padding(SPARSE, tokens, 1) for tokens in (256, 4096, 65536)]
    assert padded == sorted(padded, reverse=True) and padded[0] > 3 and padded[2] < 1.02
    assert counts.padding(LLAMA, 256, 1) == 1


# ---------------------------------------------------------------- weights and rows that move


def test_a_reshard_moves_what_hybridflow_moves() -> None:
    """Table 2: (tp - t_g·p_g)/(t_g·p_g·tp)·M per device. 7B, training 1-8-2, generation TP 2: 0.375 M."""
    shape = KNOWN["llama-2-7b"]
    whole = 2 * shape.parameters
    for t, p, tg, pg in ((8, 1, 2, 1), (4, 2, 2, 1), (8, 1, 8, 1), (4, 1, 1, 1), (8, 2, 4, 2)):
        source, target = Layout(tp=t, pp=p, dp=2), Layout(tp=tg, pp=pg, dp=2 * t * p // (tg * pg))
        share = (t * p - tg * pg) / (tg * pg * t * p)
        assert reshard_bytes(shape, Reshard(source, target)) == pytest.approx(share * whole)
    assert reshard_bytes(shape, Reshard(Layout(tp=8, dp=2), Layout(tp=2, dp=8))) == pytest.approx(5.05e9, rel=0.01)


def test_a_reshard_takes_at_least_its_lower_bound() -> None:
    """70B from 64 sharded devices to 8 replicas of TP 8: 17.6 GB each, minus 2.2; 123 GB into a node: 0.31 s."""
    shape, mesh = KNOWN["llama-3.1-70b"], Slice(H100, 64, 8)
    move = Reshard(Layout(fsdp=64), Layout(tp=8, dp=8))
    assert reshard_bytes(shape, move) == pytest.approx((141.1 / 8 - 141.1 / 64) * 1e9, rel=0.01)
    ideal = replace(DEFAULT, network=1.0)
    assert reshard_seconds(shape, move, mesh, mesh, ideal) == pytest.approx(0.31, rel=0.05)
    apart = replace(move, same=False)
    assert reshard_bytes(shape, apart) == pytest.approx(141.1e9 / 8, rel=0.01)
    assert reshard_seconds(shape, apart, mesh, mesh) > reshard_seconds(shape, move, mesh, mesh)
    same = Reshard(Layout(tp=8, dp=8), Layout(tp=8, dp=8))
    assert reshard_bytes(shape, same) == reshard_seconds(shape, same, mesh, mesh) == 0


def test_rows_and_states_move_by_their_bytes() -> None:
    one, two = Slice(H100, 8, 8), Slice(H100, 16, 8)
    size = move_bytes(1024, 1024 * 500, fields=3)
    assert size == pytest.approx(1024 * 500 * 12, rel=0.01)
    assert move_seconds(size, one, one, same=True) == 0
    assert move_seconds(2 * size, one, two) > move_seconds(size, one, two) > move_seconds(size, one, one)
    assert host_seconds(50e9, one) == pytest.approx(1 / DEFAULT.network)


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize(("layout", "each"), [(Layout(), 18), (Layout(fsdp=8), 16 / 8), (Layout(tp=2), 9)])
def test_state_takes_the_published_bytes_per_parameter(layout: Layout, each: float) -> None:
    """Megatron 18, or 6 + 12/dp; ZeRO-3 16/d (1910.02054)."""
    memory = phase_cost(LLAMA, Train(BATCH), layout, devices_of(H100, layout)).memory
    held = memory.weights + memory.gradients + memory.optimizer
    assert held / LLAMA.parameters == pytest.approx(each, rel=0.001)


def test_an_optimizer_is_cut_over_its_copies() -> None:
    layout = Layout(dp=8, shared_optimizer=True)
    memory = phase_cost(LLAMA, Train(BATCH), layout, devices_of(H100, layout)).memory
    assert memory.optimizer / LLAMA.parameters == pytest.approx(12 / 8, rel=0.001)


# ---------------------------------------------------------------- constants


def test_there_are_at_most_eight_constants_and_each_says_what_it_means() -> None:
    assert len(described(DEFAULT)) <= 8 and all(len(doc) > 20 for _, _, doc in described(DEFAULT))


def test_a_profile_comes_back(tmp_path: Path) -> None:
    mine = Constants(matmul=0.5, engine=0.00002)
    write_profile(mine, tmp_path / "p.toml")
    assert read_profile(tmp_path / "p.toml") == mine


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("matmull = 0.5", "p.toml: `matmull` is no constant; they are matmul, attention"),
        ("matmul = 7", "`matmul = 7`: it is a number from"),
        ("matmul = 'x'", "`matmul = x`"),
        ("matmul", "p.toml is no TOML"),
    ],
)
def test_a_profile_that_is_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(CostError, match=said):
        read_profile(tmp_path / "p.toml")
