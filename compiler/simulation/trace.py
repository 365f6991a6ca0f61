"""A simulated run as Chrome trace events, for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

One process per slot, one thread per kind of phase, flow arrows for what moves, counters for memory and the queue. The
format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Times are microseconds.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ..search.decision import Decision, Phase, Transfer
from .events import Ran
from .result import Result
from .simulation import queued

RUN = 0
"""The process of what concerns all slots: commits, failures, the queue."""

THREADS = ("generate", "forward", "train", "transfer")
"""Threads of a slot. Rows travel beside all of these, on threads of their own, as many as there are at once."""

ROWS = len(THREADS) + 1
"""The first of those threads."""

APART = 1000
"""Threads of process p are p × APART + 1, and so on: one with its process's number would be called its main thread."""

COLOURS = {
    "generate": "thread_state_running",
    "forward": "thread_state_runnable",
    "train": "rail_response",
    "transfer": "thread_state_iowait",
    "lost": "terrible",
}
"""Names of the format's palette, by kind."""

Event = dict[str, Any]

Lanes = dict[tuple[str, int, float], int]
"""Threads of rows by the name, period and start of their way."""


def trace_json(result: Result, decision: Decision) -> str:
    """The trace as a JSON file. Letters stand as they are, because Perfetto shows their escapes as written."""
    shown = {"flow": decision.flow, "cluster": decision.cluster, "staleness": decision.staleness}
    trace = {"traceEvents": trace_events(result, decision), "displayTimeUnit": "ms", "otherData": shown}
    return json.dumps(trace, indent=1, ensure_ascii=False) + "\n"


def trace_events(result: Result, decision: Decision) -> list[Event]:
    """All events: names first, then in order of time."""
    processes = {slot.name: n for n, slot in enumerate(decision.slots, 1)}
    lanes = _lanes((*result.ran, *result.lost))
    events = [
        *_spans(result.ran, processes, lanes),
        *_spans(result.lost, processes, lanes, lost=True),
        *_arrows(result.ran, processes, lanes),
        *_memory(sorted((*result.ran, *result.lost), key=lambda r: r.start), decision, processes),
        *_run(result),
    ]
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    return [
        *_names(decision, processes, used),
        *sorted(events, key=lambda e: (e["ts"], e["ph"] != "X", -e.get("dur", 0.0))),
    ]


def _names(decision: Decision, processes: dict[str, int], used: set[tuple[int, int]]) -> Iterator[Event]:
    yield _meta("process_name", RUN, 0, name="run")
    yield _meta("process_sort_index", RUN, 0, sort_index=RUN)
    for thread, name in enumerate(("steps", "commits and restarts", "failures"), 1):
        yield _meta("thread_name", RUN, thread, name=name)
    for slot in decision.slots:
        number = processes[slot.name]
        on = f"devices {slot.first}–{slot.first + slot.devices - 1}" if slot.devices > 1 else f"device {slot.first}"
        yield _meta("process_name", number, 0, name=f"{slot.name} ({on})")
        yield _meta("process_sort_index", number, 0, sort_index=number)
        for thread in sorted(t for p, t in used if p == number):
            kind = thread - number * APART
            yield _meta("thread_name", number, thread, name=THREADS[kind - 1] if kind < ROWS else "rows")
            yield _meta("thread_sort_index", number, thread, sort_index=kind)


