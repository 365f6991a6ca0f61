"""What a simulation is asked for, and what it answers. Units: seconds, bytes of one device, steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .events import Ran


@dataclass(frozen=True)
class Options:
    """What to simulate.

    seed: of lengths and failures. drawn: whether lengths of responses are drawn, and the ways of rows count that a
    search leaves out; otherwise all takes the time that was decided. together: steps end together on all slots, as in
    a run, where every rank reports each step, and as the search counts; otherwise only what a task waits for holds it.
    mtbf: mean seconds between failures of the whole run; None: nothing fails. save_every: steps between commits; None:
    one at the end, and every 50 steps where runs fail, as `flowrun` has it. commit, restart: seconds of each.
    """

    steps: int = 20
    seed: int = 0
    drawn: bool = True
    together: bool = True
    mtbf: float | None = None
    save_every: int | None = None
    commit: float = 0.0
    restart: float = 300.0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"`--steps {self.steps}`: it is at least 1")
        if self.save_every is not None and self.save_every < 1:
            raise ValueError(f"`--save-every {self.save_every}`: it is at least 1")
        if self.mtbf is not None and self.mtbf <= 0:
            raise ValueError(f"`--mtbf {self.mtbf / 3600:g}`: it is more than 0 hours")
        for name, value in (("--commit", self.commit), ("--restart", self.restart)):
            if value < 0:
                raise ValueError(f"`{name} {value:g}`: it is at least 0 seconds")

    @property
    def interval(self) -> int:
        """Steps from commit to commit."""
        if self.save_every is not None:
            return self.save_every
        return self.steps if self.mtbf is None else 50


@dataclass(frozen=True)
class Step:
    """A step that counts. seconds: since the step before ended, without failures and commits. end: on the clock.

    latency: from the first phase of its batch, or what was brought for it, to the end of the last.
    """

    number: int
    seconds: float
    end: float
    latency: float


@dataclass(frozen=True)
class Incident:
    """A commit, a restart, or a failure; a failure takes the time since the last commit (`lost`) with it."""

    kind: str
    start: float
    end: float
    step: int
    lost: float = 0.0


@dataclass(frozen=True)
class Usage:
    """What the devices of a slot did. busy: seconds by kind of phase or transfer. tail: of `generate`, the mean part in
    which a replica had ended and waited for the longest. total: seconds of the run; stopped: of these, what went into
    commits, restarts and work that was lost.
    """

    slot: str
    devices: int
    busy: Mapping[str, float]
    tail: float
    total: float
    stopped: float = 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Fractions of the time by what was done, `tail`, `stopped` and `idle` among them. They sum to 1."""
        if self.total <= 0:
            return {"idle": 1.0}
        shares = {kind: seconds / self.total for kind, seconds in self.busy.items()}
        if self.tail:
            shares["generate"] -= self.tail / self.total
            shares["tail"] = self.tail / self.total
        if self.stopped:
            shares["stopped"] = self.stopped / self.total
        return {**shares, "idle": max(0.0, 1.0 - sum(shares.values()))}

    @property
    def utilisation(self) -> float:
        """The fraction of the time in which a device worked on a phase."""
        return sum(v for k, v in self.shares.items() if k in ("train", "forward", "generate"))


@dataclass(frozen=True)
class Peak:
    """Memory of each device of a slot. resident: all the time. peak: at most, while phase `during` ran."""

    slot: str
    resident: float
    peak: float
    during: str


@dataclass(frozen=True)
class Result:
    """A simulated run.

    elapsed: its seconds. useful: those of the work that counts. ran: every run of a task that counts, by its end; lost:
    what failures broke off. events: starts and ends simulated, those of lost work included. queue: batches of rollouts
    that waited at most.
    """

    options: Options
    staleness: int
    steps: tuple[Step, ...]
    usage: tuple[Usage, ...]
    memory: tuple[Peak, ...]
    elapsed: float
    useful: float
    events: int
    queue: int
    incidents: tuple[Incident, ...] = ()
    ran: tuple[Ran, ...] = field(default=(), repr=False)
    lost: tuple[Ran, ...] = field(default=(), repr=False)

    @property
    def steady(self) -> tuple[Step, ...]:
        """The steps after the warm-up: as many are left out as draws run ahead."""
        return self.steps[min(self.staleness, len(self.steps) - 1) :]

    @property
    def mean(self) -> float:
        """Mean seconds of a step in the steady state."""
        return sum(s.seconds for s in self.steady) / len(self.steady)

    @property
    def p95(self) -> float:
        """Seconds that 95% of the steps of the steady state don't exceed."""
        return quantile([s.seconds for s in self.steady], 0.95)

    @property
    def latency(self) -> float:
        """Mean seconds from a batch's first phase to its last."""
        return sum(s.latency for s in self.steady) / len(self.steady)

    @property
    def goodput(self) -> float:
        """The fraction of the time that went into steps that count."""
        return self.useful / self.elapsed if self.elapsed else 1.0

    @property
    def failures(self) -> tuple[Incident, ...]:
        return tuple(i for i in self.incidents if i.kind == "failure")


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, between neighbours by proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
