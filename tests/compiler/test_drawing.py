"""Pictures of placements: what they show, and where; the layout is data, and its rules hold for any scene."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shardflow.compiler.cli import parser
from shardflow.compiler.drawing.chart import lay_out_chart, nice_step
from shardflow.compiler.drawing.command import scene_of
from shardflow.compiler.drawing.decided import Link, decided
from shardflow.compiler.drawing.layout import lay_out
from shardflow.compiler.drawing.page import SLIM
from shardflow.compiler.drawing.palette import PALETTE, contrast
from shardflow.compiler.drawing.planned import links, planned
from shardflow.compiler.drawing.scene import Bar, Chip, Edge, Lane, Node, NodeKind, Scene, Timeline
from shardflow.compiler.drawing.words import clipped, in_bytes, in_percent, in_seconds, width, wrapped
from shardflow.compiler.search.decision import Alternative, Decision, decode, encode

from .drawings import chart_faults, faults
from .drawn import DECISIONS, ppo
from .workbench import Workbench, flow

every_decision = pytest.mark.parametrize("made", DECISIONS.values(), ids=DECISIONS)
Made = Callable[[], Decision]


# ---------------------------------------------------------------- decisions


@every_decision
def test_a_decision_is_drawn_without_a_fault(made: Made) -> None:
    scene = decided(made())
    assert faults(scene, lay_out(scene)) == []
    assert scene.timeline is not None
    assert chart_faults(scene, lay_out_chart(scene.timeline, 900)) == []


@every_decision
def test_everything_of_a_decision_is_shown_once(made: Made) -> None:
    decision = made()
    scene = decided(decision)
    chips = [c.id for n in scene.nodes for c in n.chips]
    carried = [e.id for e in scene.edges if e.kind != "follows"]
    assert sorted(chips + carried) == sorted(f"transfer {i}" for i in range(len(decision.transfers)))
    assert [n.title for n in scene.nodes if n.number] == [x.name for x in decision.phases]
    assert [n.title for n in scene.nodes if not n.number] == [x.name for x in decision.operators]
    assert {n.number for n in scene.nodes if n.number} == set(range(1, len(decision.phases) + 1))
    assert scene.timeline is not None
    timed = [x.name for x in decision.phases] + [f"transfer {i}" for i in range(len(decision.transfers))]
    assert sorted(b.of for b in scene.timeline.bars) == sorted(timed)


@every_decision
def test_a_decision_in_json_gives_the_same_picture(made: Made) -> None:
    assert decided(decode(encode(made()))) == decided(made())
    assert lay_out(decided(made())) == lay_out(decided(made()))


def test_edges_say_what_moves_and_what_is_for_the_next_step() -> None:
    edges = {(e.source, e.target): e for e in decided(ppo()).edges}
    weights = edges["policy.update", "policy.generate"]
    assert weights.back and weights.kind == "weights" and weights.label == "policy weights · 12 GB · 900 ms"
    assert edges["policy.generate", "critic.values"].label == "25.2 MB"
    assert edges["scorer.score", "policy.update"].kind == "follows"
    assert ("policy.generate", "policy.update") not in edges  # implied by the others


def test_what_is_sampled_ahead_waits_in_a_queue() -> None:
    scene = decided(ppo(1))
    queued = next(e for e in scene.edges if e.target == "ref.logprobs")
    assert queued.label == "25.2 MB, queued 1 step"
    assert scene.timeline is not None
    steps = {b.of: b.step_text for b in scene.timeline.bars if b.number}
    assert steps["policy.generate"] == "t+1" and steps["policy.update"] == "t"


def test_the_header_has_the_numbers_of_the_decision() -> None:
    facts = {f.label: f.value for f in decided(ppo()).facts}
    assert facts["Cluster"] == "8x8xH100" and facts["Devices"] == "64"
    assert facts["Period"] == "72.5 s a step" and facts["Lower bound"] == "69.5 s"
    assert facts["Gap"] == "at most 4.2 %" and facts["Staleness"] == "none, synchronous"


def test_lanes_say_what_their_devices_are_only_where_those_differ() -> None:
    made = ppo(1)
    assert not any("h100" in line for lane in decided(made).lanes for line in lane.caption)
    first, *others = made.slots
    mixed = replace(made, slots=(replace(first, device="a100_80"), *others))
    captions = [lane.caption[1] for lane in decided(mixed).lanes if lane.name != "controller"]
    assert captions[0].endswith(" (a100_80)") and all(c.endswith(" (h100)") for c in captions[1:]) and captions[1:]
    assert faults(decided(mixed), lay_out(decided(mixed))) == []


def test_a_gap_says_what_was_proven() -> None:
    def gap(**changed: float) -> str:
        facts = decided(replace(ppo(), **changed)).facts
        return next(f.value for f in facts if f.label == "Gap")

    assert gap(gap=0.0) == "0 %, proven optimal"
    assert gap(optimal=False) == "at most 4.2 %, search stopped early"


def test_what_lost_is_told_with_how_much_slower_it_was() -> None:
    kept = (
        Alternative("one slot", 95.0, 0.31),
        Alternative("tp=4", 72.5, 0.0),
        Alternative("tp=1", None, None, "5 GB over"),
    )
    lost = decided(replace(ppo(), alternatives=kept)).lost
    assert [x.value for x in lost] == ["95 s, 31 % slower", "72.5 s, as fast", "5 GB over"]


def test_a_plan_tells_what_reads_an_operator_and_a_queue() -> None:
    read = (Link("adv", "policy.update"), Link("policy.generate", "ref.logprobs", 1), Link("policy.update", "adv"))
    edges = {(e.source, e.target): e for e in decided(ppo(), read).edges}
    assert edges["value adv", "policy.update"].kind == "follows"
    assert ("policy.update", "value adv") not in edges  # nothing goes round
    assert ("critic.values", "policy.update") in edges  # a transfer stays
    assert ("scorer.score", "policy.update") not in edges  # by way of `reward` and `adv`
    scene = decided(ppo(), read)
    assert faults(scene, lay_out(scene)) == []


def test_details_tell_layout_seconds_memory_and_instructions() -> None:
    node = decided(ppo()).node("policy.update")
    details = {d.label: d.value for d in node.details}
    assert details["Layout"] == "tp=4 fsdp=8, recompute" and details["Micro-batch"] == "8,192 tokens"
    assert details["Instructions"] == "policy"
    seconds, memory = node.parts
    assert sum(s.size for s in seconds.shares) == pytest.approx(30.5)
    assert [s.name for s in memory.shares if s.lasting] == ["optimizer", "gradients", "weights"]
    assert memory.whole == 74e9 and memory.total == "29.1 of 74 GB"


def test_a_decision_without_times_has_no_time_line() -> None:
    assert decided(replace(ppo(), period=0.0)).timeline is None


# ---------------------------------------------------------------- plans


PPO = """
model ref = frozen(policy)
model critic = value_model("tiny")
kl = k3(rollout.logprobs, ref.logprobs(rollout))
values = critic.values(rollout)
metric kl = mean(kl)
update critic(adamw(lr=1e-6)):
    minimize mean(critic.values(rollout) - values - reward)
