"""The typed dataflow graph: a tiny vocabulary of frozen nodes, and the axes that type their values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..dsl.source import NOWHERE, Span

# ---------------------------------------------------------------- axes and types


@dataclass(frozen=True)
class Axis:
    """One axis of values. Two axes are the same only if the same value opened them.

    owner: the value that opened it; kind: `prompt`, `sample` or `token`; parent: the axis above it.
    """

    owner: str
    kind: str
    parent: "Axis | None" = None

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.kind}"

    def chain(self) -> tuple["Axis", ...]:
        """This axis and all above it, innermost first."""
        return (self, *(self.parent.chain() if self.parent else ()))

    @property
    def root(self) -> "Axis":
        return self.chain()[-1]

    def __str__(self) -> str:
        return self.name


def covers(outer: Axis | None, inner: Axis | None) -> bool:
    """Whether a value on `outer` broadcasts to `inner` (a scalar does to everything)."""
    return outer is None or (inner is not None and outer in inner.chain())


def join(a: Axis | None, b: Axis | None) -> Axis | None:
    """The innermost of two axes of one hierarchy. Raises ValueError if they are strangers."""
    if covers(a, b):
        return b
    if covers(b, a):
        return a
    raise ValueError(f"`{a}` and `{b}` are strangers")


@dataclass(frozen=True)
class Type:
    """What a value is: a dtype on an axis (None: a scalar), or a record of named fields on it.

    dtype: `float int bool text messages list any`, or of a record `rows rollout sequences record`; `error` is the
        type of what was refused already, and fits everywhere so that one mistake is reported once.
    open: a record whose fields are not all known (a data file that isn't on this machine).
    """

    dtype: str
    axis: Axis | None = None
    fields: tuple[tuple[str, "Type"], ...] = ()
    open: bool = False

    @property
    def is_record(self) -> bool:
        return self.dtype in RECORDS

    def field(self, name: str) -> "Type | None":
        return dict(self.fields).get(name)

    def __str__(self) -> str:
        return f"{self.dtype}[{self.axis}]" if self.axis else self.dtype


RECORDS = frozenset({"rows", "rollout", "sequences", "record"})
ERROR = Type("error")

# ---------------------------------------------------------------- operands


@dataclass(frozen=True)
class Ref:
    """The value of a node."""

    id: int


@dataclass(frozen=True)
class Size:
    """A number with its unit, known at compile time."""

    value: int
    unit: str

    def __str__(self) -> str:
        return f"{self.value} {self.unit}"


@dataclass(frozen=True)
class AxisName:
    """An axis as it was written: `prompt`, or `rollout.sample` with the value it belongs to."""

    kind: str
    owner: Ref | None = None


Constant: TypeAlias = int | float | bool | str | Size | None
Operand: TypeAlias = Ref | Constant

LARGEST_INT = 2**63 - 1
"""The largest whole number that a plan can hold."""

# ---------------------------------------------------------------- nodes


@dataclass(frozen=True)
class Node:
    """One operator application, model phase, statement or region.

    name: unique in the graph; the user's where there is one, else `%id`.
    args: operands by parameter name. attrs: what is static. body: the nodes of a region, in order.
    origin: where the inlined definition wrote it; `span` is always in the flow itself.
    """

    id: int
    op: str
    name: str
    args: Mapping[str, Operand] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    type: Type = Type("any")
    body: tuple["Node", ...] = ()
    span: Span = NOWHERE
    origin: Span | None = None

    @property
    def is_named(self) -> bool:
        return not self.name.startswith("%")

    def refs(self) -> Iterator[int]:
        """Ids of the values this node itself reads (not those of its body)."""
        for value in self.args.values():
            if isinstance(value, Ref):
                yield value.id
        for value in self.attrs.values():
            if isinstance(value, AxisName) and value.owner:
                yield value.owner.id

    def walk(self) -> Iterator["Node"]:
        """This node and everything in its body, in order."""
        yield self
        for child in self.body:
            yield from child.walk()

    def inputs(self) -> set[int]:
        """Ids that this node, its body included, reads from outside itself."""
        inside = {n.id for n in self.walk()}
        return {r for n in self.walk() for r in n.refs()} - inside


PHASES = frozenset({"generate", "logprobs", "entropy", "values", "score"})
"""Ops that run a model; `attrs` hold `model` and `version` (`now`, `next`, or `live` inside its own update)."""

REGIONS = frozenset({"update", "when", "every", "collect"})
EFFECTS = REGIONS | {"metric", "record", "minimize", "next_state", "next_model", "keep_rows"}
"""Ops that stand for statements: never merged, never dropped."""

SCOPED = frozenset({"reduce", "rank"})
"""Ops whose result depends on which rows are in scope: a minibatch inside an update, the batch outside."""


def is_scoped(node: Node) -> bool:
    """Whether the node sees all rows in scope (reductions, ranks, operators of `Batch` or `Ragged`)."""
    return node.op in SCOPED or (node.op == "call" and bool(node.attrs["operator"].sees_batch))


def is_draw(node: Node) -> bool:
    return node.op == "generate" or (node.op == "call" and node.attrs["operator"].draws)


@dataclass(frozen=True)
class Role:
    """A stateful model. `of` names the model whose start a `frozen(model)` copies."""

    name: str
    kind: str
    path: str | None
    frozen: bool = False
    of: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    span: Span = NOWHERE


@dataclass(frozen=True)
class State:
    name: str
    initial: float | int | bool
    span: Span = NOWHERE


@dataclass(frozen=True)
class Graph:
    """One flow, elaborated with its parameters. `nodes` are the step's block in order."""

    flow: str
    params: Mapping[str, Constant]
    roles: Mapping[str, Role]
    states: Mapping[str, State]
    nodes: tuple[Node, ...]
    doc: str | None = None
    span: Span = NOWHERE

    def walk(self) -> Iterator[Node]:
        for node in self.nodes:
            yield from node.walk()

    def by_id(self) -> dict[int, Node]:
        return {n.id: n for n in self.walk()}

    def with_nodes(self, nodes: tuple[Node, ...]) -> "Graph":
        return replace(self, nodes=nodes)


def rebuild(nodes: tuple[Node, ...], change: Mapping[int, Node]) -> tuple[Node, ...]:
    """The same block with some nodes replaced, at any depth."""
    return tuple(replace(change.get(n.id, n), body=rebuild(n.body, change)) for n in nodes)
