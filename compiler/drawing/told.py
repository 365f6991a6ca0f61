"""What a picture says of a decision: lines in boxes, labels, and the details of each thing."""

from collections.abc import Iterator

from ..search.decision import Alternative, Bytes, Decision, Operator, Phase, Slot, Transfer
from .scene import Detail, Parts, Share
from .words import counted, in_bytes, in_percent, in_seconds

HOSTWARD = frozenset({"sleep", "offload"})
STATE = {"wake": "weights", "sleep": "weights", "reload": "optimizer", "offload": "optimizer"}


def facts(decision: Decision) -> tuple[Detail, ...]:
    """The header: the numbers that the decision is about."""
    used = sum(s.devices for s in decision.slots)
    devices = f"{decision.devices:,}" + (f", {used:,} in use" if used < decision.devices else "")
    staleness = f"{counted(decision.staleness, 'step')}" if decision.staleness else "none, synchronous"
    return (
        Detail("Cluster", decision.cluster or "not named"),
        Detail("Devices", devices),
        Detail("Period", f"{in_seconds(decision.period)} a step"),
        Detail("Lower bound", in_seconds(decision.bound)),
        Detail("Gap", _gap(decision)),
        Detail("Makespan", in_seconds(decision.makespan)),
        Detail("Staleness", staleness),
    )


def _gap(decision: Decision) -> str:
    """What was proven: that nothing is better, or by how much at most something could be."""
    if decision.gap < 0.0005:
        return "0 %, proven optimal"
    return f"at most {in_percent(decision.gap)}" + ("" if decision.optimal else ", search stopped early")


def lost(decision: Decision) -> tuple[Detail, ...]:
    """The choices that lost, and by how much."""
    return tuple(Detail(x.what, _by(x)) for x in decision.alternatives)


def _by(x: Alternative) -> str:
    if x.period is None:
        return x.why or "doesn't fit"
    slower = "" if x.by is None else f", {in_percent(x.by)} slower" if x.by >= 0.0005 else ", as fast"
    return f"{in_seconds(x.period)}{slower}" + (f": {x.why}" if x.why else "")


def notes(decision: Decision) -> tuple[str, ...]:
    """Sentences below the picture."""
    searched = (f"Searched: {'; '.join(decision.space)}.",) if decision.space else ()
    assumed = (f"Assumed: {'; '.join(decision.assumptions)}.",) if decision.assumptions else ()
    return (*searched, *assumed)


# ---------------------------------------------------------------- lanes


def lane_caption(decision: Decision, slot: Slot) -> tuple[str, ...]:
    """How many devices a slot has, which, and on how many nodes; what they are, where others are something else."""
    last = slot.first + slot.devices - 1
    ranks = f"rank {slot.first}" if slot.devices == 1 else f"ranks {slot.first}–{last}"
    own = () if slot.name.replace(" ", "") == ranks.replace("–", "-").replace(" ", "") else (ranks,)
    kind = f" ({slot.device})" if len({s.device for s in decision.slots}) > 1 else ""
    return (counted(slot.devices, "device"), counted(slot.nodes, "node") + kind, *own)


def lane_memory(decision: Decision, slot: str) -> Parts:
    """What one device of a slot holds at its peak, by model and kind."""
    resident = _shares(decision.resident(slot), True)
    fullest = max(decision.on(slot), key=lambda x: sum(x.memory.transient.values()), default=None)
    passing = _shares(fullest.memory.transient, False, f", {fullest.name}") if fullest else ()
    memory = decision.slot(slot).memory
    shown = _of(memory, decision.peak(slot))
    return Parts("Memory of a device at its peak", shown, memory or 1.0, resident + passing)


def _of(memory: float, size: float) -> str:
    """`58 of 74 GB`."""
    held, whole = in_bytes(size), in_bytes(memory)
    same_unit = held.split()[-1] == whole.split()[-1]
    return f"{held.split()[0] if same_unit else held} of {whole}"


def _shares(sizes: Bytes, lasting: bool, suffix: str = "") -> tuple[Share, ...]:
    return tuple(Share(f"{n}{suffix}", s, in_bytes(s), lasting) for n, s in by_size(sizes))


