"""`use`: other modules as proxies. Nothing of them is imported or run; the trace notes which names it needs of them."""

from .. import ast
from ..source import Span
from .expressions import Inline, Operand, to_args
from .module import bound_name
from .spans import caller, user_frame
from .trace import Trace, refusal, tracing
from .values import Value


class Imported(Inline):
    """A member of another module: an operator, a definition or a flow."""

    __slots__ = ("_member", "_module", "_span")

    def __init__(self, module: "ModuleProxy", member: str, span: Span) -> None:
        self._module, self._member, self._span = module, member, span

    def __call__(self, *args: Operand, **options: Operand) -> Value:
        site = caller()
        trace = tracing(site)
        written = ast.Call(self._expr(site.span), to_args(args, options, site), span=site.span)
        return Value(trace.add(written, site))

    def __repr__(self) -> str:
        return f"<{self._module._dotted}.{self._member}, not loaded>"

    def _expr(self, span: Span) -> ast.Expr:
        trace = tracing(caller())
        name = _variable(self, trace)
        module = None if name else _variable(self._module, trace)
        # A module that has a variable is imported whole, a member that has one (or a nameless module's) by its name.
        if module:
            trace.parts.import_module(self._module._dotted, module, self._module._span)
            return ast.Attr(ast.Name(module, span=span), self._member, span=span)
        name = name or self._member
        trace.parts.import_member(self._module._dotted, self._member, name, self._span)
        return ast.Name(name, span=span)


class ModuleProxy:
    """A module by its name. Each attribute is a member, whether it exists is the compiler's to say."""

    __slots__ = ("_dotted", "_span")

    def __init__(self, dotted: str, span: Span) -> None:
        self._dotted, self._span = dotted, span

    def __getattr__(self, name: str) -> Imported:
        if name.startswith("__"):
            raise AttributeError(name)
        return Imported(self, name, caller().span)

    def __repr__(self) -> str:
        return f"<module {self._dotted}, not loaded>"


def use(module: str) -> ModuleProxy:
    """The module `rewards` (rewards.py or rewards.flow beside this file) or of the library (`std.kl`), unread.

    `rewards = use("rewards")` is `import rewards`; `k3 = use("std.kl").k3` is `from std.kl import k3`.
    """
    site = caller()
    if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
        raise refusal(
            "E0022",
            f"`{module}` is not the name of a module",
            site.part(0),
            help='write `use("rewards")`, without `.py`',
        )
    return ModuleProxy(module, site.span)


def _variable(held: object, trace: Trace) -> str | None:
    """The user's variable that holds this very object: what the import is called."""
    frames = [f for f in (user_frame(), trace.frame) if f]
    return bound_name(held, *(names for f in frames for names in (f.f_locals, f.f_globals)))
