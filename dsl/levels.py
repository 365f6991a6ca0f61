"""Which statements may stand where: the levels of a file, as data."""

from dataclasses import dataclass

from .ast import (
    Assign,
    ClusterDecl,
    Collect,
    Def,
    Every,
    Flow,
    FromImport,
    Import,
    Keep,
    Metric,
    Minimize,
    ModelDecl,
    Next,
    Place,
    PlaceLine,
    StateDecl,
    Statement,
    Update,
    When,
)
from .build import NO_RESULT, Docstring, Return
from .diagnostics import Diagnostic
from .lines import Line
from .source import Span
from .tokens import Token

Kinds = tuple[type[Statement], ...]


@dataclass(frozen=True)
class Level:
    """One kind of block: how to name it, and what it may hold."""

    where: str
    allowed: Kinds
    docstring: bool = False

    def start(self, line: Line) -> str:
        """The rule of the grammar that a line of this block is read with."""
        here = self is PLACE and line.first.type == "NAME"
        return "placement" if here or looks_placed(line.tokens) else "line"


_TOP: Kinds = (Import, FromImport, Def, Flow, ClusterDecl, Place)
_IN_FLOW: Kinds = (
    *(Assign, ModelDecl, StateDecl, Next, Metric, Minimize, Keep),
    *(Update, When, Every, Collect),
)

MODULE = Level("at the top level", _TOP, docstring=True)
FLOW = Level("in a flow", _IN_FLOW, docstring=True)
BLOCK = Level("in a block of a flow", _IN_FLOW)
DEF = Level("in a `def`", (Assign, Return), docstring=True)
PLACE = Level("in a `place`", (PlaceLine,))
ANY = Level("here", (Statement,), docstring=True)
"""Under a line that nobody could read: only syntax is checked."""

EXAMPLES = {
    FLOW: '`model policy = causal_lm("...")`',
    BLOCK: "`metric length = mean(rollout.length)`",
    DEF: "`return exp(x)`",
    PLACE: "`policy.update on nodes[0]`",
}
"""A line that may stand in each block."""


def looks_placed(tokens: list[Token]) -> bool:
    """Whether this is `TARGET on ...` or `TARGET with ...`."""
    for token in tokens:
        if token.type not in ("NAME", "DOT"):
            return token.type in ("ON", "WITH") and token is not tokens[0]
    return False


def block_level(statement: Statement) -> Level | None:
    """The level of the block that this statement opens, if it opens one."""
    match statement:
        case Flow():
            return FLOW
        case Def(result=result):
            return DEF if result is NO_RESULT else None
        case Place():
            return PLACE
        case Update() | When() | Every() | Collect():
            return BLOCK
        case _:
            return None


def guess_level(line: Line, around: Level) -> Level:
    """The level of the block under a line that couldn't be read."""
    opened = {"FLOW": FLOW, "DEF": DEF, "PLACE": PLACE}
    if around is MODULE:
        return opened.get(line.first.type, ANY)
    return opened.get(line.first.type, BLOCK if around is FLOW else around)


# ---------------------------------------------------------------- the wrong level


_KEYWORD: dict[type[Statement], str] = (
    {Import: "import", FromImport: "from", Def: "def", Flow: "flow", ClusterDecl: "cluster", Place: "place"}
    | {ModelDecl: "model", StateDecl: "state", Next: "next", Metric: "metric", Minimize: "minimize", Keep: "keep"}
    | {Update: "update", When: "when", Every: "every", Collect: "collect", Return: "return"}
)
_OTHER: dict[type[Statement], str] = {
    Assign: "an assignment",
    PlaceLine: "a placement",
    Docstring: "a docstring",
}


def wrong_level(statement: Statement, level: Level, span: Span) -> Diagnostic:
    """E0009: `statement` may not stand at `level`."""
    kind = type(statement)
    named = f"`{_KEYWORD[kind]}`" if kind in _KEYWORD else _OTHER[kind]
    return Diagnostic("E0009", f"{named} can't stand {level.where}", span, help=_where_it_belongs(statement, level))


def _where_it_belongs(statement: Statement, level: Level) -> str:
    match statement:
        case Docstring():
            return "a docstring is the first line of a file, a flow or a `def`; a comment starts with `#`"
        case Return():
            return "`return` ends the block of a `def`; a flow has no result, it has updates and metrics"
        case PlaceLine():
            return "indent it under a `place FLOW on CLUSTER:`"
        case Assign() if level is MODULE:
            return "indent it under a `flow`, or make it a parameter of the flow"
        case _ if level is DEF:
            return "a `def` holds assignments and ends with a `return`"
        case _ if level is PLACE:
            return "a `place` holds lines such as `policy.update on nodes[0], fsdp=8` or `ref with policy.update`"
        case _ if isinstance(statement, _TOP):
            return "move it to the top level, without indentation"
        case _:
            return "indent it under a `flow`"
