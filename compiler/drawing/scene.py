"""What is drawn: lanes of devices, nodes on them, edges between, and bars on a time line. No positions, no colours."""

import math
from dataclasses import dataclass
from typing import Literal

NodeKind = Literal["generate", "forward", "train", "operator", "source"]
EdgeKind = Literal["follows", "rows", "weights"]
ChipKind = Literal["wake", "sleep", "offload", "reload", "weights", "rows"]

WORDS: dict[str, str] = {
    "generate": "samples from its model",
    "forward": "reads its model once",
    "train": "updates its model",
    "operator": "a function of rows",
    "source": "reads a data file",
    "follows": "reads what the other made",
    "rows": "rows move between devices",
    "weights": "new weights, for the next step",
    "host": "to or from host memory",
    "idle": "nothing runs",
}
"""What each kind of thing is, in the words of the legend."""


@dataclass(frozen=True)
class Detail:
    """A line of what is told on a click: `label: value`."""

    label: str
    value: str


@dataclass(frozen=True)
class Share:
    """A part of a whole. value: as text. lasting: of memory, kept all the time."""

    name: str
    size: float
    value: str
    lasting: bool = False


@dataclass(frozen=True)
class Parts:
    """What something is made of, shown as a bar. whole: the size of the full bar; total: of the parts, as text."""

    title: str
    total: str
    whole: float
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class Lane:
    """A group of devices. caption: lines below its name. memory: of one device, at its peak."""

    name: str
    caption: tuple[str, ...] = ()
    memory: Parts | None = None


@dataclass(frozen=True)
class Chip:
    """A transfer from or to host memory that a node waits for, or that follows it: it is shown in the node."""

    id: str
    kind: ChipKind
    text: str
    details: tuple[Detail, ...] = ()


@dataclass(frozen=True)
class Node:
    """A phase or an operator. number: in the order they start, shared with the time line; 0: none."""

    id: str
    lane: str
    kind: NodeKind
    title: str
    number: int = 0
    lines: tuple[str, ...] = ()
    chips: tuple[Chip, ...] = ()
    details: tuple[Detail, ...] = ()
    parts: tuple[Parts, ...] = ()


@dataclass(frozen=True)
class Edge:
    """What goes from one node to another. back: to the next step, so it runs against the order of the nodes."""

    id: str
    kind: EdgeKind
    source: str
    target: str
    label: str = ""
    back: bool = False
    details: tuple[Detail, ...] = ()


@dataclass(frozen=True)
class Bar:
    """Something that takes time on some lanes. of: the node or edge it shows. step: 0 is the step that trains now."""

    of: str
    kind: NodeKind | ChipKind
    title: str
    number: int
    lanes: tuple[str, ...]
    start: float
    end: float
    step: int = 0

    @property
    def step_text(self) -> str:
        """`t`, `t+1`, `t−1`."""
        return "t" if not self.step else f"t{'+' if self.step > 0 else '−'}{abs(self.step)}"

    def pieces(self, period: float) -> tuple[tuple[float, float], ...]:
        """Where it is seen in a period of the steady state: what hangs over its end comes in at its start."""
        start = self.start - periods(self.start, period) * period
        end = start + min(self.end - self.start, period)
        return ((start, end),) if end <= period * (1 + 1e-9) else ((start, period), (0.0, end - period))


def periods(time: float, period: float) -> int:
    """How many whole periods lie before a time; one on a border is in the period that begins there."""
    return math.floor(time / period + 1e-9)


@dataclass(frozen=True)
class Timeline:
    """One period of the steady state, in seconds. busy: the fraction of it in which each lane does something."""

    period: float
    lanes: tuple[str, ...]
    bars: tuple[Bar, ...]
    busy: tuple[float, ...]


@dataclass(frozen=True)
class Scene:
    """A whole picture. facts: the header's. notes: sentences below it. lost: what was searched too, and why it lost."""

    title: str
    subtitle: str
    facts: tuple[Detail, ...]
    lanes: tuple[Lane, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    timeline: Timeline | None = None
    notes: tuple[str, ...] = ()
    lost: tuple[Detail, ...] = ()

    def node(self, id: str) -> Node:
        """The node of that id."""
        return next(n for n in self.nodes if n.id == id)