every 5 steps:
    test = read("train.jsonl", all=true)
    answer = policy.generate(test, max_new_tokens=4, temperature=0)
    metric test = mean(answer.length)
"""
PLACED = """
place tune on cpu(nodes=4, devices=1):
    policy.update on nodes[0:2], fsdp=2
    policy.generate on nodes[0:2]
    critic on nodes[2]
    ref on nodes[3]
"""


@pytest.mark.parametrize(("placed", "target"), [("", "single"), ("", "multi"), (PLACED, "multi")])
def test_a_plan_is_drawn_without_a_fault(bench: Workbench, placed: str, target: str) -> None:
    from shardflow.compiler.compilation import compile_flow

    scene = planned(compile_flow(bench.checked(flow(PPO) + placed, target=target)))
    assert faults(scene, lay_out(scene)) == []
    titles = {n.title for n in scene.nodes}
    assert titles >= {"policy.generate", "policy.update", "critic.update", "ref.logprobs", "reward", "prompts", "test"}
    assert scene.timeline is None
    assert len(scene.lanes) == (3 if placed else 1)
    assert any(e.kind == "weights" and e.back for e in scene.edges)
    assert any(e.kind == "rows" for e in scene.edges) == (target == "multi")
    assert not any(e.label for e in scene.edges)


def test_what_runs_now_and_then_says_so(bench: Workbench) -> None:
    from shardflow.compiler.compilation import compile_flow

    scene = planned(compile_flow(bench.checked(flow(PPO))))
    assert all("every 5 steps" in n.lines for n in scene.nodes if n.id.startswith(("test", "answer")))


def test_links_of_a_plan_have_the_names_of_a_decision(bench: Workbench) -> None:
    found = {(x.source, x.target): x.queued for x in links(bench.plan(flow(PPO)))}
    assert found["policy.generate", "reward"] == 0 and found["reward", "policy.update"] == 0
    assert found["critic.values", "critic.update"] == 0
    stale = flow().replace("max_new_tokens=32", "max_new_tokens=32, max_staleness=2")
    assert ("policy.generate", "reward", 1) in [(x.source, x.target, x.queued) for x in links(bench.plan(stale))]


def test_a_placement_that_is_searched_for_is_drawn_without_a_fault(bench: Workbench) -> None:
    pytest.importorskip("ortools", reason="no OR-Tools: pip install 'shardflow[plan]'")
    args = parser().parse_args(
        ["graph", str(bench.write(flow(PPO))), "--cluster", "4xH100", "--model", "policy=Qwen/Qwen2.5-7B"]
    )
    scene = scene_of(args)
    assert scene is not None and scene.timeline is not None
    assert faults(scene, lay_out(scene)) == []
    assert chart_faults(scene, lay_out_chart(scene.timeline, 900)) == []
    assert ("value reward", "policy.update") in {(e.source, e.target) for e in scene.edges}


# ---------------------------------------------------------------- any scene


KINDS: list[NodeKind] = ["generate", "forward", "train", "operator", "source"]
words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Scenes with up to five lanes and twelve nodes, any edges that have no cycle, and some to the next step."""
    lanes = draw(st.integers(1, 5))
    nodes = [_node(draw, i, lanes) for i in range(draw(st.integers(1, 12)))]
    pairs = [(a.id, b.id) for i, a in enumerate(nodes) for b in nodes[i + 1 :]]
    some = st.lists(st.sampled_from(pairs), unique=True, max_size=16) if pairs else st.just([])
    edges = [_edge(draw, f"e{i}", *pair) for i, pair in enumerate(draw(some))]
    for i, (source, target) in enumerate(draw(some)[:3]):
        edges.append(
            Edge(f"b{i}", "weights", target, source, draw(st.sampled_from(["", "policy weights · 12 GB"])), True)
        )
    shown = tuple(Lane(f"lane {i}", ("8 devices",)) for i in range(lanes))
    return Scene("any", "scene", (), shown, tuple(nodes), tuple(edges))


