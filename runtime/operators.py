"""Loading and calling the user's Python functions.

A plan names a function by the file of its module, its name and the file's SHA-256; nothing is imported before it is
called for here.
"""

import asyncio
import hashlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from .boundary import OperatorError, RowContext, raised, short, short_arguments, user_frames
from .errors import RunError
from .results import Expected, checked

Function = Callable[..., Any]
T = TypeVar("T")

_modules: dict[Path, tuple[str, ModuleType]] = {}
_loading = threading.RLock()


class LoadError(RunError):
    """A module or function that the plan names can't be had."""


@dataclass(frozen=True)
class AsyncLimits:
    """How `async def` functions are awaited.

    Attributes:
        limit: calls under way at the same time.
        timeout: seconds for one attempt.
        retries: further attempts after one that raised or timed out.
        backoff: seconds before the first further attempt; doubles with each.
    """

    limit: int = 64
    timeout: float = 60.0
    retries: int = 2
    backoff: float = 0.5


def load_function(file: Path, name: str, sha256: str | None) -> Function:
    """A function of a user's module; each file is imported once per process, with its folder importable.

    Args:
        file: the module's file.
        name: the function.
        sha256: hex digest of the file when the plan was compiled; None skips the comparison.

    Raises:
        LoadError: no such file or function, or the file has changed since.
        OperatorError: importing the module raised.
    """
    function = getattr(module_of(file, sha256), name, None)
    if not callable(function):
        raise LoadError(_no_function(file, name, function))
    return function  # type: ignore[no-any-return]


def _no_function(file: Path, name: str, found: object) -> str:
    if found is not None:
        return f"{file.name}: '{name}' is {short(found)}, not a function."
    functions = [n for n, value in vars(module_of(file, None)).items() if callable(value) and not n.startswith("_")]
    near = get_close_matches(name, functions, n=1)
    help = f"Did you mean '{near[0]}'?" if near else f"It has {', '.join(functions) or 'no functions'}."
    return f"{file.name} has no function '{name}'. {help}"


def module_of(file: Path, sha256: str | None = None) -> ModuleType:
    """The module in a file, imported once; again where a plan was compiled from a later text of it."""
    file = file.resolve()
    with _loading:
        known = _modules.get(file)
        if known is None or (sha256 is not None and known[0] != sha256):
            digest = _digest(file)
            _check_digest(file, digest, sha256)
            _modules[file] = digest, _import(file, digest)
        return _modules[file][1]


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise LoadError(f"The module {file.name} can't be read ({file}: {error.strerror}).") from error


def _check_digest(file: Path, found: str, planned: str | None) -> None:
    if planned is not None and found != planned:
        raise LoadError(
            f"{file.name} has changed since the plan was compiled: its SHA-256 is {found[:12]}…, the plan has "
            f"{planned[:12]}…. Compile the flow again, or restore the file ({file})."
        )


def _import(file: Path, digest: str) -> ModuleType:
    # A name of its own: a user's rewards.py or utils.py must not become, or be taken for, another module.
    name = f"shardflow_user_{digest[:8]}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise LoadError(f"{file.name} is no Python module.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    _forget_namesakes(file.parent)
    try:
        with _importable(file.parent):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise raised(error, RowContext(file.stem, file.name), " when it was imported") from error
    return module


def _forget_namesakes(folder: Path) -> None:
    """Forget modules of other users' folders that this folder has its own of: two flows may both have a utils.py."""
    others = {file.parent for file in _modules} - {folder}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and "." not in name and Path(file).parent in others and (folder / f"{name}.py").is_file():
            del sys.modules[name]


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Siblings come first while the module is imported, and last afterwards, for imports inside functions."""
    text = str(folder)
    sys.path.insert(0, text)
    try:
        yield
    finally:
        sys.path.remove(text)
        if text not in sys.path:
            sys.path.append(text)


def call_rows(
    function: Function,
    columns: Sequence[Sequence[Any]],
    *,
    node: str,
    row_labels: Sequence[str] | None = None,
    row_numbers: Sequence[int] | None = None,
    limits: AsyncLimits = AsyncLimits(),
    expected: Expected | None = None,
    keywords: Sequence[str] = (),
) -> list[Any]:
    """Call a function once per row, the columns being its positional arguments.

    An `async def` is awaited for many rows at once, with a limit, a time-out and retries; the first error (of the
    lowest row, if there are several at once) ends the others.

    Args:
        function: sync or async.
        columns: one sequence per parameter, all of one length (rows).
        node: the name of the operator's value in the flow.
        row_labels: what each row is in the flow's terms.
        row_numbers: what messages call each row; by default its number here.
        limits: for async functions.
        expected: the type of each result, as for `check_result`; None leaves them unchecked.
        keywords: the parameters of the last columns, where they are passed by name.

    Returns:
        One result per row, in order.

    Raises:
        OperatorError: the function raised, timed out or returned something else than `expected`.
    """
    calls = _Calls(function, columns, node, row_labels, tuple(keywords), row_numbers)
    if is_async(function):
        results = _run(_call_all(calls, limits))
    else:
        results = [_call(calls, row) for row in range(len(calls))]
    if expected is not None:
        results = [checked(value, expected, calls.context(row)) for row, value in enumerate(results)]
    return results


def is_async(function: Function) -> bool:
    """Whether calling it gives something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


