"""Which folder may import which: dsl ← compiler ← runtime (its plan only), dsl ← stdlib."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("dsl", "compiler", "runtime", "stdlib")

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "dsl": ("dsl",),
    "compiler": ("compiler", "dsl"),
    "runtime": ("runtime", "dsl", "compiler.plan"),
    "stdlib": ("stdlib", "dsl"),
}
HEAVY = {"torch", "transformers", "numpy", "datasets"}


def imports(file: Path, *, at_once: bool = False) -> Iterator[str]:
    """The modules a file imports (`at_once`: when it is imported itself), absolute; ours without `shardflow.`."""
    package = file.relative_to(ROOT).parts[:-1]
    for node in _statements(ast.parse(file.read_bytes()), at_once):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("shardflow.") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part).removeprefix("shardflow.")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _statements(node: ast.AST, at_once: bool) -> Iterator[ast.AST]:
    """Everything in a tree; `at_once` leaves out functions and what only type checkers read."""
    for child in ast.iter_child_nodes(node):
        for_checkers = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not (at_once and (for_checkers or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))):
            yield child
            yield from _statements(child, at_once)


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_what_it_may(folder: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files(folder)
        for name in imports(file)
        if name.split(".")[0] in FOLDERS and not any(f"{name}.".startswith(f"{m}.") for m in MAY_IMPORT[folder])
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", ["dsl", "compiler"])
def test_the_front_needs_no_torch(folder: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files(folder)
        for name in imports(file, at_once=True)
        if name.split(".")[0] in HEAVY
    ]
    assert wrong == []
