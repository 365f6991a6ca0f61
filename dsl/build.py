"""From what the grammar matched to AST nodes: one method per rule of `grammar.lark`, called by lark while it parses.

Every method gets the matched pieces in order: tokens, and the values of other methods. Nothing here keeps state, so one
builder serves all files. A block header becomes its statement with an empty body; `parser.py` puts the body in.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from .ast import (
    Arg,
    Assign,
    Attr,
    Binary,
    Bool,
    Call,
    ClusterDecl,
    Collect,
    Def,
    Every,
    Expr,
    Flow,
    FromImport,
    Import,
    ImportedName,
    Index,
    Keep,
    Metric,
    Minimize,
    ModelDecl,
    Name,
    Next,
    Num,
    Param,
    Place,
    PlaceLine,
    StateDecl,
    Statement,
    Str,
    Unary,
    Update,
    When,
)
from .diagnostics import Diagnostic, Note
from .literals import clean_doc, doc_value, number_value, string_value
from .source import NOWHERE, Span
from .tokens import FOREIGN, Token
from .vocabulary import KEYWORDS


@dataclass(frozen=True)
class Docstring(Statement):
    """A line that is only a string: the parser gives it to its block."""

    text: str


@dataclass(frozen=True)
class Return(Statement):
    """The last line of a `def` block."""

    value: Expr


NO_RESULT = Name("")
"""The result of a `def` whose block the parser hasn't read yet."""


class Refused(Exception):
    """A line that the grammar takes and Flow doesn't."""

    def __init__(
        self, code: str, message: str, span: Span, *, help: str, first: tuple[str, Span] | None = None
    ) -> None:
        notes = (Note(*first),) if first else ()
        self.diagnostic = Diagnostic(code, message, span, "", notes, help)
        super().__init__(message)


Pieces: TypeAlias = list[Any]
N = TypeVar("N", Arg, Param, ImportedName)
S = TypeVar("S", bound=Statement)


def _between(pieces: Pieces) -> Span:
    """From the first piece to the last."""
    first: Span = pieces[0].span
    return first.to(pieces[-1].span)


def _only(kind: type[N], pieces: Iterable[Any]) -> tuple[N, ...]:
    return tuple(p for p in pieces if isinstance(p, kind))


def _keyword_line(kind: type[S], pieces: Pieces) -> S:
    """`model NAME = expr` and its like."""
    _, name, _, value = pieces
    make: Callable[..., S] = kind
    return make(name.value, value, span=_between(pieces), name_span=name.span)


