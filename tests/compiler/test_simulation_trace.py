"""A simulated run as trace events: what the format asks for, and what Perfetto needs to show all of it."""

import json
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from shardflow.compiler.search.decision import Decision, Phase, Transfer
from shardflow.compiler.simulation import Durations, Result, trace_events, trace_json

from .simulated import engines, simulated, split

COMMON = {"ph", "name", "pid", "tid", "ts"}
FIELDS = {
    "M": {"args"},
    "X": {"dur", "cat"},
    "s": {"id", "cat"},
    "f": {"id", "cat", "bp"},
    "C": {"args"},
    "i": {"s"},
}
"""Fields of each kind of event, from the trace-event format."""


def traced() -> tuple[Decision, Result]:
    made = rowed()
    durations = Durations(4, {"policy.generate": engines()})
    return made, simulated(made, durations, steps=9, mtbf=100.0, save_every=2, restart=5.0, commit=1.0)


def rowed() -> Decision:
    """The split GRPO with rows that travel, longer than a phase, so that they overlap."""
    rows = Transfer("rows", "policy", "rollout", "train", 1e6, 30.0, 20.0, 50.0, "ref.logprobs", ("policy.generate",))
    back = Transfer("rows", "ref", "train", "rollout", 1e6, 4.0, 3.0, 7.0, "policy.update", ("ref.logprobs",))
    return replace(split(2), transfers=(*split(2).transfers, rows, back))


def test_trace_events_have_the_fields_of_the_format() -> None:
    made, result = traced()
    trace = json.loads(trace_json(result, made))
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"} and trace["displayTimeUnit"] in ("ms", "ns")
    kinds = {e["ph"] for e in trace["traceEvents"]}
    assert kinds == set(FIELDS)
    for event in trace["traceEvents"]:
        assert set(event) >= COMMON | FIELDS[event["ph"]], event
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and event["ts"] >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(v, int | float) and v >= 0 for v in event["args"].values())


def test_trace_events_are_in_order_and_their_places_have_names() -> None:
    made, result = traced()
    events = trace_events(result, made)
    timed = [e["ts"] for e in events if e["ph"] != "M"]
    assert timed == sorted(timed)
    named = {(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"}
    assert all(("process_name", e["pid"], 0) in named for e in events)
    assert all(("thread_name", e["pid"], e["tid"]) in named for e in events if e["ph"] in "Xi")
    assert all(e["tid"] != e["pid"] for e in events if e["ph"] in "Xi"), "no thread is shown as the main one"
    assert all(e["s"] == "t" for e in events if e["ph"] == "i"), "marks of wider scope have no name"
    assert events[0]["ph"] == "M" and {e["pid"] for e in events} == {0, 1, 2}


def test_spans_of_a_thread_don_t_overlap() -> None:
    made, result = traced()
    threads: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for e in trace_events(result, made):
        if e["ph"] == "X":
            threads[e["pid"], e["tid"]].append(e)
    for spans in threads.values():
        for one, two in pairwise(sorted(spans, key=lambda e: (e["ts"], e["dur"]))):
            assert _exactly(two["ts"]) >= _exactly(one["ts"]) + _exactly(one["dur"]), "nothing is nested or dropped"


def _exactly(micro: float) -> int:
    """Nanoseconds as they are written: readers cut what comes after them off."""
    written = Decimal(repr(micro)) * 1000
    assert written == int(written), f"{micro} isn't in whole nanoseconds"
    return int(written)


def test_a_trace_has_no_escapes_that_readers_would_show() -> None:
    made, result = traced()
    written = trace_json(result, made)
    assert "\\u" not in written and "(devices 0–7)" in written


def test_flow_arrows_match_and_lie_in_spans() -> None:
    made, result = traced()
    events = trace_events(result, made)
    ends = {kind: {e["id"]: e for e in events if e["ph"] == kind} for kind in "sf"}
    assert ends["s"].keys() == ends["f"].keys() and ends["s"]
    assert len([e for e in events if e["ph"] == "s"]) == len(ends["s"])
    spans = [e for e in events if e["ph"] == "X"]
    for number, begin in ends["s"].items():
        end = ends["f"][number]
        assert begin["pid"] != end["pid"] and begin["ts"] <= end["ts"]
        for e in (begin, end):
            here = [x for x in spans if (x["pid"], x["tid"]) == (e["pid"], e["tid"])]
            assert any(x["ts"] <= e["ts"] <= x["ts"] + x["dur"] for x in here)


def test_memory_counters_follow_the_phases() -> None:
    made, result = traced()
    held = [e for e in trace_events(result, made) if e["ph"] == "C" and e["pid"] == 2]
    assert {sum(e["args"].values()) for e in held} == {20.0, 25.0}


def test_memory_is_shown_of_lost_work_too() -> None:
    made, result = traced()
    phases = [r for r in result.lost if isinstance(r.task.of, Phase) and r.task.of.slot == "train" and r.end > r.start]
    raised = {e["ts"] for e in trace_events(result, made) if e["ph"] == "C" and e["args"].get("activations")}
    assert phases and {round(r.start * 1e6, 3) for r in phases} <= raised
