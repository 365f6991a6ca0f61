"""A placement decision: what was chosen, what it costs, what was proven, and what lost. Data only, JSON both ways.

Units: seconds, bytes per device unless it says otherwise, tokens. Times are those of one period of the steady state:
phase `p` of period `i` runs from `i × period + p.start` to `i × period + p.end`.
"""

from typing import Literal

import msgspec

Kind = Literal["train", "forward", "generate"]
"""What a phase does with its model: update it, read it once (log-probs, values, scores), or sample from it."""

Bytes = dict[str, float]
"""Bytes of one device by kind, such as `weights`, `gradients`, `optimizer`, `activations`, `kv cache`."""


class Slot(msgspec.Struct, frozen=True):
    """A group of devices that runs one phase at a time: `devices` of them from rank `first` on, on `nodes` nodes.

    device: what they are. memory: bytes that each may use.
    """

    name: str
    first: int
    devices: int
    nodes: int
    device: str
    memory: float

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.devices)


class Layout(msgspec.Struct, frozen=True, order=True):
    """How a model lies on a slot: tp × pp × fsdp devices hold it once, `dp` times over.

    ep: of dp × fsdp, devices that share the experts of a layer.
    recompute: activations are computed again in the backward pass. micro: tokens of a micro-batch; 0 where there is
    none. sleeps: what the phase holds (an engine's weights, a trained model's optimizer state) waits in host memory
    while other phases run.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    fsdp: int = 1
    recompute: bool = False
    micro: int = 0
    sleeps: bool = False
    ep: int = 1

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp * self.fsdp

    def __str__(self) -> str:
        degrees = " ".join(f"{n}={v}" for n, v in self.degrees.items()) or "one device"
        extra = [w for w, given in (("recompute", self.recompute), ("asleep between", self.sleeps)) if given]
        return ", ".join([degrees, *extra])

    @property
    def degrees(self) -> dict[str, int]:
        """The degrees above 1 by name."""
        named = {"tp": self.tp, "pp": self.pp, "dp": self.dp, "fsdp": self.fsdp, "ep": self.ep}
        return {n: v for n, v in named.items() if v > 1}


class Memory(msgspec.Struct, frozen=True):
    """What a phase keeps on each of its devices all the time (`resident`), and what only while it runs."""

    resident: Bytes
    transient: Bytes


class Phase(msgspec.Struct, frozen=True):
    """A model phase where it was put.

    name: as `place` calls it, `policy.update`. runs: the instructions of the plan it stands for. ahead: how many steps
    ahead of the step that reads its result it runs. seconds: from start to end; parts: what they are made of.
    samples, tokens: of all its devices in one step (prompt and new tokens together, every epoch counted).
    """

    name: str
    model: str
    kind: Kind
    slot: str
    layout: Layout
    seconds: float
    parts: dict[str, float]
    memory: Memory
    start: float
    end: float
    after: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    ahead: int = 0
    samples: int = 0
    tokens: int = 0


class Operator(msgspec.Struct, frozen=True):
    """A row-wise operator: it runs where its rows are. where: the slot of the phase they come from, or `controller`."""

    name: str
    function: str
    where: str
    after: tuple[str, ...] = ()


class Transfer(msgspec.Struct, frozen=True):
    """Something that moves between phases.

    kind: `weights` of a model from where it is trained to where it generates; `rows`; `wake`, `sleep`: an engine's
    weights from and to host memory; `offload`, `reload`: optimizer state. source, target: slots, or `host`. before:
    the phase that waits for it; after: the phases it follows. bytes: into the busiest device. A transfer occupies the
    slots it names.
    """

    kind: Literal["weights", "rows", "wake", "sleep", "offload", "reload"]
    model: str
    source: str
    target: str
    bytes: float
    seconds: float
    start: float
    end: float
    before: str = ""
    after: tuple[str, ...] = ()


class Alternative(msgspec.Struct, frozen=True):
    """A choice that lost. period: the best found with it, None where nothing fits. by: fraction it is slower."""

    what: str
    period: float | None
    by: float | None
    why: str = ""


class Quantity(msgspec.Struct, frozen=True):
    """A number of the batch's arithmetic, and where it comes from."""

    name: str
    value: float
    unit: str
    source: str


class Decision(msgspec.Struct, frozen=True):
    """A whole placement.

    period: seconds between two steps in the steady state. makespan: seconds from the first phase of a batch to the end
    of its last. staleness: steps between a draw's weights and the step that trains on it. bound: no placement in the
    space searched has a shorter period. gap: (period − bound) / period. optimal: whether the search ended by itself.
    space: what was searched, in words.
    """

    flow: str
    cluster: str
    devices: int
    slots: tuple[Slot, ...]
    phases: tuple[Phase, ...]
    operators: tuple[Operator, ...]
    transfers: tuple[Transfer, ...]
    period: float
    makespan: float
    staleness: int
    bound: float
    gap: float
    optimal: bool
    space: tuple[str, ...]
    alternatives: tuple[Alternative, ...] = ()
    arithmetic: tuple[Quantity, ...] = ()
    assumptions: tuple[str, ...] = ()

    def slot(self, name: str) -> Slot:
        """The slot of that name."""
        return next(s for s in self.slots if s.name == name)

    def phase(self, name: str) -> Phase:
        """The phase of that name."""
        return next(x for x in self.phases if x.name == name)

    def on(self, slot: str) -> tuple[Phase, ...]:
        """The phases of a slot in the order they run."""
        return tuple(sorted((x for x in self.phases if x.slot == slot), key=lambda x: (x.start, x.name)))

    def resident(self, slot: str) -> Bytes:
        """Bytes that each device of a slot holds all the time, by `model kind`; phases of a model share its state.

        An engine has weights of its own.
        """
        found: Bytes = {}
        for phase in self.on(slot):
            of = f"{phase.model} engine" if phase.kind == "generate" else phase.model
            for kind, size in phase.memory.resident.items():
                found[f"{of} {kind}"] = max(size, found.get(f"{of} {kind}", 0.0))
        return found

    def peak(self, slot: str) -> float:
        """Bytes that each device of a slot holds at most."""
        return sum(self.resident(slot).values()) + max(
            (sum(x.memory.transient.values()) for x in self.on(slot)), default=0.0
        )


def encode(decision: Decision) -> bytes:
    """The decision as JSON: two spaces of indent, a final newline, the same bytes for the same decision."""
    return msgspec.json.format(msgspec.json.encode(decision, order="deterministic"), indent=2) + b"\n"


def decode(data: bytes) -> Decision:
    """The decision in JSON. Raises ValueError if it isn't one."""
    try:
        return msgspec.json.decode(data, type=Decision)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"this is no placement decision: {error}") from None
