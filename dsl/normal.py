"""The normal form of a module: what two ways of writing the same flow have in common.

Literals are folded; names that only rename something (`import a as b`, `from m import f as g`, `x = y`) are replaced by
what they rename; imports are sorted and each name is imported once. Docstrings stay. Comments and spans are no part of
equality anyway. The normal form of a normal form is itself.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from . import vocabulary
from .ast import (
    Arg,
    Assign,
    Attr,
    Binary,
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
    Module,
    Name,
    Next,
    Param,
    Place,
    PlaceLine,
    StateDecl,
    Statement,
    TopLevel,
    Unary,
    Update,
    When,
)
from .folding import fold

Names = Mapping[str, Expr]
"""What each renamed name stands for."""

_BUILT_IN = frozenset().union(
    vocabulary.RESERVED,
    vocabulary.REDUCTIONS,
    vocabulary.POINTWISE,
    vocabulary.STRUCTURAL,
    vocabulary.STATE_FUNCTIONS,
    vocabulary.MODEL_CONSTRUCTORS,
    vocabulary.OPTIMIZERS,
    vocabulary.DEVICES,
    ("frozen", "nodes"),
)


def normalise(module: Module) -> Module:
    """The module in normal form."""
    imports, names = _normal_imports(module)
    rest = (_top(item, names) for item in module.body if not isinstance(item, (Import, FromImport)))
    return replace(module, body=(*imports, *rest), doc=_doc(module.doc))


def _doc(doc: str | None) -> str | None:
    """Both front ends take a docstring's indentation away; blanks at the ends of its lines are left to chance."""
    return None if doc is None else "\n".join(line.rstrip() for line in doc.split("\n"))


# ---------------------------------------------------------------- imports


def _normal_imports(module: Module) -> tuple[list[TopLevel], Names]:
    """One import per module, sorted, without the aliases that can go; and what the aliases stand for."""
    modules, members = _imports(module)
    bound = Counter(_bound_names(module))
    names: dict[str, Expr] = {}
    for path, alias in modules:
        if alias and _can_go(alias, _last(path), bound):
            names[alias] = Name(_last(path))
    for _, name, alias in members:
        if alias and _can_go(alias, name, bound):
            names[alias] = Name(name)
    plain = {(path, None if alias in names else alias) for path, alias in modules}
    taken = {(path, name, None if alias in names else alias) for path, name, alias in members}
    return [*_import_lines(plain), *_from_lines(taken)], names


def _imports(module: Module) -> tuple[set[tuple[str, str | None]], set[tuple[str, str, str | None]]]:
    """All imported modules and members, each once; `import a as a` is no alias, nor is `import a.b as b`."""
    imports = [i for i in module.body if isinstance(i, Import)]
    modules = {(i.module, i.alias if i.alias != _last(i.module) else None) for i in imports}
    members = {
        (i.module, n.name, n.alias if n.alias != n.name else None)
        for i in module.body
        if isinstance(i, FromImport)
        for n in i.names
    }
    return modules, members


def _can_go(alias: str, original: str, bound: Counter[str]) -> bool:
    """Whether `original` can be used in the place of `alias`: nothing else has either name."""
    return bound[alias] == 1 and bound[original] == 1 and original not in _BUILT_IN


def _bound_names(module: Module) -> Iterator[str]:
    """Every name that something in the file binds, and the original name of each import."""
    modules, members = _imports(module)
    yield from {_last(path) for path, _ in modules}
    yield from (alias for _, alias in modules if alias)
    for _, name, alias in members:
        yield from (name, alias) if alias else (name,)
    for item in module.body:
        if isinstance(item, (Def, Flow)):
            yield item.name
            yield from (p.name for p in item.params)
            yield from _binds(item.body, inside_updates=True)
        elif isinstance(item, ClusterDecl):
            yield item.name


def _last(path: str) -> str:
    """What `import a.b` binds: `b`."""
    return path.split(".")[-1]


def _import_lines(modules: Iterable[tuple[str, str | None]]) -> list[TopLevel]:
    return [Import(path, alias) for path, alias in sorted(modules, key=lambda m: (m[0], m[1] or ""))]


def _from_lines(members: Iterable[tuple[str, str, str | None]]) -> list[TopLevel]:
    by_module: dict[str, list[ImportedName]] = {}
    for path, name, alias in sorted(members, key=lambda m: (m[0], m[1], m[2] or "")):
        by_module.setdefault(path, []).append(ImportedName(name, alias))
    return [FromImport(path, tuple(found)) for path, found in by_module.items()]


# ---------------------------------------------------------------- statements


def _top(item: TopLevel, names: Names) -> TopLevel:
    match item:
        case Def():
            within = {**names, **_aliases(item.body, names)}
            body = tuple(replace(a, value=_expr(a.value, within)) for a in item.body if not _is_alias(a, within))
            result = _expr(item.result, within)
            return replace(item, params=_params(item.params, names), body=body, result=result, doc=_doc(item.doc))
        case Flow():
            body_ = _block(item.body, names)
            return replace(item, params=_params(item.params, names), body=body_, doc=_doc(item.doc))
        case ClusterDecl():
            return replace(item, value=_expr(item.value, names))
        case Place():
            lines = tuple(_place_line(line, names) for line in item.lines)
            return replace(item, flow=_path(item.flow, names), cluster=_expr(item.cluster, names), lines=lines)
        case _:
            return item


