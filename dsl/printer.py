"""The canonical formatter: a module as Flow text.

Printing what was parsed gives an equal module, and printing that, the same text.

Comments and single blank lines stay where the author had them. Comments inside brackets move above their statement, and
those around the `return` of a `def` above the `return`, for the syntax tree has no place for them there.
"""

from collections.abc import Callable, Iterable, Sequence

from .ast import (
    Assign,
    ClusterDecl,
    Collect,
    Def,
    Every,
    Flow,
    FromImport,
    Import,
    ImportedName,
    Keep,
    Metric,
    Minimize,
    ModelDecl,
    Module,
    Next,
    Param,
    Place,
    PlaceLine,
    StateDecl,
    Statement,
    Update,
    When,
)
from .layout import INDENT, WIDTH, explode, explode_words, fill, format_arg, format_expr, lay_out
from .literals import quote_doc

__all__ = ["format_expr", "format_module"]


def format_module(module: Module) -> str:
    """The file that holds this module, in the one canonical layout."""
    lines = [*_comments(module.leading, 0)]
    if module.doc is not None:
        lines += quote_doc(module.doc, "")
    before: Statement | None = None
    for item in module.body:
        if lines and _parted(before, item):
            lines.append("")
        lines += _statement(item, 0)
        before = item
    if lines and module.closing:
        lines.append("")
    lines += _comments(module.closing, 0)
    return "".join(f"{line}\n" for line in lines)


def _parted(before: Statement | None, item: Statement) -> bool:
    """Blocks stand apart, and so do imports, definitions and clusters; among their like the author decides."""
    if _is_block(item) or item.blank_before:
        return True
    return before is not None and (_is_block(before) or _group(before) != _group(item))


def _is_block(item: Statement) -> bool:
    return isinstance(item, (Flow, Place)) or (isinstance(item, Def) and not _is_short(item))


def _group(item: Statement) -> str:
    return "import" if isinstance(item, (Import, FromImport)) else type(item).__name__


def _is_short(item: Def) -> bool:
    """Whether this is `def f(x) = EXPRESSION`."""
    return not item.body and item.doc is None


# ---------------------------------------------------------------- comments and blocks


def _comments(texts: Iterable[str], indent: int) -> list[str]:
    return [" " * indent + text if text else "" for text in texts]


def _statement(statement: Statement, indent: int) -> list[str]:
    """A statement with its comments and its block."""
    head = _head(statement, indent)
    if statement.trailing:
        head[-1] += f"  {statement.trailing}"
    return [*_comments(_above(statement), indent), *head, *_body(statement, indent + INDENT)]


def _above(statement: Statement) -> tuple[str, ...]:
    if isinstance(statement, Def) and _is_short(statement):
        return statement.leading + tuple(filter(None, statement.closing))  # blank lines stood in its block
    return statement.leading


def _body(statement: Statement, indent: int) -> list[str]:
    """The block under a statement, its docstring and its last comments."""
    match statement:
        case Def() if not _is_short(statement):
            returned = lay_out(" " * indent + "return ", statement.result, "", indent)
            comments = _comments(statement.closing, indent)
            return [*_block(statement.doc, statement.body, indent), *comments, *returned]
        case Flow(body=body, doc=doc):
            return [*_block(doc, body, indent), *_comments(statement.closing, indent)]
        case Place(lines=body) | Update(body=body) | When(body=body) | Every(body=body) | Collect(body=body):
            return [*_block(None, body, indent), *_comments(statement.closing, indent)]
        case _:
            return []


def _block(doc: str | None, body: Sequence[Statement], indent: int) -> list[str]:
    lines = [] if doc is None else quote_doc(doc, " " * indent)
    for statement in body:
        if lines and statement.blank_before:
            lines.append("")
        lines += _statement(statement, indent)
    return lines


# ---------------------------------------------------------------- one statement


def _head(statement: Statement, indent: int) -> list[str]:
    """The line of a statement, without its block; several lines if it is too long for one."""
    pad = " " * indent
    match statement:
        case Assign(name=name, value=value):
            return lay_out(f"{pad}{name} = ", value, "", indent)
        case ModelDecl() | StateDecl() | Next() | Metric() | ClusterDecl():
            return lay_out(f"{pad}{_WORDS[type(statement)]} {statement.name} = ", statement.value, "", indent)
        case Minimize(value=value):
            return lay_out(f"{pad}minimize ", value, "", indent)
        case Keep(name=name, where=where):
            return lay_out(f"{pad}keep {name} where ", where, "", indent)
        case Update(model=model, args=args):
            return _one_line_or(explode, f"{pad}update {model}(", args, "):", indent, map(format_arg, args))
        case Collect(args=args):
            return _one_line_or(explode, f"{pad}collect(", args, "):", indent, map(format_arg, args))
        case When(condition=condition):
            return lay_out(f"{pad}when ", condition, ":", indent)
        case Every(period=period):
            return lay_out(f"{pad}every ", period, ":", indent)
        case PlaceLine():
            return [pad + _placement(statement)]
        case _:
            return _top_head(statement)


_WORDS: dict[type[Statement], str] = {
    ModelDecl: "model",
    StateDecl: "state",
    Next: "next",
    Metric: "metric",
    ClusterDecl: "cluster",
}


def _top_head(statement: Statement) -> list[str]:
    match statement:
        case Import(module=module, alias=alias):
            return [f"import {module}" + (f" as {alias}" if alias else "")]
        case FromImport(module=module, names=names):
            return _from_import(module, [_imported(name) for name in names])
        case Place(flow=flow, cluster=cluster):
            return lay_out(f"place {flow} on ", cluster, ":", 0)
        case Flow(name=name, params=params):
            return _signature(f"flow {name}(", params, "):")
        case Def(name=name, params=params) if _is_short(statement):
            *lines, last = _signature(f"def {name}(", params, ") = ")
            return [*lines, *lay_out(last, statement.result, "", 0)]
        case Def(name=name, params=params):
            return _signature(f"def {name}(", params, "):")
        case _:
            raise TypeError(f"{type(statement).__name__} is no statement of a flow file")


def _signature(head: str, params: Sequence[Param], tail: str) -> list[str]:
    words = [_param(param) for param in params]
    return _one_line_or(explode_words, head, words, tail, 0, words)


def _from_import(module: str, words: Sequence[str]) -> list[str]:
    line = f"from {module} import {', '.join(words)}"
    return [line] if len(line) <= WIDTH else fill(f"from {module} import (", words, ")")


def _one_line_or(
    broken: Callable[..., list[str]], head: str, items: Sequence[object], tail: str, indent: int, words: Iterable[str]
) -> list[str]:
    """`head words tail` if it fits on a line, else as `broken` lays it out."""
    line = head + ", ".join(words) + tail
    return [line] if len(line.rstrip()) <= WIDTH else broken(head, items, tail, indent)


def _param(param: Param) -> str:
    if param.annotation:
        typed = f"{param.name}: {param.annotation}"
        return typed if param.default is None else f"{typed} = {format_expr(param.default)}"
    return param.name if param.default is None else f"{param.name}={format_expr(param.default)}"


def _imported(name: ImportedName) -> str:
    return f"{name.name} as {name.alias}" if name.alias else name.name


def _placement(line: PlaceLine) -> str:
    if line.beside is not None:
        return f"{format_expr(line.target)} with {format_expr(line.beside)}"
    mesh = format_expr(line.mesh) if line.mesh is not None else ""
    return ", ".join([f"{format_expr(line.target)} on {mesh}", *map(format_arg, line.options)])
