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

COLOURS = {
    "generate": "thread_state_running",
    "forward": "thread_state_runnable",
    "train": "rail_response",
    "transfer": "thread_state_iowait",
    "lost": "terrible",
}
"""Names of the format's palette, by kind."""

Event = dict[str, Any]


def trace_json(result: Result, decision: Decision) -> str:
    """The trace as a JSON file."""
    shown = {"flow": decision.flow, "cluster": decision.cluster, "staleness": decision.staleness}
    trace = {"traceEvents": trace_events(result, decision), "displayTimeUnit": "ms", "otherData": shown}
    return json.dumps(trace, indent=1) + "\n"


def trace_events(result: Result, decision: Decision) -> list[Event]:
    """All events: names first, then in order of time."""
    processes = {slot.name: n for n, slot in enumerate(decision.slots, 1)}
    events = [
        *_spans(result.ran, processes),
        *_spans(result.lost, processes, lost=True),
        *_arrows(result.ran, processes),
        *_memory(result.ran, decision, processes),
        *_run(result),
    ]
    return [*_names(decision, processes), *sorted(events, key=lambda e: (e["ts"], e["ph"] != "X", -e.get("dur", 0.0)))]


def _names(decision: Decision, processes: dict[str, int]) -> Iterator[Event]:
    yield _meta("process_name", RUN, 0, name="run")
    yield _meta("process_sort_index", RUN, 0, sort_index=RUN)
    for slot in decision.slots:
        number = processes[slot.name]
        on = f"devices {slot.first}–{slot.first + slot.devices - 1}" if slot.devices > 1 else f"device {slot.first}"
        yield _meta("process_name", number, 0, name=f"{slot.name} ({on})")
        yield _meta("process_sort_index", number, 0, sort_index=number)
        for thread, name in enumerate(THREADS, 1):
            yield _meta("thread_name", number, thread, name=name)
            yield _meta("thread_sort_index", number, thread, sort_index=thread)


def _meta(kind: str, process: int, thread: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": args}


def _thread(r: Ran) -> int:
    return 1 + THREADS.index(r.task.kind if r.task.is_phase else "transfer")


def _spans(ran: Sequence[Ran], processes: dict[str, int], lost: bool = False) -> Iterator[Event]:
    """A span on each slot that a task occupies."""
    for r in ran:
        for slot in r.task.slots:
            yield {
                "ph": "X",
                "name": r.task.name.partition(" #")[0],
                "cat": "lost" if lost else r.task.kind,
                "cname": COLOURS["lost" if lost else THREADS[_thread(r) - 1]],
                "pid": processes[slot],
                "tid": _thread(r),
                "ts": _micro(r.start),
                "dur": _micro(r.end) - _micro(r.start),
                "args": {"step": r.step, "period": r.period, **_said(r.task.of)},
            }


def _said(of: Phase | Transfer) -> dict[str, Any]:
    if isinstance(of, Phase):
        return {"model": of.model, "layout": str(of.layout), "samples": of.samples, "tokens": of.tokens}
    return {"model": of.model, "bytes": of.bytes}


def _arrows(ran: Sequence[Ran], processes: dict[str, int]) -> Iterator[Event]:
    """From the slot that something leaves to the one it goes to. Both ends lie inside the transfer's own spans."""
    moves = [r for r in ran if isinstance(r.task.of, Transfer) and len(r.task.slots) == 2]
    for number, r in enumerate(moves, 1):
        source, target = (processes[s] for s in r.task.slots)
        common = {"name": r.task.kind, "cat": "flow", "id": number, "tid": _thread(r)}
        yield {"ph": "s", **common, "pid": source, "ts": _micro(r.start)}
        yield {"ph": "f", "bp": "e", **common, "pid": target, "ts": _micro((r.start + r.end) / 2)}


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
    return {"ph": "C", "name": "memory of a device (GiB)", "pid": process, "tid": 0, "ts": _micro(at), "args": gib}


def _run(result: Result) -> Iterator[Event]:
    """Steps, commits, restarts and failures, and how many batches wait."""
    for step in result.steps:
        yield {"ph": "i", "s": "p", "name": f"step {step.number}", "pid": RUN, "tid": 1, "ts": _micro(step.end)}
    for i in result.incidents:
        event = {"name": i.kind, "cat": i.kind, "pid": RUN, "tid": 2, "ts": _micro(i.start), "args": {"step": i.step}}
        if i.kind == "failure":
            yield {"ph": "i", "s": "g", **event}
        else:
            yield {"ph": "X", "dur": _micro(i.end) - _micro(i.start), **event}
    for at, level in queued(result.ran):
        counted = {"batches": level}
        yield {"ph": "C", "name": "batches that wait", "pid": RUN, "tid": 0, "ts": _micro(at), "args": counted}


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)