def _params(params: Sequence[Param], names: Names) -> tuple[Param, ...]:
    return tuple(p if p.default is None else replace(p, default=_expr(p.default, names)) for p in params)


def _place_line(line: PlaceLine, names: Names) -> PlaceLine:
    """Targets are the flow's own names, which no import renames; the rest is options."""
    mesh = None if line.mesh is None else _expr(line.mesh, names)
    return replace(line, mesh=mesh, options=_args(line.options, names))


def _path(path: str, names: Names) -> str:
    """A dotted path whose first name may be renamed."""
    first, *rest = path.split(".")
    return ".".join([_written(names[first]) if first in names else first, *rest])


def _written(path: Expr) -> str:
    match path:
        case Attr(base=base, name=name):
            return f"{_written(base)}.{name}"
        case Name(id=name):
            return name
        case _:
            raise TypeError(f"{type(path).__name__} renames nothing")


B = TypeVar("B", bound=Statement)


def _block(body: Sequence[Any], names: Names) -> tuple[Any, ...]:
    """The statements of a block without its aliases."""
    within = {**names, **_aliases(body, names)}
    return tuple(_statement(s, within) for s in body if not _is_alias(s, within))


def _is_alias(statement: Statement, names: Names) -> bool:
    return isinstance(statement, Assign) and statement.name in names and _original(statement) is not None


def _statement(statement: Statement, names: Names) -> Statement:
    match statement:
        case Assign() | ModelDecl() | StateDecl() | Metric() | Minimize():
            return replace(statement, value=_expr(statement.value, names))
        case Next():
            return replace(statement, name=_path(statement.name, names), value=_expr(statement.value, names))
        case Keep():
            return replace(statement, name=_path(statement.name, names), where=_expr(statement.where, names))
        case Update(model=model, args=args, body=body):
            return replace(statement, model=_path(model, names), args=_args(args, names), body=_block(body, names))
        case When(condition=condition, body=body):
            return replace(statement, condition=_expr(condition, names), body=_block(body, names))
        case Every(period=period, body=body):
            return replace(statement, period=_expr(period, names), body=_block(body, names))
        case Collect(args=args, body=body):
            return replace(statement, args=_args(args, names), body=_block(body, names))
        case _:
            return statement


# ---------------------------------------------------------------- aliases by assignment


def _aliases(body: Sequence[Statement], names: Names) -> Names:
    """What each `x = y` seen from this block stands for. A name that is bound twice is no alias, but an error."""
    bound = Counter(_binds(body, inside_updates=False))
    direct = {
        a.name: original
        for a in _visible(body, inside_updates=False)
        if isinstance(a, Assign) and (original := _original(a)) and bound[a.name] == 1
    }
    ends = {name: _end_of_chain(name, direct) for name in direct}
    return {name: names.get(end, Name(end)) for name, end in ends.items() if end is not None}


def _original(statement: Statement) -> str | None:
    """The y of `x = y`, also where folding is needed to see it."""
    value = _expr(statement.value, {}) if isinstance(statement, Assign) else None
    return value.id if isinstance(value, Name) else None


def _end_of_chain(name: str, direct: Mapping[str, str]) -> str | None:
    """What a chain of aliases comes to; None if it comes back to itself."""
    seen = {name}
    while (name := direct[name]) in direct:
        if name in seen:
            return None
        seen.add(name)
    return name


def _visible(body: Iterable[Statement], *, inside_updates: bool) -> Iterator[Statement]:
    """The statements of a block and of the blocks in it; the names of an `update` are its own."""
    for statement in body:
        yield statement
        if isinstance(statement, (When, Every, Collect)) or (inside_updates and isinstance(statement, Update)):
            yield from _visible(statement.body, inside_updates=inside_updates)


def _binds(body: Iterable[Statement], *, inside_updates: bool) -> Iterator[str]:
    for statement in _visible(body, inside_updates=inside_updates):
        if isinstance(statement, (Assign, ModelDecl, StateDecl)):
            yield statement.name


# ---------------------------------------------------------------- expressions


def _args(args: Sequence[Arg], names: Names) -> tuple[Arg, ...]:
    return tuple(replace(arg, value=_expr(arg.value, names)) for arg in args)


def _expr(expr: Expr, names: Names) -> Expr:
    """The expression with renamed names replaced and literals folded."""
    match expr:
        case Name(id=name) if name in names:
            return replace(names[name], span=expr.span)
        case Attr(base=base):
            return replace(expr, base=_expr(base, names))
        case Index(base=base):
            return replace(expr, base=_expr(base, names))
        case Call(func=func, args=args):
            return replace(expr, func=_expr(func, names), args=_args(args, names))
        case Unary(operand=operand):
            return fold(replace(expr, operand=_expr(operand, names)))
        case Binary(left=left, right=right):
            return fold(replace(expr, left=_expr(left, names), right=_expr(right, names)))
        case _:
            return expr
