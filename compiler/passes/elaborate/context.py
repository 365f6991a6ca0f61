"""What elaboration carries along: scopes, the nodes made so far, and how operands other than values look."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from ....dsl import ast
from ....dsl.diagnostics import Note, Report
from ....dsl.modules import DefSymbol, FlowModule, PythonModule, Symbol
from ....dsl.operators import Operator
from ....dsl.source import Span
from ...graph import ERROR, AxisName, Constant, Node, Operand, Ref, Role, State, Type
from ...limits import LARGEST_GRAPH, TooLarge

# ---------------------------------------------------------------- what an expression may mean


@dataclass(frozen=True)
class ModelUse:
    """A model in an expression; `version` is `now` or `next`."""

    role: str
    version: str = "now"


@dataclass(frozen=True)
class Method:
    """`policy.generate`, before it is called."""

    model: ModelUse
    name: str


Meaning: TypeAlias = "Operand | ModelUse | Method | AxisName | DefSymbol | Operator | FlowModule | PythonModule"
"""A value, or something that only stands before a dot or a parenthesis."""

# ---------------------------------------------------------------- scopes


@dataclass
class Scope:
    """One block: names waiting to be elaborated, names that have a meaning, and the nodes in order.

    done: ids of the statements that were begun. read: names that something looked up.
    """

    kind: str
    parent: "Scope | None" = None
    pending: dict[str, tuple[ast.FlowStatement, "Scope"]] = field(default_factory=dict)
    names: dict[str, Meaning] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    role: str | None = None

    def chain(self) -> "list[Scope]":
        return [self, *(self.parent.chain() if self.parent else [])]

    def updated_role(self) -> str | None:
        """The model that the enclosing update trains."""
        return next((s.role for s in self.chain() if s.kind == "update"), None)


@dataclass(frozen=True)
class Env:
    """Where an expression is read: the block that takes its nodes, and what its names mean.

    locals: of an inlined definition, its parameters and assignments; None in the flow's own text.
    call_span: the call in the flow that the inlining began at. target: the name the value is being given.
    """

    scope: Scope
    module: FlowModule
    locals: Mapping[str, Meaning] | None = None
    call_span: Span | None = None
    target: str | None = None

    def anonymous(self) -> "Env":
        return replace(self, target=None)


# ---------------------------------------------------------------- the context


@dataclass
class Context:
    """What all of a flow's elaboration shares.

    inlining: definitions being inlined, outermost first; inlined: ids of all that ever were.
    read: parameters that something looked up. errors: ids of the nodes that stand for what was refused.
    unknown: names that a file doesn't know, and that were reported already.
    """

    report: Report
    module: FlowModule
    roles: dict[str, Role] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)
    params: dict[str, Constant] = field(default_factory=dict)
    inlining: list[ast.Def] = field(default_factory=list)
    inlined: set[int] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    errors: set[int] = field(default_factory=set)
    unknown: set[tuple[Path, str]] = field(default_factory=set)
    _count: int = 0
    _names: set[str] = field(default_factory=set)

    def emit(
        self,
        env: Env,
        op: str,
        args: Mapping[str, Operand],
        span: Span,
        attrs: Mapping[str, Any] | None = None,
        body: tuple[Node, ...] = (),
        type: Type | None = None,
    ) -> Ref:
        """Append a node to the block that `env` fills and return its value."""
        self._count += 1
        if self._count > LARGEST_GRAPH:
            raise TooLarge
        name = self.unique(env.target) if env.target else f"%{self._count}"
        outer, origin = (env.call_span, span) if env.call_span else (span, None)
        env.scope.nodes.append(Node(self._count, op, name, args, attrs or {}, type or Type("any"), body, outer, origin))
        return Ref(self._count)

    def unique(self, name: str) -> str:
        """`name`, numbered if another block uses it too."""
        candidate, n = name, 1
        while candidate in self._names:
            n += 1
            candidate = f"{name}_{n}"
        self._names.add(candidate)
        return candidate

    def name_value(self, scope: Scope, ref: Ref, name: str) -> None:
        """Give a still unnamed node of this block the user's name; another name of a named value is an alias."""
        for i, node in enumerate(scope.nodes):
            if node.id == ref.id and not node.is_named:
                scope.nodes[i] = replace(node, name=self.unique(name))

    def refuse(self, code: str, message: str, env: Env, span: Span, *, label: str = "", help: str | None = None) -> Ref:
        """Report an error and stand in a value that fits everywhere, so that it is reported once."""
        notes = (Note("in this definition", span),) if env.call_span else ()
        self.report.add(code, message, env.call_span or span, label=label, notes=notes, help=help)
        return self.error(env, span)

    def error(self, env: Env, span: Span) -> Ref:
        """A value that fits everywhere, in the place of what was reported already."""
        ref = self.emit(env.anonymous(), "error", {}, span, type=ERROR)
        self.errors.add(ref.id)
        return ref

    def is_error(self, meaning: object) -> bool:
        """Whether this stands for something that was refused already."""
        return isinstance(meaning, Ref) and meaning.id in self.errors


__all__ = ["Context", "Env", "Meaning", "Method", "ModelUse", "Scope", "Symbol"]
