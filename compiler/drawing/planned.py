"""The scene of a plan without a decision: its meshes as lanes, its model calls, operators and reads as nodes.

There are no times and no bytes: a plan says what happens, not how long it takes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import networkx as nx

from .. import plan as p
from .decided import Link, implied
from .scene import Detail, Edge, EdgeKind, Lane, Node, NodeKind, Scene
from .words import counted

KINDS: Mapping[str, NodeKind] = {
    "generate": "generate",
    "logprobs": "forward",
    "entropy": "forward",
    "values": "forward",
    "score": "forward",
    "update": "train",
    "call": "operator",
    "read": "source",
}
MODEL_KINDS = frozenset({"generate", "forward", "train"})
CARRY = frozenset({"move", "gather", "share", "announce"})
"""Instructions that bring values to other ranks."""
LAYOUT = ("dp", "fsdp", "micro", "engine")


def planned(plan: p.Plan) -> Scene:
    """The picture of a plan. Values that are computed between two nodes are the edge between them."""
    reader = _Reader(plan)
    reader.walk()
    used = {n.lane for n in reader.nodes.values()}
    lanes = tuple(Lane(m.name, _caption(plan, m)) for m in plan.meshes if m.name in used)
    facts = (
        Detail("Target", "one process" if plan.target == "single" else "many ranks"),
        Detail("Ranks", f"{plan.ranks:,}"),
        Detail("Models", ", ".join(m.name for m in plan.models)),
        Detail("Staleness", counted(max((a.staleness for a in plan.ahead), default=0), "step")),
        Detail("Plan", plan.hash[:12]),
    )
    notes = (plan.doc.strip().split("\n")[0],) if plan.doc else ()
    nodes = tuple(reader.nodes.values())
    return Scene(plan.flow, "plan of one step", facts, lanes, nodes, tuple(reader.edges()), notes=notes)


def links(plan: p.Plan) -> tuple[Link, ...]:
    """What reads what in a plan, by the names that a placement decision has for phases and operators."""
    reader = _Reader(plan)
    reader.walk()
    name = {id: n.title if n.kind in MODEL_KINDS else id.split(" ")[0] for id, n in reader.nodes.items()}
    found = {(name[s], name[t]): reader.queued[s, t] for s, t in reader.arrows}
    return tuple(Link(s, t, steps) for (s, t), steps in found.items() if s != t)


def _caption(plan: p.Plan, mesh: p.Mesh) -> tuple[str, ...]:
    if plan.target == "single":
        return ("one process",)
    held = (h for h in plan.holdings if h.mesh == mesh.name)
    return (counted(mesh.devices, "rank"), *(f"{_named(h)}: {_degrees(h)}" for h in held))


def _named(holding: p.Holding) -> str:
    return holding.model if holding.name == holding.model else f"copy of {holding.model}"


def _degrees(holding: p.Holding) -> str:
    return " ".join(f"{k}={v}" for k, v in (("dp", holding.dp), ("fsdp", holding.fsdp)) if v > 1) or "one copy"


@dataclass(frozen=True)
class _Made:
    """A node that a value comes from, and the instructions that carried it to other ranks on the way."""

    node: str
    carried: tuple[str, ...] = ()
    ahead: int = 0


@dataclass
class _Reader:
    """Walks a plan. made: of each value, what it comes from. arrows: by ends, the values that were carried."""

    plan: p.Plan
    nodes: dict[str, Node] = field(default_factory=dict)
    made: dict[str, tuple[_Made, ...]] = field(default_factory=dict)
    arrows: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    queued: dict[tuple[str, str], int] = field(default_factory=dict)
    updates: dict[str, str] = field(default_factory=dict)
    weights: list[tuple[p.Instruction, str]] = field(default_factory=list)
    samplers: list[tuple[str, str, str]] = field(default_factory=list)

    def walk(self) -> None:
        """Read the whole plan."""
        for ahead in self.plan.ahead:
            self.block(ahead.program, ahead.staleness)
            self.block(ahead.exchange, ahead.staleness)
        self.block(self.plan.program, 0)

    def block(self, block: Iterable[p.Instruction], ahead: int, when: str = "") -> None:
        for i in block:
            self.instruction(i, ahead, when)

    def instruction(self, i: p.Instruction, ahead: int, when: str) -> None:
        if i.op in KINDS:
            self._node(i, ahead, when)
        elif i.op == "weights":
            self.weights.append((i, when))
        else:
            self.block(i.body, ahead, when or _when(i))
            carrier = (_carried(i),) if i.op in CARRY else ()
            inner = [x.out for x in i.body] if i.op == "collect" else []
            for out in i.outs:
                reads = [_ref(i.args[out])] if i.op in ("move", "gather") else [*i.reads, *inner, *_region(i)]
                self.made[out] = tuple(
                    _Made(m.node, (*m.carried, *carrier), m.ahead) for m in self._sources(r for r in reads if r)
                )

    def _sources(self, reads: Iterable[str]) -> tuple[_Made, ...]:
        return tuple(dict.fromkeys(m for r in reads for m in self.made.get(r, ())))

    def _node(self, i: p.Instruction, ahead: int, when: str) -> None:
        """A node; equal reads of one file, once on each mesh, are one each."""
        id = f"{i.out} {ahead}" if i.op != "update" else f"{i.attrs['model']}.update"
        if i.op == "update":
            self._inside(i, ahead)
            self.updates[i.attrs["model"]] = id
        if i.op == "generate":
            self.samplers.append((i.attrs["model"], id, i.mesh))
        for m in self._sources(_outer_reads(i)):
            ends = (m.node, id)
            self.arrows[ends] = tuple(dict.fromkeys((*self.arrows.get(ends, ()), *m.carried)))
            self.queued[ends] = max(self.queued.get(ends, 0), m.ahead - ahead)
        self.nodes[id] = Node(
            id, i.mesh, KINDS[i.op], _title(i), 0, tuple(_lines(i, ahead, when)), details=tuple(_details(i, when))
        )
        self.made[i.out] = (_Made(id, (), ahead),)

    def _inside(self, update: p.Instruction, ahead: int) -> None:
        """Other models' calls and operators inside an update are nodes too; calls of its own model are its own."""
        own = update.attrs["model"]
        inner = [i for i in update.body if not (i.op in KINDS and i.attrs.get("model") == own)]
        self.block(inner, ahead, f"in {own}.update")

    # ------------------------------------------------------------ edges

    def edges(self) -> Iterator[Edge]:
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_edges_from(self.arrows)
        for (source, target), carried in self.arrows.items():
            if source == target or (not carried and implied(graph, source, target)):
                continue
            kind: EdgeKind = "rows" if carried else "follows"
            steps = self.queued[source, target]
            label = f"queued {counted(steps, 'step')}" if steps > 0 else ""
            details = tuple(Detail("Moves", c) for c in carried)
            yield Edge(f"{source} → {target}", kind, source, target, label, details=details)
        yield from self._weights()

    def _weights(self) -> Iterator[Edge]:
        """From each update to where its model samples: also in one process the next step draws with the new weights."""
        for model, sampler, mesh in self.samplers:
            if model not in self.updates:
                continue
            sent = [i for i, _ in self.weights if i.attrs["model"] == model and i.mesh == mesh]
            holding = sent[0].attrs["holding"] if sent else ""
            told = (Detail("Weights", f"{model}, to {holding or mesh}"), Detail("When", "for the next step"))
            yield Edge(f"weights {model} → {sampler}", "weights", self.updates[model], sampler, "", True, told)


