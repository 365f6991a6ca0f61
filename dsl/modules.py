"""Where an import leads: `.flow` modules, Python files beside the flow, and the standard library `std`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from . import ast
from .diagnostics import Report, suggest
from .operators import Operator, read_operators, why_unusable
from .parser import parse_with_report
from .vocabulary import MODEL_CONSTRUCTORS, OPTIMIZERS, POINTWISE, REDUCTIONS, STATE_FUNCTIONS, STRUCTURAL

BUILT_IN = frozenset(
    {*REDUCTIONS, *POINTWISE, *STRUCTURAL, *STATE_FUNCTIONS, *MODEL_CONSTRUCTORS, *OPTIMIZERS, "frozen"}
)
"""Functions of the language, which no name of a file may hide."""

STD = Path(__file__).resolve().parent.parent / "stdlib"
"""The folder of the standard library; `std.kl` is its `kl.flow`."""


@dataclass(frozen=True)
class PythonModule:
    """A Python file. A function that can't be an operator maps to None; `broken`: the file isn't valid Python."""

    name: str
    path: Path
    functions: Mapping[str, Operator | None]
    broken: bool = False


@dataclass(frozen=True)
class DefSymbol:
    """A definition, with the module in whose names its body is read."""

    definition: ast.Def
    module: "FlowModule"


@dataclass(frozen=True)
class FlowSymbol:
    """A flow, with the module in whose names its body is read."""

    flow: ast.Flow
    module: "FlowModule"


@dataclass(frozen=True)
class FlowModule:
    """A parsed `.flow` file (or a traced Python one) and what each of its top-level names means."""

    name: str
    path: Path
    tree: ast.Module
    names: "dict[str, Symbol]" = field(default_factory=dict, compare=False)

    def flows(self) -> dict[str, FlowSymbol]:
        """The flows this file is for: those written in it, and imported ones that it places."""
        placed = {p.flow for p in self.places()}
        own = {s.name for s in self.tree.body if isinstance(s, ast.Flow)}
        return {n: f for n, f in self.placeable().items() if n in own | placed}

    def placeable(self) -> dict[str, FlowSymbol]:
        return {n: s for n, s in self.names.items() if isinstance(s, FlowSymbol)}

    def places(self) -> list[ast.Place]:
        return [s for s in self.tree.body if isinstance(s, ast.Place)]

    def clusters(self) -> dict[str, ast.ClusterDecl]:
        return {s.name: s for s in self.tree.body if isinstance(s, ast.ClusterDecl)}


@dataclass(frozen=True)
class Unresolved:
    """What an import stands for that was refused already: everything taken from it is as well, without another word."""


Symbol: TypeAlias = DefSymbol | Operator | FlowModule | PythonModule | FlowSymbol | Unresolved


class Loader:
    """Loads modules once each, and gathers the text of every file for diagnostics."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.sources: dict[str, str] = {}
        self._loaded: dict[Path, FlowModule | PythonModule] = {}
        self._loading: list[Path] = []

    def load_file(self, path: Path, name: str = "") -> FlowModule:
        """Load a `.flow` file. Raises OSError if it can't be read."""
        text = path.read_text(encoding="utf-8")
        self.sources[str(path)] = text
        return self.load_tree(parse_with_report(text, str(path), self.report), path, name or path.stem)

    def load_tree(self, tree: ast.Module, path: Path, name: str) -> FlowModule:
        """Resolve the top-level names of a parsed module."""
        module = FlowModule(name, path, tree)
        self._loading.append(path.resolve())
        for statement in tree.body:
            self._bind(module, statement)
        self._loading.pop()
        return module

    def import_module(self, dotted: str, folder: Path) -> FlowModule | PythonModule | None:
        """The module that `dotted` names, seen from `folder`; None if there is none."""
        path = find_module(dotted, folder)
        if path is None:
            return None
        key = path.resolve()
        if key not in self._loaded:
            self._loaded[key] = self._load(path, dotted)
        return self._loaded[key]

    def _load(self, path: Path, dotted: str) -> FlowModule | PythonModule:
        if path.suffix == ".flow":
            return self.load_file(path, dotted)
        self.sources[str(path)] = path.read_text(encoding="utf-8", errors="replace")
        functions = read_operators(path, dotted, self.report)
        return PythonModule(dotted, path, functions or {}, broken=functions is None)

    def _bind(self, module: FlowModule, statement: ast.TopLevel) -> None:
        match statement:
            case ast.Import():
                found = self._imported(module, statement.module, statement) or Unresolved()
                self._define(module, statement.alias or statement.module.split(".")[-1], found, statement)
            case ast.FromImport():
                source = self._imported(module, statement.module, statement)
                for name in statement.names:
                    self._bind_member(module, source, name)
            case ast.Def():
                self._define(module, statement.name, DefSymbol(statement, module), statement)
            case ast.Flow():
                self._define(module, statement.name, FlowSymbol(statement, module), statement)

    def _imported(
        self, module: FlowModule, dotted: str, statement: ast.Import | ast.FromImport
    ) -> FlowModule | PythonModule | None:
        path = find_module(dotted, module.path.parent)
        if path is not None and path.resolve() in self._loading:
            help = "move what both need into a third module"
            self.report.add("E0107", f"module `{dotted}` imports itself, in a circle", statement.span, help=help)
            return None
        try:
            found = self.import_module(dotted, module.path.parent)
        except UnicodeDecodeError as error:
            message = f"module `{dotted}` isn't UTF-8 text: {error.reason} at byte {error.start}"
            self.report.add("E0106", message, statement.span, help="save the file as UTF-8")
            return None
        if found is None:
            stem = dotted.replace(".", "/")
            files = [*module.path.parent.glob("*.py"), *module.path.parent.glob("*.flow")]
            beside = [f.stem for f in files if f != module.path]
            self.report.add(
                "E0106",
                f"no module `{dotted}`: neither `{stem}.flow` nor `{stem}.py` is beside `{module.path.name}`",
                statement.span,
                help=suggest(dotted, [*beside, *std_modules()]),
            )
        return found

    def _bind_member(self, module: FlowModule, found: FlowModule | PythonModule | None, name: ast.ImportedName) -> None:
        symbol = member(found, name.name) if found else Unresolved()
        if symbol is None and found is not None:
            self.report.add("E0107", missing_member(found, name.name), name.span, help=member_help(found, name.name))
        self._define(module, name.alias or name.name, symbol or Unresolved(), name)

    def _define(self, module: FlowModule, name: str, symbol: Symbol, node: ast.Node) -> None:
        """Give a name of the file its meaning. `import a.b` gives `b`."""
        if name in BUILT_IN:
            help = "choose another name: names never shadow; an import takes one with `as`"
            self.report.add("E0103", f"`{name}` is already a built-in function", node.span, help=help)
        elif name in module.names:
            help = "give one of them another name; an import takes one with `as`"
            self.report.add("E0102", f"`{name}` is defined twice in `{module.path.name}`", node.span, help=help)
        else:
            module.names[name] = symbol


