"""Sizes with their unit. Capitalised, so that `prompts = read(...)` can't hide them."""

from dataclasses import dataclass
from typing import ClassVar

from .. import ast
from ..source import Span
from .expressions import Inline
from .spans import caller
from .trace import refusal


@dataclass(frozen=True, init=False)
class Size(Inline):
    """A number of things: `Prompts(64)` is `64 prompts`."""

    number: int
    unit: ClassVar[str]

    def __init__(self, number: int) -> None:
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            help = f"write a whole number known beforehand, as in `{type(self).__name__}(64)`"
            raise refusal("E0022", f"`{number!r}` is not a number of {self.unit}", caller().part(0), help=help)
        object.__setattr__(self, "number", number)

    def _expr(self, span: Span) -> ast.Expr:
        return ast.Num(self.number, self.unit, span=span)


class Prompts(Size):
    """Rows of a `read`."""

    unit = "prompts"


class Samples(Size):
    """Rollouts."""

    unit = "samples"


class Tokens(Size):
    """Tokens that a model chose."""

    unit = "tokens"


class Steps(Size):
    """Steps of the flow."""

    unit = "steps"
