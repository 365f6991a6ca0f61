"""How a Python operator is declared: its signature, read from the source with `ast`; nothing is imported or run."""

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from .diagnostics import Report
from .source import Span

Sees = Literal["row", "group", "batch", "sequence", "ragged", "per_sequence", "rng"]
"""What one call sees of an argument: one row, the rows under one parent, all rows in scope, one token sequence, packed
values of all sequences in scope, packed values of any of them (each result of its own sequence alone), or a random
generator."""

PACKED: Mapping[str, Sees] = {"Ragged": "ragged", "PerSequence": "per_sequence"}

SCALARS = {"str": "text", "float": "float", "int": "int", "bool": "bool", "dict": "any", "list": "list", "Any": "any"}


@dataclass(frozen=True)
class Hint:
    sees: Sees
    dtype: str


@dataclass(frozen=True)
class Parameter:
    name: str
    hint: Hint
    required: bool
    keyword_only: bool = False


@dataclass(frozen=True)
class Operator:
    """A Python function as the compiler knows it.

    result: one hint, or for a NamedTuple one per field. module: how it was imported; file and sha256 name its source.
    """

    module: str
    name: str
    file: str
    sha256: str
    params: tuple[Parameter, ...]
    result: Hint | tuple[tuple[str, Hint], ...]
    is_async: bool
    span: Span

    @property
    def draws(self) -> bool:
        """Whether it takes `rng`, and so is a draw."""
        return any(p.hint.sees == "rng" for p in self.params)

    @property
    def sees_batch(self) -> bool:
        """Whether its result depends on which rows are in scope."""
        return any(p.hint.sees in ("batch", "ragged") for p in self.params)


class HintError(ValueError):
    """A type hint that says nothing to Flow."""


def read_operators(path: Path, module: str, report: Report) -> dict[str, "Operator | None"] | None:
    """Every public function of a Python file, by name; None after reporting that the file isn't Python. A function
    whose hints can't be used maps to None; the reason is reported where the function is called, not here, so that
    helpers need no hints."""
    source = path.read_bytes()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL byte, in older Pythons
        line, column = (getattr(error, "lineno", 1) or 1), max(1, getattr(error, "offset", 1) or 1)
        message = f"`{path.name}` is not valid Python: {getattr(error, 'msg', error)}"
        report.add("E0601", message, Span(str(path), line, column, line, column + 1))
        return None
    digest = hashlib.sha256(source).hexdigest()
    tuples = {c.name: c for c in tree.body if isinstance(c, ast.ClassDef) and _is_named_tuple(c)}
    functions = [f for f in tree.body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {f.name: _operator(f, path, module, digest, tuples) for f in functions if not f.name.startswith("_")}


def why_unusable(path: Path, name: str) -> str:
    """Why function `name` of a file is no operator, as one clause."""
    tree = ast.parse(path.read_bytes())
    tuples = {c.name: c for c in tree.body if isinstance(c, ast.ClassDef) and _is_named_tuple(c)}
    for function in tree.body:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name == name:
            try:
                _signature(function, tuples)
            except HintError as error:
                return str(error)
    return "it is not a function of that file"


def _operator(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    path: Path,
    module: str,
    digest: str,
    tuples: Mapping[str, ast.ClassDef],
) -> Operator | None:
    try:
        params, result = _signature(function, tuples)
    except HintError:
        return None
    span = Span(str(path), function.lineno, function.col_offset + 1, function.lineno, function.col_offset + 5)
    is_async = isinstance(function, ast.AsyncFunctionDef)
    return Operator(module, function.name, str(path), digest, params, result, is_async, span)


def _signature(
    function: ast.FunctionDef | ast.AsyncFunctionDef, tuples: Mapping[str, ast.ClassDef]
) -> tuple[tuple[Parameter, ...], Hint | tuple[tuple[str, Hint], ...]]:
    spec = function.args
    if spec.vararg or spec.kwarg:
        raise HintError("it takes *args or **kwargs: name every parameter")
    positional = [*spec.posonlyargs, *spec.args]
    first_default = len(positional) - len(spec.defaults)
    params = [_parameter(a, i < first_default) for i, a in enumerate(positional)]
    keyword_only = [_parameter(a, d is None) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)]
    params += [replace(p, keyword_only=True) for p in keyword_only]
    if function.returns is None:
        raise HintError("it has no return hint: write `-> float`, for example")
    return tuple(params), _result(function.returns, tuples)


def _parameter(arg: ast.arg, required: bool) -> Parameter:
    if arg.arg == "rng":
        return Parameter("rng", Hint("rng", "any"), False)
    if arg.annotation is None:
        raise HintError(f"parameter `{arg.arg}` has no type hint: write `{arg.arg}: str`, for example")
    return Parameter(arg.arg, _hint(arg.annotation), required)


def _result(node: ast.expr, tuples: Mapping[str, ast.ClassDef]) -> Hint | tuple[tuple[str, Hint], ...]:
    if isinstance(node, ast.Name) and node.id in tuples:
        fields = [f for f in tuples[node.id].body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)]
        return tuple((f.target.id, _hint(f.annotation)) for f in fields if isinstance(f.target, ast.Name))
    return _hint(node)


def _hint(node: ast.expr) -> Hint:
    """The hint an annotation spells; raises HintError with what is allowed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _hint(_quoted(node.value))
    name = _last_name(node.value if isinstance(node, ast.Subscript) else node)
    if isinstance(node, ast.Subscript):
        return _generic_hint(name, node)
    if name in PACKED:
        return Hint(PACKED[name], "float")
    if name in SCALARS:
        return Hint("row", SCALARS[name])
    allowed = 'str, float, int, bool, list[…], Group[…], Batch[…], Ragged, PerSequence or Float[Tensor, "token"]'
    raise HintError(f"hint `{ast.unparse(node)}` says nothing here: use {allowed}")


def _quoted(text: str) -> ast.expr:
    """The annotation that a string spells."""
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        raise HintError(f"hint `{text}` is no Python expression") from None


def _generic_hint(name: str, node: ast.Subscript) -> Hint:
    inner = node.slice
    match name:
        case "Group" | "Batch":
            return Hint("group" if name == "Group" else "batch", _hint(inner).dtype)
        case "list" | "List" | "Sequence":
            is_messages = _last_name(inner.value if isinstance(inner, ast.Subscript) else inner) in ("dict", "Dict")
            return Hint("row", "messages" if is_messages else "list")
        case "dict" | "Dict":
            return Hint("row", "any")
        case "Float" | "Int" | "Bool":
            return Hint("sequence", name.lower())
        case "Ragged" | "PerSequence":
            return Hint(PACKED[name], _hint(inner).dtype)
    raise HintError(
        f'hint `{ast.unparse(node)}` says nothing here: use list[…], Group[…], Batch[…] or Float[Tensor, "token"]'
    )


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_named_tuple(node: ast.ClassDef) -> bool:
    return any(_last_name(b) == "NamedTuple" for b in node.bases)
