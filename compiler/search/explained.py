"""A decision as text: where each phase runs, what it takes, what was proven, and what lost."""

from collections.abc import Iterator, Sequence

from .decision import Alternative, Decision, Phase, Transfer

GB = 1e9


def decision_lines(decision: Decision) -> Iterator[str]:
    """The lines of `flowc explain FLOW --cluster …`."""
    d = decision
    yield f"placement on {d.cluster}: a step every {_s(d.period)}" + (
        f", {d.staleness} step{'s' if d.staleness > 1 else ''} of staleness" if d.staleness else ""
    )
    proof = (
        "proven: no placement in the space searched is faster"
        if d.gap < 5e-5
        else f"at most {d.gap:.2%} from the best of the space searched"
    )
    yield f"  bound   {_s(d.bound)}, gap {d.gap:.2%}: {proof}"
    for slot in d.slots:
        yield from _slot(decision, slot.name)
    yield from _transfers([t for t in d.transfers if t.seconds > 0])
    yield from _section("lost", [_alternative(a) for a in d.alternatives])
    numbers = (f"{q.name}: {q.value:.10g} {q.unit} = {q.source}" for q in d.arithmetic)
    yield from _section("batch", list(numbers))
    yield from _section("assumed", list(d.assumptions))
    yield from _section("space", list(d.space))


def _slot(decision: Decision, name: str) -> Iterator[str]:
    slot = decision.slot(name)
    nodes = f"{slot.nodes} node{'s' if slot.nodes > 1 else ''}"
    devices = f"{slot.devices} device{'s' if slot.devices > 1 else ''}"
    kind = f" ({slot.device})" if len({s.device for s in decision.slots}) > 1 else ""
    yield f"  {name}: {devices} on {nodes}{kind}, at most {_gb(decision.peak(name))} of {_gb(slot.memory)}"
    resident = decision.resident(name)
    if resident:
        yield f"    always   {_by_kind(resident)}"
    for phase in decision.on(name):
        yield from _phase(phase)


def _phase(phase: Phase) -> Iterator[str]:
    ahead = f", {phase.ahead} step{'s' if phase.ahead > 1 else ''} ahead" if phase.ahead else ""
    micro = f", micro={phase.layout.micro}" if phase.layout.micro else ""
    yield f"    {phase.name:<18} {_s(phase.start)} to {_s(phase.end)}{ahead}   {phase.layout}{micro}"
    parts = sorted(((v, k) for k, v in phase.parts.items() if v >= 0.001 * phase.seconds), reverse=True)
    yield f"      {_s(phase.seconds)}: " + ", ".join(f"{k} {_s(v)}" for v, k in parts)
    if phase.memory.transient:
        yield f"      while it runs {_by_kind(phase.memory.transient)}"


def _transfers(transfers: Sequence[Transfer]) -> Iterator[str]:
    """Those of the same rows the same way are one line: they differ in who waits for them."""
    waiting: dict[str, list[str]] = {}
    for t in transfers:
        way = t.source if t.source == t.target else f"{t.source} → {t.target}"
        line = f"  {t.kind:<8}{_moved(t)}, {way}: {_gb(t.bytes)} into a device in {_s(t.seconds)}"
        waiting.setdefault(line, []).append(t.before)
    for line, phases in waiting.items():
        yield line + (f", for {', '.join(phases)}" if line.startswith("  rows") else "")


def _moved(t: Transfer) -> str:
    """What moves: rows of the phases that made them, or what a model has."""
    return f"of {', '.join(t.after)}" if t.kind == "rows" else t.model


def _alternative(a: Alternative) -> str:
    if a.period is None or a.by is None:
        return f"{a.what}: {a.why}"
    return f"{a.what}: {_s(a.period)}, {'as fast' if abs(a.by) < 5e-5 else f'{a.by:+.1%}'}"


def _section(name: str, lines: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f"  {name if number == 0 else '':<8}{line}"


def _by_kind(sizes: dict[str, float]) -> str:
    shown = sorted(((v, k) for k, v in sizes.items() if v >= 5e6), reverse=True)
    return f"{_gb(sum(sizes.values()))}: " + ", ".join(f"{k} {_gb(v)}" for v, k in shown)


def _s(seconds: float) -> str:
    for least, unit, name, digits in ((10, 1, "s", 1), (0.1, 1, "s", 2), (1e-4, 1e-3, "ms", 1)):
        if seconds >= least:
            return f"{seconds / unit:.{digits}f} {name}"
    return f"{seconds * 1e6:.1f} µs" if seconds else "0 s"


def _gb(size: float) -> str:
    for least, unit, name in ((5e7, GB, "GB"), (1e5, 1e6, "MB"), (1e3, 1e3, "kB")):
        if size >= least:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} B"
