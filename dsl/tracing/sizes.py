"""Sizes with their unit. Capitalised, so that `prompts = read(...)` can't hide them."""

from dataclasses import dataclass
from typing import ClassVar

from .. import ast
from ..source import Span
from .expressions import Inline
from .spans import caller
from .trace import refusal


@dataclass(frozen=True)
class Size(Inline):
    """A number of things: `Prompts(64)` is `64 prompts`."""

    number: int
    unit: ClassVar[str]

    def __post_init__(self) -> None:
        if isinstance(self.number, bool) or not isinstance(self.number, int) or self.number < 0:
            site = caller()
            raise refusal(
                "E0022",
                f"`{self.number!r}` is not a number of {self.unit}",
                site.part(0),
                help=f"write a whole number known beforehand, as in `{type(self).__name__}(64)`",
            )

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