def _when(i: p.Instruction) -> str:
    match i.op:
        case "every":
            return f"every {i.attrs['period']} steps"
        case "when":
            return "when a condition holds"
        case "collect":
            return "until enough are kept"
    return ""


def _ref(operand: p.Operand) -> str:
    return operand.ref if isinstance(operand, p.Value) else ""


def _region(i: p.Instruction) -> list[str]:
    return [str(i.attrs["region"])] if i.op == "collected" else []


def _outer_reads(i: p.Instruction) -> list[str]:
    """What an instruction reads that isn't made inside it."""
    inside = {x.out for x in i.walk()[1:]} - {x.out for x in i.body if x.op in KINDS}
    return [r for x in i.walk() for r in x.reads if r not in inside]


def _carried(i: p.Instruction) -> str:
    source = i.attrs.get("source", "")
    return f"{', '.join(i.outs)}: {source} → {i.mesh}" if source else f"{', '.join(i.outs)} on {i.mesh}"


# ---------------------------------------------------------------- what is said of a node


def _title(i: p.Instruction) -> str:
    match i.op:
        case "call":
            return _plain(i.out) if not i.out.startswith("%") else str(i.attrs["operator"]).split(".")[-1]
        case "read":
            return _plain(i.out)
    return f"{i.attrs['model']}.{i.op}"


def _plain(name: str) -> str:
    """The name of a value without the mesh that a copy of it is on."""
    return name.split("@")[0]


def _lines(i: p.Instruction, ahead: int, when: str) -> Iterator[str]:
    match i.op:
        case "call":
            yield str(i.attrs["operator"])
        case "read":
            yield str(i.attrs["path"]).rsplit("/", 1)[-1]
        case "update":
            yield f"{i.attrs['optimizer']['name']}, {counted(i.attrs['epochs'], 'epoch')}"
        case _ if not i.out.startswith("%"):
            yield _plain(i.out)
    if ahead:
        yield f"{counted(ahead, 'step')} ahead"
    if when:
        yield when
    degrees = [f"{k}={i.attrs[k]}" for k in ("dp", "fsdp") if i.attrs.get(k, 1) != 1]
    if degrees:
        yield " ".join(degrees)


def _details(i: p.Instruction, when: str) -> Iterator[Detail]:
    yield Detail("Instruction", f"{i.op} → {i.out}" if i.op != "update" else f"update {i.attrs['model']}")
    if i.type:
        yield Detail("Type", i.type)
    if reads := list(dict.fromkeys(_outer_reads(i))):
        yield Detail("Reads", ", ".join(reads))
    if i.layout:
        yield Detail("Rows", i.layout)
    yield Detail("Mesh", i.mesh)
    if when:
        yield Detail("When", when)
    for name in ("model", "operator", "path", "n", "minibatch", "epochs", "micro", "dp", "fsdp"):
        if i.attrs.get(name) not in (None, "", False):
            yield Detail(name, str(i.attrs[name]))
