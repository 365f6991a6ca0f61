"""Flows of a Python file: `algo.py:grpo`."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import ast
from ..diagnostics import Diagnostic, FlowError, Report, suggest
from ..source import Span
from .definitions import Definition, FlowDefinition
from .trace import run_users


def load_flow(path: str, name: str) -> ast.Module:
    """The module of flow `name`, or of the only one if `name` is empty, in the Python file at `path`.

    The file is imported, and the flow's function runs once.

    Raises FlowError: E0029 if there is no such file or flow, or the file can't be imported; else what tracing found.
    """
    with _importing_from(Path(path).resolve().parent):
        return _chosen(_imported(path), path, name).module()


def flows_of(path: str) -> dict[str, FlowDefinition]:
    """The flows of a Python file by name, in the order of the file. Raises FlowError as `load_flow` does."""
    with _importing_from(Path(path).resolve().parent):
        return _flows(_imported(path))


def _chosen(module: ModuleType, path: str, name: str) -> FlowDefinition:
    flows = _flows(module)
    if not name and len(flows) == 1:
        return next(iter(flows.values()))
    if name in flows:
        return flows[name]
    if not name and flows:
        raise _failure(
            f"`{path}` holds {len(flows)} flows", path, f"name one: {', '.join(f'`{path}:{f}`' for f in flows)}"
        )
    if not name:
        raise _failure(f"`{path}` holds no flow", path, "put `@flow` above the function that writes it")
    if hasattr(module, name):
        raise _not_a_flow(getattr(module, name), path, name)
    listed = (
        f"flows of `{path}`: {', '.join(f'`{f}`' for f in flows)}"
        if flows
        else "no function in it stands under `@flow`"
    )
    near = suggest(name, flows) or ""
    help = f"{near} {listed}" if near.startswith("did") else listed
    raise _failure(f"`{path}` has no flow `{name}`", path, help)


def _flows(module: ModuleType) -> dict[str, FlowDefinition]:
    return {name: held for name, held in vars(module).items() if isinstance(held, FlowDefinition)}


def _not_a_flow(held: Any, path: str, name: str) -> FlowError:
    if isinstance(held, Definition):
        return _failure(f"`{name}` of `{path}` is a definition, not a flow", path, "name a function under `@flow`")
    help = f"put `@flow` above `def {name}`" if callable(held) else "name a function under `@flow`"
    return _failure(f"`{name}` of `{path}` is not a flow", path, help)


def _imported(path: str) -> ModuleType:
    """The file as a module of its own, under a name that no import statement reaches."""
    file = Path(path)
    if not file.is_file():
        beside = file.parent.glob("*.py") if file.parent.is_dir() else ()
        raise _failure(f"no file `{path}`", path, suggest(file.name, [p.name for p in beside]))
    module = ModuleType(f"_flows_of_{file.stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses look for their module
    try:
        run_users(_execute, f"importing `{path}`", Report(), file, module)
    except FlowError as failed:
        raise _at_syntax_error(failed, path) from failed.__cause__
    return module


def _execute(file: Path, module: ModuleType) -> None:
    """Compiled here: the import machinery would make the path absolute, and spans say it as it was given."""
    source = importlib.util.decode_source(file.read_bytes())
    exec(compile(source, module.__file__ or "", "exec", dont_inherit=True), vars(module))


def _at_syntax_error(failed: FlowError, path: str) -> FlowError:
    """A file that isn't Python raised nowhere: point at the line that the parser names."""
    cause = failed.__cause__
    if not isinstance(cause, SyntaxError):
        return failed
    line, column = cause.lineno or 1, cause.offset or 1
    span = Span(cause.filename or path, line, column, line, column + 1)
    return FlowError([Diagnostic("E0029", f"`{path}` is not valid Python: {cause.msg}", span)])


def _failure(message: str, path: str, help: str | None) -> FlowError:
    return FlowError(
        [Diagnostic("E0029", message, Span(path, 1, 1, 1, 1) if os.path.isfile(path) else None, help=help)]
    )


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Let the file import what stands beside it, and forget that afterwards: another folder has its own `rewards`."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        beside = {name for name in set(sys.modules) - before if _stands_in(folder, name.partition(".")[0])}
        for name in beside:
            del sys.modules[name]


def _stands_in(folder: Path, name: str) -> bool:
    """Whether a top-level module is a file or a package right there (not of an environment that lies below)."""
    origin = getattr(sys.modules.get(name), "__file__", None) or ""
    return Path(origin).resolve() in (folder / f"{name}.py", folder / name / "__init__.py")