def _edge(draw: st.DrawFn, id: str, source: str, target: str) -> Edge:
    label = draw(st.sampled_from(["", "1 GB", "25.2 MB"]))
    return Edge(id, "rows" if label else "follows", source, target, label)


def _node(draw: st.DrawFn, number: int, lanes: int) -> Node:
    lines = draw(st.lists(words, max_size=3))
    chips = [Chip(f"c{number}.{i}", "wake", t) for i, t in enumerate(draw(st.lists(words, max_size=2)))]
    lane = f"lane {draw(st.integers(0, lanes - 1))}"
    numbered = number if draw(st.booleans()) else 0
    return Node(f"n{number}", lane, draw(st.sampled_from(KINDS)), draw(words), numbered, tuple(lines), tuple(chips))


@given(scenes())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_scene_is_drawn_without_a_fault(scene: Scene) -> None:
    assert faults(scene, lay_out(scene)) == []


spans = st.tuples(st.floats(0, 30), st.floats(0.001, 9))


@given(st.lists(spans, min_size=1, max_size=8), st.floats(SLIM, 3000))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_time_line_is_drawn_without_a_fault(found: list[tuple[float, float]], wide: float) -> None:
    """Phases in turn, also such as begin before the period ends and end after that."""
    at, bars = found[0][0], []
    for number, (gap, length) in enumerate(found, 1):
        start = at + gap / 10
        at = start + length
        bars.append(Bar(f"p{number}", "forward", f"phase.{number}", number, ("lane",), start, at, number % 2))
    timeline = Timeline(at - bars[0].start + 1, ("lane",), tuple(bars), (0.5,))
    scene = Scene("any", "scene", (), (Lane("lane"),), (), (), timeline)
    thin = min(b.end - b.start for b in bars) / timeline.period * (wide - 160)
    chart = lay_out_chart(timeline, wide)
    assert [f for f in chart_faults(scene, chart) if "meets" not in f or thin > 3] == []


# ---------------------------------------------------------------- words and colours


def test_quantities_are_written_as_people_write_them() -> None:
    assert [in_bytes(x) for x in (0, 999, 1e3, 25.24e6, 12e9, 140.2e9, 999.9e9, 2.5e12)] == [
        *("0 B", "999 B", "1 kB", "25.2 MB", "12 GB", "140 GB", "1 TB", "2.5 TB"),
    ]
    assert [in_seconds(x) for x in (0, 0.0004, 0.87, 1, 12.34, 599, 840)] == [
        *("0 s", "0.4 ms", "870 ms", "1 s", "12.3 s", "599 s", "14 min"),
    ]
    assert [in_percent(x) for x in (0, 0.042, 0.22, 1)] == ["0 %", "4.2 %", "22 %", "100 %"]
    assert [nice_step(72.5, 10), nice_step(0.31, 5), nice_step(39, 8)] == [10, 0.1, 5]


@given(words, st.floats(20, 300))
def test_a_text_is_cut_to_its_room(text: str, room: float) -> None:
    assert width(clipped(text, 12, room), 12) <= room
    assert all(width(line, 12) <= room for line in wrapped(text, 12, room))


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_what_it_is_on(theme: int) -> None:
    """WCAG 2.2: 4.5 : 1 for text, 3 : 1 for lines that mean something."""
    colour = {name: both[theme] for name, both in PALETTE.items()}
    grounds = ["page", "surface", "lane", *(n for n in colour if n.endswith("-tint"))]
    assert min(contrast(colour[t], colour[g]) for t in ("ink", "muted") for g in grounds) >= 4.5
    assert min(contrast(colour[t], colour["lane"]) for t in ("rows", "weights")) >= 4.5
    assert min(contrast(colour[t], colour["lane"]) for t in ("line", "generate", "train", "host", "focus")) >= 3


def test_kinds_differ_in_grey_too() -> None:
    lightness = sorted(contrast(PALETTE[k][0], "#000000") for k in ("generate", "forward", "train"))
    assert all(b / a > 1.4 for a, b in pairwise(lightness))
