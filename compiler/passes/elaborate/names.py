"""Names of a block: each is given once, and shadows nothing."""

from ....dsl import ast
from ....dsl.diagnostics import Note
from ....dsl.vocabulary import MODEL_CONSTRUCTORS, OPTIMIZERS, RESERVED
from .context import Context, Scope
from .expressions import BUILTINS


def claim(context: Context, scope: Scope, name: str, node: ast.Node) -> bool:
    """Whether the block may give this name; a second assignment and shadowing are refused.

    The names of a `collect` are claimed twice with one span: in it, and around it, where they mean the kept rows.
    """
    if name in scope.spans:
        first = (Note("first assigned here", scope.spans[name]),)
        help = "give the second value another name; a value that changes from step to step is a `state`"
        context.report.add("E0102", f"`{name}` is assigned twice", node.span, notes=first, help=help)
        return False
    scope.spans[name] = node.span
    taken = _taken(context, scope, name)
    if taken:
        context.report.add(
            "E0103", f"`{name}` is already {taken}", node.span, help="choose another name: names never shadow"
        )
    return taken is None


def _taken(context: Context, scope: Scope, name: str) -> str | None:
    if name in RESERVED:
        return "a word of the language"
    if name in BUILTINS or name in MODEL_CONSTRUCTORS or name in OPTIMIZERS:
        return "a built-in function"
    if name in context.params:
        return "a parameter of the flow"
    if name in context.roles:
        return "a model"
    if name in context.states:
        return "a state"
    if name in context.module.names:
        return "an imported or defined name"
    outer = next((s for s in scope.chain()[1:] if name in s.spans and s.spans[name] != scope.spans[name]), None)
    return f"assigned in the block around, in line {outer.spans[name].line}" if outer else None
