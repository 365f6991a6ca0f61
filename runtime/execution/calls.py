"""Calls of Python operators: what one call sees of each argument, and what its results become."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...compiler.plan import Instruction, Operator
from ...compiler.plan import Value as Name
from ...dsl.ragged import PerSequence, Ragged
from .. import noise
from ..boundary import short
from ..errors import RunError
from ..numbers import numeric
from ..operators import call_rows, load_function
from ..values import Frame, Record, Value, innermost
from .interpreter import HANDLERS, Env
from .phases import draw_numbers
from .session import Session, source_name

PYTHON_TYPES = {"float": "float", "int": "int", "bool": "bool", "text": "str"}
STD_FOLDER = "std/"
PACKED: Mapping[str, type[Ragged]] = {"ragged": Ragged, "per_sequence": PerSequence}
"""The classes of packed arguments, by what a call sees of them."""


def _call(i: Instruction, env: Env) -> Value | Record:
    operator = env.session.operators[i.attrs["operator"]]
    sees = {p.name: p.sees for p in operator.params}
    args = {p.name: env.operand(i.args[p.name]) for p in operator.params if p.name in i.args}
    rows = _row_frame(sees, args)
    columns = {name: _column(sees[name], value, rows) for name, value in args.items()}
    if operator.draws:
        columns["rng"] = _generators(i, env, rows)
    results = _results(i, env, operator, columns, rows)
    return _bound(i, env, operator, args, sees, results, rows)


# ---------------------------------------------------------------- arguments


def _row_frame(sees: dict[str, str], args: dict[str, Any]) -> Frame | None:
    """The frame on which the function is called once per row; None for one call."""
    values = {n: v for n, v in args.items() if isinstance(v, Value)}
    for kind in ("group", "sequence"):
        members = [v.frame for n, v in values.items() if sees[n] == kind]
        if members and members[0] is not None:
            return members[0].parent
    if any(sees[n] == "batch" or sees[n] in PACKED for n in args):
        return None
    return innermost(v.frame for v in values.values())


def _column(sees: str, value: Any, rows: Frame | None) -> list[Any]:
    """One argument per call."""
    count = rows.size if rows else 1
    if not isinstance(value, Value):
        return [value] * count
    match sees:
        case "group":
            return _split(value.rows, value)
        case "sequence":
            return list(torch.split(numeric(value).tensor, _lengths(value)))
        case "ragged" | "per_sequence":
            return [PACKED[sees](numeric(value).tensor, torch.tensor(_lengths(value)))]
        case "batch":
            return [value.rows]
    if rows:
        return value.on(rows).rows
    return value.data if value.frame is None and isinstance(value.data, list) else [value.rows]


def _lengths(value: Value) -> list[int]:
    assert value.frame is not None
    return [int(x) for x in value.frame.lengths]


def _split(items: list[Any], value: Value) -> list[list[Any]]:
    ends = np.cumsum(_lengths(value)).tolist()
    return [items[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def _generators(i: Instruction, env: Env, rows: Frame | None) -> list[np.random.Generator]:
    """One keyed generator per call, so that a draw doesn't depend on the company a row is in."""
    session = env.session
    numbers = draw_numbers(rows).tolist() if rows else [0]
    parts = (session.settings.seed, session.plan.flow, source_name(i), env.step.number)
    return [np.random.Generator(np.random.Philox(key=noise.key(*parts, n) % 2**64)) for n in numbers]


# ---------------------------------------------------------------- calling


def _results(
    i: Instruction, env: Env, operator: Operator, columns: dict[str, list[Any]], rows: Frame | None
) -> list[Any]:
    function = function_of(env.session, operator)
    ordered = _in_order(function, operator, columns, rows.size if rows else 1)
    numbers, labels = _told(rows) if rows else (None, None)
    if any(p.sees == "sequence" or p.sees in PACKED for p in operator.params) and not operator.is_async:
        expected = None  # tensors in, tensors out: their shape is checked when they are packed
    else:
        expected = _expected(operator)
    keywords = _keyword_only(function, [p.name for p in operator.params][: len(ordered)])
    node = env.called(Name(i.out))
    return call_rows(
        function,
        ordered,
        node=node,
        row_labels=labels,
        row_numbers=numbers,
        expected=expected,
        keywords=keywords,
    )


def _told(rows: Frame) -> tuple[list[int], list[str]]:
    """What messages call each row: the same, wherever it lies."""
    if rows.numbers is None:
        return list(range(rows.size)), [rows.row_name(n) for n in range(rows.size)]
    numbers: list[int] = rows.numbers.tolist()
    return numbers, [f"{rows.name} {n}" for n in numbers]


def _in_order(
    function: Callable[..., Any], operator: Operator, columns: dict[str, list[Any]], count: int
) -> list[list[Any]]:
    """Columns in the order of the function's parameters; one left out in the middle takes its default."""
    names = [p.name for p in operator.params]
    last = max((n for n, name in enumerate(names) if name in columns), default=-1)
    defaults = inspect.signature(function).parameters
    return [columns.get(name) or [defaults[name].default] * count for name in names[: last + 1]]


