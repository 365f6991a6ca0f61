"""What a simulation says, as text and as JSON."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from ..search.decision import Decision
from .result import Peak, Result, Usage

SHOWN = 0.0005
"""Shares below are a dash."""

ORDER = (
    "generate",
    "tail",
    "forward",
    "train",
    "weights",
    "rows",
    "wake",
    "sleep",
    "offload",
    "reload",
    "stopped",
    "idle",
)


def report_text(result: Result, decision: Decision, assumptions: Iterable[str] = ()) -> str:
    """The result for people: step time, utilisation, memory, failures, and what was assumed."""
    lines = [
        _heading(result, decision),
        "",
        *_times(result, decision),
        "",
        *_usage(result.usage),
        "",
        *_memory(result.memory, decision),
        *_failures(result),
    ]
    said = list(assumptions)
    if said:
        lines += ["", "Assumed: " + "; ".join(said) + "."]
    return "\n".join(lines) + "\n"


def _heading(result: Result, d: Decision) -> str:
    steps = _counted(len(result.steps), "step")
    stale = f", staleness {d.staleness}" if d.staleness else ""
    lengths = f"lengths drawn with seed {result.options.seed}" if result.options.drawn else "lengths as decided"
    return f"{d.flow} on {d.cluster}: {steps}{stale}, {lengths}"


def _times(result: Result, d: Decision) -> Iterator[str]:
    yield f"step        {_time(result.mean)} mean, {_time(result.p95)} p95 ({_time(d.period)} decided)"
    yield f"batch       {_time(result.latency)} from its first phase to its last"
    if result.staleness:
        ahead = _counted(result.queue, "draw")
        yield f"warm-up     {_time(result.steps[0].seconds)} for the first step, with {ahead} made ahead"
    if d.devices and result.mean:
        tokens = max((x.tokens for x in d.phases if x.kind == "generate"), default=0)
        if tokens:
            yield f"throughput  {tokens / result.mean / d.devices:,.0f} tokens/s per device, prompts included"
    yield f"simulated   {result.events:,} events"


def _usage(usage: Iterable[Usage]) -> Iterator[str]:
    usage = list(usage)
    kinds = [k for k in ORDER if any(u.shares.get(k, 0.0) >= SHOWN for u in usage)]
    wide = max([len("devices used"), *(len(f"{u.slot} ({u.devices})") for u in usage)])
    yield "devices used".ljust(wide) + "".join(k.rjust(10) for k in kinds)
    for u in usage:
        yield f"{u.slot} ({u.devices})".ljust(wide) + "".join(_share(u.shares.get(k, 0.0)).rjust(10) for k in kinds)


def _memory(memory: Iterable[Peak], d: Decision) -> Iterator[str]:
    for peak in memory:
        during = f" in {peak.during}" if peak.during else ""
        yield (
            f"memory of {peak.slot}: {_gb(peak.peak)} at most{during}, {_gb(peak.resident)} all the time, "
            f"of {_gb(d.slot(peak.slot).memory)}"
        )


def _failures(result: Result) -> Iterator[str]:
    if result.options.mtbf is None and not result.incidents:
        return
    spent = {"failure": 0.0, "restart": 0.0, "commit": 0.0}
    for i in result.incidents:
        spent[i.kind] += i.lost if i.kind == "failure" else i.end - i.start
    yield ""
    yield f"elapsed     {_time(result.elapsed)}, {_share(result.goodput)} of it in steps that count"
    yield (
        f"failures    {len(result.failures)}: {_time(spent['failure'])} of work lost, "
        f"{_time(spent['restart'])} to restart, {_time(spent['commit'])} in commits"
    )


def report_json(result: Result, decision: Decision, assumptions: Iterable[str] = ()) -> dict[str, Any]:
    """The result as data. Times in seconds, memory in bytes of a device, shares as fractions of the run."""
    return {
        "flow": decision.flow,
        "cluster": decision.cluster,
        "devices": decision.devices,
        "staleness": decision.staleness,
        "options": asdict(result.options),
        "step": {"mean": result.mean, "p95": result.p95, "decided": decision.period, "latency": result.latency},
        "steps": [asdict(s) for s in result.steps],
        "slots": [
            {"slot": u.slot, "devices": u.devices, "utilisation": u.utilisation, "shares": u.shares}
            for u in result.usage
        ],
        "memory": [asdict(p) for p in result.memory],
        "queue": result.queue,
        "elapsed": result.elapsed,
        "goodput": result.goodput,
        "failures": len(result.failures),
        "lost": sum(f.lost for f in result.failures),
        "events": result.events,
        "assumptions": list(assumptions),
    }


def as_json(data: Any) -> str:
    return json.dumps(data, indent=2) + "\n"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.4g} h"


def _share(share: float) -> str:
    return f"{100 * share:.1f}%" if share >= SHOWN else "–"


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
