"""What Python can't ask of a traced value: its truth, its size, its text. No one has them while the flow is traced."""

import ast as python
from collections.abc import Callable

from ..diagnostics import FlowError
from .spans import caller
from .trace import Symbol, look, refusal

ASKED = {
    "__iter__": ("iterate over", "operations take all rows at once, as `mean(x, by=…)` does"),
    "__len__": ("take the length of", "`count(x)` counts its elements, `rollout.length` its tokens"),
    "__contains__": ("look for an element in", "compare with `==`, and combine with `|`"),
    "__getitem__": ("index", "`keep(rollout, where=…)` picks rows; columns are attributes: `prompts.answer`"),
    "__int__": ("make a Python int of", "use it as it is"),
    "__index__": ("make a Python int of", "what Python counts with must be a plain number"),
    "__float__": ("make a Python float of", "use it as it is; `exp`, `ln`, `sqrt` are in shardflow.dsl"),
    "__complex__": ("make a Python number of", "use it as it is"),
    "__round__": ("round", "use it as it is"),
    "__str__": ("make text of", "join text with `+`; `repr(x)` shows what was traced"),
    "__format__": ("make text of", "join text with `+`; `{x!r}` shows what was traced"),
}
"""Special methods that are refused: what they would do, and what to do instead."""


def refuse_uses(of: type[Symbol]) -> None:
    """Give a class the special methods that refuse. Not in its body, so that type checkers refuse too."""
    for name, (doing, help) in ASKED.items():
        setattr(of, name, _refusing(doing, help))


def no_truth(value: Symbol) -> FlowError:
    """The error for `if x:`, `x and y`, `not x`, `0 < x < 1`."""
    look()
    site = caller()
    message = f"{value._traced.text} is neither true nor false while the flow is traced"
    return refusal("E0020", message, site.span, label="asks for its truth", help=_instead(site.node))


def _instead(asking: python.expr | None) -> str:
    match asking:
        case python.BoolOp(op=python.And()):
            return "write `a & b` instead of `a and b`, each side in parentheses"
        case python.BoolOp(op=python.Or()):
            return "write `a | b` instead of `a or b`, each side in parentheses"
        case python.UnaryOp(op=python.Not()):
            return "write `~a` instead of `not a`"
        case python.Compare(ops=[_, _, *_]):
            return "comparisons don't chain: write `(a < b) & (b < c)`"
        case _:
            return "use `where(c, a, b)` to choose, `&`, `|`, `~` to combine, and `with when(c):` to hold statements"


def _refusing(doing: str, help: str) -> Callable[..., None]:
    def refuse(self: Symbol, *args: object) -> None:
        look()
        message = f"can't {doing} {self._traced.text}: it has no value while the flow is traced"
        raise refusal("E0021", message, caller().span, help=help)

    return refuse