class Builder:
    """The callbacks."""

    # ------------------------------------------------------------ lines

    def line(self, pieces: Pieces) -> Statement:
        only: Statement = pieces[0]
        return only

    def lone_expr(self, pieces: Pieces) -> Expr:
        only: Expr = pieces[0]
        return only

    def docstring(self, pieces: Pieces) -> Docstring:
        token: Token = pieces[0]
        text = doc_value(token.value) if token.type == "DOCSTRING" else clean_doc(string_value(token.value))
        return Docstring(text, span=token.span)

    def import_line(self, pieces: Pieces) -> Import:
        alias = pieces[3].value if len(pieces) > 2 else None
        module, span = pieces[1].value, pieces[-1].span
        return Import(module, alias, span=_between(pieces), name_span=span)

    def from_line(self, pieces: Pieces) -> FromImport:
        names: Group = next(p for p in pieces if isinstance(p, Group))
        return FromImport(pieces[1].value, names.items, span=_between(pieces), name_span=pieces[1].span)

    def imported_names(self, pieces: Pieces) -> "Group":
        return Group(_only(ImportedName, pieces), _between(pieces))

    def imported(self, pieces: Pieces) -> ImportedName:
        alias = pieces[2].value if len(pieces) > 1 else None
        return ImportedName(pieces[0].value, alias, span=_between(pieces))

    def flow_line(self, pieces: Pieces) -> Flow:
        _, name, params, _ = pieces
        return Flow(name.value, params.items, (), span=_between(pieces), name_span=name.span)

    def def_line(self, pieces: Pieces) -> Def:
        _, name, params, *rest = pieces
        result = rest[1] if len(rest) > 1 else NO_RESULT
        return Def(name.value, params.items, (), result, span=_between(pieces), name_span=name.span)

    def parameters(self, pieces: Pieces) -> "Group":
        params = _only(Param, pieces)
        _check_parameters(params)
        return Group(params, _between(pieces))

    def parameter(self, pieces: Pieces) -> Param:
        name, *rest = pieces
        if name.value in KEYWORDS | FOREIGN:  # `(where=1)` reached us as an option's name
            owner = "Flow" if name.value in KEYWORDS else "Python"
            help = f"choose another name for the parameter, such as `{name.value}_`"
            raise Refused("E0016", f"`{name.value}` is a reserved word of {owner}", name.span, help=help)
        annotation = rest[1].value if rest and rest[0].type == "COLON" else None
        default = rest[-1] if len(rest) > 1 and rest[-2].type == "EQUAL" else None
        return Param(name.value, annotation, default, span=_between(pieces))

    def cluster_line(self, pieces: Pieces) -> ClusterDecl:
        return _keyword_line(ClusterDecl, pieces)

    def place_line(self, pieces: Pieces) -> Place:
        _, flow, _, cluster, _ = pieces
        return Place(flow.value, cluster, (), span=_between(pieces), name_span=flow.span)

    def assign(self, pieces: Pieces) -> Assign:
        name, _, value = pieces
        return Assign(name.value, value, span=_between(pieces), name_span=name.span)

    def model(self, pieces: Pieces) -> ModelDecl:
        return _keyword_line(ModelDecl, pieces)

    def state(self, pieces: Pieces) -> StateDecl:
        return _keyword_line(StateDecl, pieces)

    def next(self, pieces: Pieces) -> Next:
        return _keyword_line(Next, pieces)

    def metric(self, pieces: Pieces) -> Metric:
        return _keyword_line(Metric, pieces)

    def keep(self, pieces: Pieces) -> Keep:
        return _keyword_line(Keep, pieces)

    def minimize(self, pieces: Pieces) -> Minimize:
        return Minimize(pieces[1], span=_between(pieces))

    def return_line(self, pieces: Pieces) -> Return:
        return Return(pieces[1], span=_between(pieces))

    def update(self, pieces: Pieces) -> Update:
        _, model, args, _ = pieces
        return Update(model.value, args.items, (), span=_between(pieces), name_span=model.span)

    def when(self, pieces: Pieces) -> When:
        return When(pieces[1], (), span=_between(pieces))

    def every(self, pieces: Pieces) -> Every:
        return Every(pieces[1], (), span=_between(pieces))

    def collect(self, pieces: Pieces) -> Collect:
        return Collect(pieces[1].items, (), span=_between(pieces))

    # ------------------------------------------------------------ lines of a place

    def placed_on(self, pieces: Pieces) -> PlaceLine:
        target, _, mesh, *rest = pieces
        options = _only(Arg, rest)
        _check_options(options)
        for arg in options:
            if arg.name is None:
                help = "what follows the mesh are options: `fsdp=8`, `engine=vllm`"
                raise Refused("E0019", "an option of a placement has a name", arg.span, help=help)
        return PlaceLine(_as_expr(target), mesh=mesh, options=options, span=_between(pieces))

    def placed_with(self, pieces: Pieces) -> PlaceLine:
        target, _, beside = pieces
        return PlaceLine(_as_expr(target), beside=_as_expr(beside), span=_between(pieces))

    def mesh(self, pieces: Pieces) -> Expr:
        first = _as_expr(pieces[0])
        if len(pieces) == 1:
            return first
        bounds = [_whole(p) for p in pieces if isinstance(p, Token) and p.type == "NUMBER"]
        return Index(first, *bounds, span=_between(pieces))

    def path(self, pieces: Pieces) -> Expr:
        return _as_expr(pieces[0])

    def dotted(self, pieces: Pieces) -> Token:
        return Token("NAME", "".join(p.value for p in pieces), _between(pieces))

    # ------------------------------------------------------------ expressions

    def binary(self, pieces: Pieces) -> Binary:
        left, op, right = pieces
        return Binary(op.value, left, right, span=_between(pieces))

    def comparator(self, pieces: Pieces) -> Token:
        only: Token = pieces[0]
        return only

    def unary(self, pieces: Pieces) -> Unary:
        return Unary(pieces[0].value, pieces[1], span=_between(pieces))

    def attribute(self, pieces: Pieces) -> Attr:
        base, _, name = pieces
        return Attr(_as_expr(base), name.value, span=_between(pieces))

    def call(self, pieces: Pieces) -> Call:
        func, args = pieces
        return Call(func, args.items, span=_between(pieces))

    def keyword_call(self, pieces: Pieces) -> Call:
        name, args = pieces
        return Call(Name(name.value, span=name.span), args.items, span=_between(pieces))

    def name(self, pieces: Pieces) -> Expr:
        return _as_expr(pieces[0])

    def number(self, pieces: Pieces) -> Num:
        token = pieces[0]
        return Num(number_value(token.value), None, token.value, span=token.span)

    def sized_number(self, pieces: Pieces) -> Num:
        token, unit = pieces
        return Num(number_value(token.value), unit.value, token.value, span=_between(pieces))

    def string(self, pieces: Pieces) -> Str:
        token = pieces[0]
        return Str(string_value(token.value), span=token.span)

    def boolean(self, pieces: Pieces) -> Bool:
        token = pieces[0]
        return Bool(token.value == "true", span=token.span)

    def group(self, pieces: Pieces) -> Expr:
        """A parenthesised operation spans its parentheses, so that what is built on it starts there."""
        inner: Expr = pieces[1]
        return replace(inner, span=_between(pieces)) if isinstance(inner, (Binary, Unary)) else inner

    def arguments(self, pieces: Pieces) -> "Group":
        args = _only(Arg, pieces)
        _check_options(args)
        return Group(args, _between(pieces))

    def argument(self, pieces: Pieces) -> Arg:
        name = pieces[0].value if len(pieces) > 1 else None
        return Arg(pieces[-1], name, span=_between(pieces))