@dataclass(frozen=True)
class _Calls:
    """The rows a function is called with."""

    function: Function
    columns: Sequence[Sequence[Any]]
    node: str
    labels: Sequence[str] | None
    keywords: tuple[str, ...] = ()
    numbers: Sequence[int] | None = None

    def __post_init__(self) -> None:
        lengths = {len(column) for column in self.columns}
        if len(lengths) != 1:
            raise ValueError(f"{self.node}: the columns of a call have different lengths or are none: {lengths}")

    def __len__(self) -> int:
        return len(self.columns[0])

    def arguments(self, row: int) -> list[Any]:
        return [column[row] for column in self.columns]

    def made(self, row: int) -> Any:
        """What the function returns for a row: of an async one, something to await."""
        arguments = self.arguments(row)
        first = len(arguments) - len(self.keywords)
        return self.function(*arguments[:first], **dict(zip(self.keywords, arguments[first:], strict=True)))

    def context(self, row: int) -> RowContext:
        arguments = self.arguments(row)
        shown = short_arguments(_parameters(self.function, len(arguments)), arguments)
        number = self.numbers[row] if self.numbers else row
        return RowContext(
            self.node, function_name(self.function), number, self.labels[row] if self.labels else None, shown
        )


def function_name(function: Function) -> str:
    """`rewards.exact_match`: as the flow writes it."""
    name = getattr(function, "__qualname__", type(function).__name__)
    module = getattr(function, "__module__", None)
    if module is None:
        return name
    if module.startswith("shardflow_user_"):
        module = module.split("_", 3)[3]
    return f"{module.rpartition('.')[2]}.{name}"


def _parameters(function: Function, count: int) -> list[str]:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    return [names[i] if i < len(names) else f"argument {i + 1}" for i in range(count)]


def _call(calls: _Calls, row: int) -> Any:
    try:
        value = calls.made(row)
    except (Exception, SystemExit) as error:
        raise raised(error, calls.context(row)) from error
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # silences "was never awaited"
        raise OperatorError(calls.context(row), "returned an awaitable: write it as `async def`, also in its wrappers.")
    return value


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, also where an event loop is running already (notebooks): then on a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    outcome: list[T | BaseException] = []
    thread = threading.Thread(target=lambda: outcome.append(_outcome(work)))
    thread.start()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _outcome(work: Coroutine[Any, Any, T]) -> T | BaseException:
    try:
        return asyncio.run(work)
    except BaseException as error:
        return error


async def _call_all(calls: _Calls, limits: AsyncLimits) -> list[Any]:
    gate = asyncio.Semaphore(limits.limit)
    tasks = [asyncio.ensure_future(_gated(gate, _call_async(calls, row, limits))) for row in range(len(calls))]
    if not tasks:
        return []
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    failed = [task for task in tasks if task in done and task.exception()]
    return [task.result() for task in failed or tasks]  # the result of a failed one is to raise


async def _gated(gate: asyncio.Semaphore, call: Awaitable[Any]) -> Any:
    async with gate:
        return await call


async def _call_async(calls: _Calls, row: int, limits: AsyncLimits) -> Any:
    attempt = 0
    while True:
        deadline = asyncio.timeout(limits.timeout)
        try:
            async with deadline:
                return await calls.made(row)
        except (Exception, SystemExit) as error:
            if attempt == limits.retries:
                raise _given_up(error, calls.context(row), limits, deadline.expired()) from error
        await asyncio.sleep(limits.backoff * 2**attempt)
        attempt += 1


def _given_up(error: BaseException, context: RowContext, limits: AsyncLimits, late: bool) -> OperatorError:
    attempts = f" (the last of {limits.retries + 1} attempts)" if limits.retries else ""
    if late:
        return OperatorError(context, f"took longer than {limits.timeout:g} s{attempts}", user_frames(error))
    return raised(error, context, attempts)


def check_result(
    value: Any,
    expected: Expected,
    *,
    node: str,
    function: Function,
    row: int | None = None,
    label: str | None = None,
    arguments: Sequence[Any] = (),
) -> Any:
    """The result of a call as a plain Python value of the expected type.

    Args:
        value: what the function returned; numpy scalars and tensors of one element count as numbers.
        expected: `float` (also takes an int or bool; NaN and infinities are refused), `int` (also a bool), `bool`,
            `str`, `list[...]` of one of them, `any` (all but None), or a mapping of fields to types for a NamedTuple.
        node, function, row, label, arguments: what the error names.

    Raises:
        OperatorError: None, NaN or another type.
    """
    shown = short_arguments(_parameters(function, len(arguments)), arguments)
    return checked(value, expected, RowContext(node, function_name(function), row, label, shown))