def _meta(kind: str, process: int, thread: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": args}


def _lanes(ran: Sequence[Ran]) -> Lanes:
    """Threads of rows, from 1: spans of one thread don't overlap. Others have the thread of their kind."""
    free: list[float] = []
    lanes: Lanes = {}
    for r in sorted((r for r in ran if r.task.kind == "rows"), key=lambda r: (r.start, r.end, r.task.name)):
        lane = next((n for n, end in enumerate(free) if end <= r.start), len(free))
        free[lane : lane + 1] = [r.end]
        lanes[_key(r)] = lane + 1
    return lanes


def _key(r: Ran) -> tuple[str, int, float]:
    return r.task.name, r.period, r.start


def _place(r: Ran, process: int, lanes: Lanes) -> Event:
    """Where something is shown in a process."""
    kind = ROWS - 1 + lanes[_key(r)] if _key(r) in lanes else 1 + THREADS.index(_kind(r))
    return {"pid": process, "tid": process * APART + kind}


def _kind(r: Ran) -> str:
    return r.task.kind if r.task.is_phase else "transfer"


def _spans(ran: Sequence[Ran], processes: dict[str, int], lanes: Lanes, lost: bool = False) -> Iterator[Event]:
    """A span on each slot that a task occupies."""
    for r in ran:
        for slot in r.task.places:
            yield {
                "ph": "X",
                "name": r.task.name.partition(" #")[0],
                "cat": "lost" if lost else r.task.kind,
                "cname": COLOURS["lost" if lost else _kind(r)],
                **_place(r, processes[slot], lanes),
                **_lasts(r.start, r.end),
                "args": {"step": r.step, "period": r.period, **_said(r.task.of)},
            }


def _said(of: Phase | Transfer) -> dict[str, Any]:
    if isinstance(of, Phase):
        return {"model": of.model, "layout": str(of.layout), "samples": of.samples, "tokens": of.tokens}
    return {"model": of.model, "bytes": of.bytes}


def _arrows(ran: Sequence[Ran], processes: dict[str, int], lanes: Lanes) -> Iterator[Event]:
    """From the slot that something leaves to the one it goes to. Both ends lie inside the transfer's own spans."""
    moves = [r for r in ran if isinstance(r.task.of, Transfer) and len(r.task.places) == 2]
    for number, r in enumerate(moves, 1):
        source, target = (processes[s] for s in r.task.places)
        common = {"name": r.task.kind, "cat": "flow", "id": number}
        yield {"ph": "s", **common, **_place(r, source, lanes), "ts": _micro(r.start)}
        yield {"ph": "f", "bp": "e", **common, **_place(r, target, lanes), "ts": _micro((r.start + r.end) / 2)}


def _memory(ran: Sequence[Ran], decision: Decision, processes: dict[str, int]) -> Iterator[Event]:
    """What a device of a slot holds: what stays, and what the phase that runs adds, by kind."""
    for slot, process in processes.items():
        resident = sum(decision.resident(slot).values())
        kinds = sorted({k for x in decision.on(slot) for k in x.memory.transient})
        yield _held(process, 0.0, resident, kinds, {})
        for r in (r for r in ran if isinstance(r.task.of, Phase) and r.task.of.slot == slot):
            assert isinstance(r.task.of, Phase)
            yield _held(process, r.start, resident, kinds, r.task.of.memory.transient)
            yield _held(process, r.end, resident, kinds, {})


def _held(process: int, at: float, resident: float, kinds: Sequence[str], extra: dict[str, float]) -> Event:
    shown = {"resident": resident, **{k: extra.get(k, 0.0) for k in kinds}}
    gib = {k: round(v / 2**30, 3) for k, v in shown.items()}
    return {"ph": "C", "name": "memory (GiB)", "pid": process, "tid": 0, "ts": _micro(at), "args": gib}


def _run(result: Result) -> Iterator[Event]:
    """Steps, commits, restarts and failures, and how many batches wait."""
    for step in result.steps:
        yield {"ph": "i", "s": "t", "name": f"step {step.number}", "pid": RUN, "tid": 1, "ts": _micro(step.end)}
    for i in result.incidents:
        event = {"name": i.kind, "cat": i.kind, "pid": RUN, "args": {"step": i.step}}
        if i.kind == "failure":
            yield {"ph": "i", "s": "t", **event, "tid": 3, "ts": _micro(i.start)}
        else:
            yield {"ph": "X", **event, "tid": 2, **_lasts(i.start, i.end)}
    for at, level in queued(result.ran):
        yield {"ph": "C", "name": "waiting", "pid": RUN, "tid": 0, "ts": _micro(at), "args": {"batches": level}}


def _lasts(start: float, end: float) -> Event:
    """When a span begins and how long it lasts, both in whole nanoseconds: neighbours meet, and never overlap."""
    return {"ts": _micro(start), "dur": round(_micro(end) - _micro(start), 3)}


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)