@dataclass(frozen=True, slots=True)
class Group:
    """What stands in a pair of parentheses, and where they are."""

    items: tuple[Any, ...]
    span: Span = NOWHERE


def _as_expr(piece: Token | Expr) -> Expr:
    return Name(piece.value, span=piece.span) if isinstance(piece, Token) else piece


def _whole(token: Token) -> int:
    value = number_value(token.value)
    if isinstance(value, float):
        help = "nodes are counted from 0: `nodes[0]`, `nodes[0:2]`"
        raise Refused("E0014", f"`{token.value}` picks no node", token.span, help=help)
    return value


def _check_options(args: tuple[Arg, ...]) -> None:
    """Positional arguments come first, and no option stands twice."""
    seen: dict[str, Span] = {}
    for arg in args:
        if arg.name is None and seen:
            option, span = next(iter(seen.items()))
            help = "move it before the options, or give it its name"
            first = (f"option `{option}` stands here", span)
            raise Refused("E0019", "a positional argument follows an option", arg.span, help=help, first=first)
        if arg.name in seen:
            first = ("the first is here", seen[arg.name])
            raise Refused("E0019", f"option `{arg.name}` stands twice", arg.span, help="keep one of them", first=first)
        if arg.name is not None:
            seen[arg.name] = arg.span


def _check_parameters(params: tuple[Param, ...]) -> None:
    """Required parameters come first, and no name stands twice."""
    seen: dict[str, Param] = {}
    for param in params:
        if param.name in seen:
            first = ("the first is here", seen[param.name].span)
            message = f"parameter `{param.name}` stands twice"
            raise Refused("E0019", message, param.span, help="rename one of them", first=first)
        given = next((p for p in seen.values() if p.default is not None), None)
        if given and param.default is None:
            help = f"move `{param.name}` before it, or give it a default"
            first = (f"`{given.name}` has a default", given.span)
            message = f"required parameter `{param.name}` follows one with a default"
            raise Refused("E0019", message, param.span, help=help, first=first)
        seen[param.name] = param