def _keyword_only(function: Callable[..., Any], names: Sequence[str]) -> list[str]:
    known = inspect.signature(function).parameters
    return [n for n in names if n in known and known[n].kind == inspect.Parameter.KEYWORD_ONLY]


def _expected(operator: Operator) -> str | dict[str, str]:
    kinds = {p.name: _python_type(p.sees, p.dtype) for p in operator.result}
    return kinds.get("", kinds)


def _python_type(sees: str, dtype: str) -> str:
    plain = PYTHON_TYPES.get(dtype, "any")
    return f"list[{plain}]" if sees in ("group", "batch") else plain


def function_of(session: Session, operator: Operator) -> Callable[..., Any]:
    """The function a plan names: of the standard library, or of a file beside the flow, unchanged since."""
    if operator.key not in session._functions:
        if operator.file.startswith(STD_FOLDER):
            name = operator.file.removeprefix(STD_FOLDER).removesuffix(".py").replace("/", ".")
            module = importlib.import_module(f"{__package__.split('.')[0]}.stdlib.{name}")
            session._functions[operator.key] = getattr(module, operator.name)
        else:
            file = allowed_file(session, operator)
            session._functions[operator.key] = load_function(file, operator.name, operator.sha256)
    return session._functions[operator.key]  # type: ignore[no-any-return]


def allowed_file(session: Session, operator: Operator) -> Path:
    """The operator's file, if it is beside the flow or in a folder that `--allow` names. Raises RunError."""
    folders = [*session.settings.folders[:1], *session.settings.allow]
    for folder in folders:
        file = (folder / operator.file).resolve()
        if file.is_file() and any(file.is_relative_to(f.resolve()) for f in folders):
            return file
    looked = ", ".join(str(f) for f in folders)
    raise RunError(
        f"`{operator.key}` is in `{operator.file}`, which isn't under {looked}: name its folder with --allow"
    )


# ---------------------------------------------------------------- results


def _bound(
    i: Instruction,
    env: Env,
    operator: Operator,
    args: dict[str, Any],
    sees: dict[str, str],
    results: list[Any],
    rows: Frame | None,
) -> Value | Record:
    frames = {p.name: _result_frame(p.sees, args, sees, rows) for p in operator.result}
    values = {
        p.name: _packed(i, env, p.dtype, p.sees, [getattr(r, p.name) if p.name else r for r in results], frames[p.name])
        for p in operator.result
    }
    if "" in values:
        return values[""]
    frame = rows or innermost(frames.values())
    assert frame is not None
    return Record("record", frame, values)


def _result_frame(kind: str, args: dict[str, Any], sees: dict[str, str], rows: Frame | None) -> Frame | None:
    if kind == "row":
        return rows
    return innermost(v.frame for n, v in args.items() if sees[n] == kind and isinstance(v, Value))


def _packed(i: Instruction, env: Env, dtype: str, sees: str, results: Sequence[Any], frame: Frame | None) -> Value:
    """The results of all calls as one value."""
    number = env.session.settings.number
    if sees in PACKED:
        return _fitting(i, Value(_tensor_of(i, results[0]), frame), [frame.size] if frame else [1])
    if sees == "sequence":
        tensors = [torch.as_tensor(r) for r in results]
        packed = torch.cat(tensors) if tensors else torch.zeros(0, dtype=number)
        return _fitting(i, Value(packed, frame), _rows_per_call(sees, frame), [len(t) for t in tensors])
    many = sees in ("group", "batch")
    items = [x for r in results for x in r] if many else list(results)
    counts = [len(r) for r in results] if many else None
    if dtype not in ("float", "int", "bool"):
        return _fitting(i, Value(items, frame), _rows_per_call(sees, frame), counts)
    kinds = {"float": number, "int": torch.long, "bool": torch.bool}
    tensor = torch.tensor(items, dtype=kinds[dtype])
    return _fitting(i, Value(tensor, frame), _rows_per_call(sees, frame), counts) if frame else Value(tensor[0])


def _tensor_of(i: Instruction, result: Any) -> Tensor:
    if not isinstance(result, Ragged):
        raise RunError(f"`{i.attrs['operator']}` returned {short(result)}, where a Ragged is expected")
    return result.values


def _rows_per_call(sees: str, frame: Frame | None) -> list[int]:
    """How many rows each call's result is to have."""
    if frame is None or sees == "row":
        return [1] * (frame.size if frame else 1)
    return [frame.size] if sees == "batch" else [int(x) for x in frame.lengths]


def _fitting(i: Instruction, value: Value, due: Sequence[int], found: Sequence[int] | None = None) -> Value:
    """The value, if every call returned one element for each of its rows. found: by call; None: one from each."""
    counts = [len(value.data)] if len(due) == 1 else found or due
    wrong = next((n for n, (a, b) in enumerate(zip(counts, due, strict=True)) if a != b), None)
    if value.frame is not None and wrong is not None:
        raise RunError(
            f"call {wrong} of `{i.attrs['operator']}` returned {counts[wrong]} elements for {due[wrong]} "
            f"rows of `{value.frame.name}`"
        )
    return value


HANDLERS["call"] = _call