def find_module(dotted: str, folder: Path) -> Path | None:
    """The file of a module: under the standard library for `std…`, else relative to `folder`."""
    head, *rest = dotted.split(".")
    base = STD.joinpath(*rest) if head == "std" else folder.joinpath(head, *rest)
    candidates = (base.with_suffix(".flow"), base.with_suffix(".py"), base / "__init__.flow")
    return next((c for c in candidates if c.is_file()), None)


def std_modules() -> list[str]:
    return ["std", *(f"std.{p.stem}" for p in STD.glob("*") if p.suffix in (".flow", ".py") and p.stem != "__init__")]


def member(module: FlowModule | PythonModule, name: str) -> Symbol | None:
    """What `module.name` means, or None."""
    if isinstance(module, FlowModule):
        return module.names.get(name)
    return Unresolved() if module.broken else module.functions.get(name)


def missing_member(module: FlowModule | PythonModule, name: str) -> str:
    """Why `module.name` can't be used, as a headline."""
    if isinstance(module, PythonModule) and name in module.functions:
        return f"`{module.name}.{name}` can't be an operator: {why_unusable(module.path, name)}"
    return f"module `{module.name}` has no `{name}`"


def member_help(module: FlowModule | PythonModule, name: str) -> str | None:
    known = module.names if isinstance(module, FlowModule) else module.functions
    return None if name in known else suggest(name, known)