def by_size(parts: Bytes) -> list[tuple[str, float]]:
    """The parts there are, the largest first."""
    return sorted(((n, s) for n, s in parts.items() if s > 0), key=lambda x: (-x[1], x[0]))


# ---------------------------------------------------------------- phases


def phase_lines(phase: Phase) -> tuple[str, ...]:
    """The lines of a phase's box below its name."""
    ahead = f" · {counted(phase.ahead, 'step')} ahead" if phase.ahead else ""
    degrees = " ".join(f"{n}={v}" for n, v in phase.layout.degrees.items()) or "one device"
    return (f"{in_seconds(phase.seconds)}{ahead}", degrees)


def about_phase(decision: Decision, phase: Phase) -> tuple[Detail, ...]:
    """Everything known of a phase, the parts of its time and memory apart."""
    return tuple(Detail(label, value) for label, value in _about_phase(decision, phase) if value)


def _about_phase(decision: Decision, phase: Phase) -> Iterator[tuple[str, str]]:
    layout = phase.layout
    yield "Model", phase.model
    yield "Devices", f"{counted(layout.devices, 'device')} of {phase.slot}"
    yield "Layout", str(layout)
    yield "Micro-batch", counted(layout.micro, "token") if layout.micro else ""
    yield "When", f"{in_seconds(phase.start)} to {in_seconds(phase.end)} of a period"
    yield "Ahead", f"{counted(phase.ahead, 'step')} before the step that reads its result" if phase.ahead else ""
    yield "Work", ", ".join(_work(phase))
    yield "After", ", ".join(phase.after)
    yield "Instructions", ", ".join(phase.runs)


def _work(phase: Phase) -> Iterator[str]:
    if phase.samples:
        yield counted(phase.samples, "sample")
    if phase.tokens:
        yield counted(phase.tokens, "token")


def phase_parts(decision: Decision, phase: Phase) -> tuple[Parts, ...]:
    """Its seconds and its bytes by kind."""
    seconds = tuple(Share(n, s, in_seconds(s)) for n, s in by_size(phase.parts))
    memory = _shares(phase.memory.resident, True) + _shares(phase.memory.transient, False)
    held, has = sum(s.size for s in memory), decision.slot(phase.slot).memory
    return (
        Parts("Seconds", in_seconds(phase.seconds), phase.seconds or 1.0, seconds),
        Parts("Memory of a device", _of(has, held), has or held or 1.0, memory),
    )


def about_operator(operator: Operator) -> tuple[Detail, ...]:
    after = (Detail("After", ", ".join(operator.after)),) if operator.after else ()
    return (Detail("Function", operator.function), Detail("Where", f"where its rows are: {operator.where}"), *after)


# ---------------------------------------------------------------- transfers


def transfer_label(decision: Decision, transfer: Transfer, back: bool) -> str:
    """What an edge is labelled with: bytes; of what waits for another step also what and how long."""
    queued = next((x.ahead for x in decision.phases if x.name in transfer.after), 0)
    waits = next((x.ahead for x in decision.phases if x.name == transfer.before), 0)
    size = in_bytes(transfer.bytes)
    if back:
        return f"{transfer.model} {transfer.kind} · {size} · {in_seconds(transfer.seconds)}".strip()
    return f"{size}, queued {counted(queued - waits, 'step')}" if queued > waits else size


def chip_text(transfer: Transfer) -> str:
    """`wake weights 12.3 GB · 0.4 s`."""
    what = STATE.get(transfer.kind, transfer.model)
    if not transfer.bytes:
        return f"{transfer.kind} {what}, nothing to copy"
    return f"{transfer.kind} {what} {in_bytes(transfer.bytes)} · {in_seconds(transfer.seconds)}"


def about_transfer(transfer: Transfer) -> tuple[Detail, ...]:
    """Everything known of a transfer."""
    rows = (
        ("What", f"{transfer.kind} of {transfer.model}" if transfer.model else transfer.kind),
        ("From", f"{transfer.source} to {transfer.target}"),
        ("Bytes", f"{in_bytes(transfer.bytes)} into the busiest device"),
        ("Time", f"{in_seconds(transfer.seconds)}, from {in_seconds(transfer.start)} to {in_seconds(transfer.end)}"),
        ("After", ", ".join(transfer.after)),
        ("Before", transfer.before),
    )
    return tuple(Detail(label, value) for label, value in rows if value)
