"""What inference carries along, and how a rule refuses."""

from dataclasses import dataclass, field

from ....dsl.diagnostics import Note, Report
from ....dsl.source import Span
from ...facts import Places
from ...graph import Axis, AxisName, Graph, Node, Operand, Ref, Size, Type


class Refusal(Exception):
    """Raised by a rule; the node's span is added where it is caught. `at`: the operand that is to blame."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        at: Operand = None,
        label: str = "",
        help: str | None = None,
        notes: tuple[Note, ...] = (),
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.at, self.label, self.help, self.notes = code, message, at, label, help, notes


@dataclass
class Context:
    graph: Graph
    report: Report
    places: Places
    nodes: dict[int, Node] = field(default_factory=dict)
    opened: dict[str, Span] = field(default_factory=dict)
    said: set[tuple[str, Span]] = field(default_factory=set)
    tokenised: dict[tuple[str, str, bool], dict[str | None, str]] = field(default_factory=dict)

    def type(self, operand: Operand) -> Type:
        """The type of a value or constant."""
        match operand:
            case Ref(id=id):
                return self.nodes[id].type
            case bool():
                return Type("bool")
            case int() | Size():
                return Type("int")
            case float():
                return Type("float")
            case str():
                return Type("text")
        return Type("any")

    def named(self, operand: Operand) -> str:
        """How a message calls an operand."""
        if not isinstance(operand, Ref):
            return f"`{operand}`"
        node = self.nodes[operand.id]
        if node.op == "field":
            return f"`{self.named(node.args['record']).strip('`')}.{node.attrs['field']}`"
        if node.op == "state":
            return f"`{node.attrs['state']}`"
        return f"`{node.name}`" if node.is_named else "this"

    def span(self, operand: Operand, within: Span) -> Span:
        """Where an operand is written, if that is inside `within`; else all of `within`."""
        if not isinstance(operand, Ref):
            return within
        span = self.nodes[operand.id].span
        return span if _contains(within, span) else within

    def open(self, axis: Axis, node: Node) -> Axis:
        """Remember where an axis was opened, for messages."""
        self.opened.setdefault(axis.name, node.span)
        return axis

    def join(self, *operands: Operand) -> Axis | None:
        """The innermost axis of all operands; strangers are refused by both names."""
        result: Axis | None = None
        first: Operand = None
        for operand in operands:
            axis = self.type(operand).axis
            if result is None or (axis is not None and result in axis.chain()):
                result, first = axis or result, operand if axis else first
            elif axis is not None and axis not in result.chain():
                raise self.strangers(first, result, operand, axis)
        return result

    def strangers(self, a: Operand, a_axis: Axis, b: Operand, b_axis: Axis) -> Refusal:
        notes = tuple(
            Note(f"axis `{x}` was opened here", self.opened[x.name]) for x in (a_axis, b_axis) if x.name in self.opened
        )
        return Refusal(
            "E0201",
            f"axes `{a_axis}` and `{b_axis}` are strangers",
            label=f"{self.named(a)} is on `{a_axis}`, {self.named(b)} on `{b_axis}`",
            help=f"reduce both to an axis they share, such as {_shared(a_axis, b_axis)}",
            notes=notes,
        )

    def axis(self, name: AxisName, within: Axis | None, what: str, *, innermost: bool = False) -> Axis:
        """The axis that a name means among those of a value."""
        if name.owner is not None:
            return self._owned(name, within, what)
        chain = within.chain() if within else ()
        found = [a for a in chain if a.kind == name.kind]
        if not found:
            has = ", ".join(f"`{a}`" for a in chain) or "none"
            raise Refusal("E0204", f"{what} has no `{name.kind}` axis", help=f"its axes are {has}")
        if len(found) > 1 and not innermost:
            both = " or ".join(f"`{a}`" for a in found)
            raise Refusal("E0202", f"`{name.kind}` is ambiguous here: {both}", help=f"write the full name, {both}")
        return found[0]

    def _owned(self, name: AxisName, within: Axis | None, what: str) -> Axis:
        assert name.owner is not None
        owner = self.type(name.owner)
        candidates = [*axes_of(owner)]
        found = next((a for a in candidates if a.kind == name.kind), None)
        if found is None and name.kind == "sample" and owner.axis:
            found = owner.axis  # without `n=` a sample counts as its prompt
        if found is None:
            raise Refusal("E0204", f"{self.named(name.owner)} has no `{name.kind}` axis")
        if within is not None and found not in within.chain():
            has = ", ".join(f"`{a}`" for a in within.chain())
            raise Refusal("E0204", f"{what} has no axis `{found}`", help=f"its axes are {has}")
        return found


def _contains(outer: Span, inner: Span) -> bool:
    starts = (outer.line, outer.column) <= (inner.line, inner.column)
    ends = (inner.end_line, inner.end_column) <= (outer.end_line, outer.end_column)
    return outer.path == inner.path and starts and ends


def axes_of(type: Type) -> tuple[Axis, ...]:
    """The axes of a value, innermost first; of a record, those of its innermost field."""
    axes = [type.axis, *(t.axis for _, t in type.fields)]
    deepest = max((a for a in axes if a), key=lambda a: len(a.chain()), default=None)
    return deepest.chain() if deepest else ()


def _shared(a: Axis, b: Axis) -> str:
    shared = [x for x in a.chain() if x in b.chain()]
    return f"`by={shared[0].kind}` (`{shared[0]}`)" if shared else "a scalar (`mean(x)`)"
