"""The abstract syntax of Flow. Both front ends build it; spans and comments take no part in equality."""

from dataclasses import dataclass, field
from typing import TypeAlias

from .source import NOWHERE, Span


@dataclass(frozen=True, kw_only=True)
class Node:
    """What every piece of syntax has."""

    span: Span = field(default=NOWHERE, compare=False, repr=False)


# ---------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Num(Node):
    """A number, with its unit where one was written: `0.2`, `64 prompts`. `raw` is how the author spelt it (`1e-6`)."""

    value: int | float
    unit: str | None = None
    raw: str | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Str(Node):
    value: str


@dataclass(frozen=True)
class Bool(Node):
    value: bool


@dataclass(frozen=True)
class Name(Node):
    id: str


@dataclass(frozen=True)
class Attr(Node):
    """`base.name`: a field, a column, a method, an axis or a module's member."""

    base: "Expr"
    name: str


@dataclass(frozen=True)
class Index(Node):
    """`base[i]`: only in `place` lines, where it picks nodes of a cluster."""

    base: "Expr"
    index: int
    stop: int | None = None


@dataclass(frozen=True)
class Arg(Node):
    """One argument of a call; `name` is None for a positional one."""

    value: "Expr"
    name: str | None = None


@dataclass(frozen=True)
class Call(Node):
    func: "Expr"
    args: tuple[Arg, ...] = ()


@dataclass(frozen=True)
class Unary(Node):
    """`op` is `-` or `not`."""

    op: str
    operand: "Expr"


@dataclass(frozen=True)
class Binary(Node):
    """`op` is one of `+ - * / // % ** == != < <= > >= and or`."""

    op: str
    left: "Expr"
    right: "Expr"


Expr: TypeAlias = Num | Str | Bool | Name | Attr | Index | Call | Unary | Binary


# ---------------------------------------------------------------- statements


@dataclass(frozen=True, kw_only=True)
class Statement(Node):
    """A statement with what the formatter keeps besides its meaning.

    leading: the comments on whole lines before it (and those inside its brackets), `#` included; "" is a blank line.
    trailing: the comment at the end of its line; of a block, of its header.
    closing: the comments at the end of its block.
    blank_before: the author left a blank line before it.
    name_span: where the name stands that it binds or is about (`policy` in `update policy(...)`).
    """

    leading: tuple[str, ...] = field(default=(), compare=False, repr=False)
    trailing: str | None = field(default=None, compare=False, repr=False)
    closing: tuple[str, ...] = field(default=(), compare=False, repr=False)
    blank_before: bool = field(default=False, compare=False, repr=False)
    name_span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Assign(Statement):
    name: str
    value: Expr


@dataclass(frozen=True)
class ModelDecl(Statement):
    """`model policy = causal_lm(...)`"""

    name: str
    value: Expr


@dataclass(frozen=True)
class StateDecl(Statement):
    """`state beta = 0.2`"""

    name: str
    value: Expr


@dataclass(frozen=True)
class Next(Statement):
    """`next beta = ...`: what a state or a model is at the next step."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Metric(Statement):
    name: str
    value: Expr


@dataclass(frozen=True)
class Minimize(Statement):
    value: Expr


@dataclass(frozen=True)
class Keep(Statement):
    """`keep prompts where COND`, inside a `collect`."""

    name: str
    where: Expr


@dataclass(frozen=True)
class Update(Statement):
    """`update policy(adamw(lr=1e-6), minibatch=16 prompts, epochs=4):` (`args[0]` is the optimizer)."""

    model: str
    args: tuple[Arg, ...]
    body: tuple["FlowStatement", ...]


@dataclass(frozen=True)
class When(Statement):
    condition: Expr
    body: tuple["FlowStatement", ...]


@dataclass(frozen=True)
class Every(Statement):
    """`every 20 steps:`; the period may be any expression."""

    period: Expr
    body: tuple["FlowStatement", ...]


@dataclass(frozen=True)
class Collect(Statement):
    """`collect(64 prompts, rounds=8, short=skip):` (`args[0]` is the target)."""

    args: tuple[Arg, ...]
    body: tuple["FlowStatement", ...]


FlowStatement: TypeAlias = (
    Assign | ModelDecl | StateDecl | Next | Metric | Minimize | Keep | Update | When | Every | Collect
)


# ---------------------------------------------------------------- top level


@dataclass(frozen=True)
class Param(Node):
    """`n: int = 8`; without a default the parameter is required."""

    name: str
    annotation: str | None = None
    default: Expr | None = None


@dataclass(frozen=True)
class Import(Statement):
    """`import rewards` / `import rewards as r`"""

    module: str
    alias: str | None = None


@dataclass(frozen=True)
class ImportedName(Node):
    name: str
    alias: str | None = None


@dataclass(frozen=True)
class FromImport(Statement):
    """`from std.kl import k1, k3 as kl`"""

    module: str
    names: tuple[ImportedName, ...]


@dataclass(frozen=True)
class Def(Statement):
    """A pure inlined function: assignments, then the value it returns (`= expr` has no assignments)."""

    name: str
    params: tuple[Param, ...]
    body: tuple[Assign, ...]
    result: Expr
    doc: str | None = None


@dataclass(frozen=True)
class Flow(Statement):
    name: str
    params: tuple[Param, ...]
    body: tuple[FlowStatement, ...]
    doc: str | None = None


@dataclass(frozen=True)
class ClusterDecl(Statement):
    """`cluster lab = h100(nodes=2)`"""

    name: str
    value: Expr


@dataclass(frozen=True)
class PlaceLine(Statement):
    """`policy.update on nodes[0], fsdp=8` or `ref with policy.update`.

    `target` is a model, a phase of a model or a value; exactly one of `mesh` and `beside` is set.
    """

    target: Expr
    mesh: Expr | None = None
    beside: Expr | None = None
    options: tuple[Arg, ...] = ()


@dataclass(frozen=True)
class Place(Statement):
    """`place grpo on h100(nodes=2):`"""

    flow: str
    cluster: Expr
    lines: tuple[PlaceLine, ...]


TopLevel: TypeAlias = Import | FromImport | Def | Flow | ClusterDecl | Place


@dataclass(frozen=True)
class Module(Node):
    """One file. `leading` are the comments before its docstring, `closing` those after its last statement."""

    body: tuple[TopLevel, ...]
    doc: str | None = None
    leading: tuple[str, ...] = field(default=(), compare=False, repr=False)
    closing: tuple[str, ...] = field(default=(), compare=False, repr=False)
