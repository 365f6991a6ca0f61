"""What a traced module holds besides its flow: the imports and definitions that the trace came across."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .. import ast
from ..diagnostics import Report
from ..source import Span
from ..vocabulary import RESERVED


@dataclass
class Parts:
    """Imports and definitions, in the order of their first use."""

    report: Report
    modules: dict[str, ast.Import] = field(default_factory=dict)
    members: dict[str, list[ast.ImportedName]] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    defs: dict[str, ast.Def] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    """Definitions whose bodies are being traced, outermost first."""
    _owners: dict[str, object] = field(default_factory=dict)

    def import_module(self, module: str, name: str, span: Span) -> None:
        """Need `import module`, known as `name`."""
        if self.claim(name, ("module", module), span):
            alias = None if name == module else name
            self.modules[name] = ast.Import(module, alias, span=span)

    def import_member(self, module: str, member: str, name: str, span: Span) -> None:
        """Need `from module import member`, known as `name`."""
        if self.claim(name, ("member", module, member), span):
            self.spans.setdefault(module, span)
            alias = None if name == member else name
            self.members.setdefault(module, []).append(ast.ImportedName(member, alias, span=span))

    def claim(self, name: str, owner: object, span: Span) -> bool:
        """Whether `name` is new; reports it if it already stands for something else."""
        if name in RESERVED:
            help = "bind it to a variable of another name"
            self.report.add("E0023", f"`{name}` is a word of the language and can't name this", span, help=help)
        known = self._owners.setdefault(name, owner)
        if known is not owner and known != owner:
            self.report.add(
                "E0023",
                f"`{name}` stands for two things in one module",
                span,
                label="already stands for something else",
                help="bind one of them to a variable of another name",
            )
            return False
        return name not in self.modules and name not in self.defs and not self._imports(name)

    def statements(self) -> tuple[ast.TopLevel, ...]:
        """What stands above the flow."""
        froms = [ast.FromImport(m, tuple(names), span=self.spans[m]) for m, names in self.members.items()]
        return (*self.modules.values(), *froms, *self.defs.values())

    def _imports(self, name: str) -> bool:
        return any(name == (n.alias or n.name) for names in self.members.values() for n in names)


def bound_name(held: object, *namespaces: Mapping[str, object]) -> str | None:
    """The name under which a namespace holds this very object."""
    for namespace in namespaces:
        for name, value in namespace.items():
            if value is held:
                return name
    return None
