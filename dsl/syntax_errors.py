"""Why a line is no Flow: from the token where the grammar stopped to a diagnostic that says what to write instead.

The rules below are tried in order; the first that answers wins, and the last, E0001, always does.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass

from .diagnostics import Diagnostic, nearest
from .expected import COMPARATORS, allowed_in_words
from .lines import STARTERS
from .source import Span
from .tokens import CLOSING, FOREIGN, OPENING, Token
from .vocabulary import KEYWORDS

HEADERS = ("FLOW", "DEF", "PLACE", "UPDATE", "WHEN", "EVERY", "COLLECT")
_INFIX_WORDS = ("AND", "OR", "AS", "ON", "WITH", "IMPORT")


@dataclass(frozen=True)
class Stop:
    """Where the grammar stopped: at `tokens[at]` or the line's end. `allowed` are the terminals it would have taken."""

    tokens: list[Token]
    at: int
    allowed: Set[str]

    @property
    def ended(self) -> bool:
        return self.at == len(self.tokens)

    @property
    def type(self) -> str:
        return "END" if self.ended else self.tokens[self.at].type

    @property
    def text(self) -> str:
        return "" if self.ended else self.tokens[self.at].value

    @property
    def span(self) -> Span:
        if not self.ended:
            return self.tokens[self.at].span
        last = self.tokens[-1].span
        return Span(last.path, last.end_line, last.end_column, last.end_line, last.end_column)

    @property
    def first(self) -> Token:
        return self.tokens[0]

    def near(self, offset: int) -> str:
        """The type of a token near the stop, "" beyond the line."""
        index = self.at + offset
        return self.tokens[index].type if 0 <= index < len(self.tokens) else ""

    @property
    def depth(self) -> int:
        """How many brackets are open."""
        before = self.tokens[: self.at]
        return sum(t.value in OPENING for t in before) - sum(t.value in CLOSING for t in before)

    def refuse(self, code: str, message: str, help: str | None, span: Span | None = None) -> Diagnostic:
        return Diagnostic(code, message, span or self.span, help=help)


Rule = Callable[[Stop], Diagnostic | None]


def explain(tokens: list[Token], token: object, allowed: Set[str]) -> Diagnostic:
    """The diagnostic for a line that the grammar left at `token`."""
    at = next((i for i, t in enumerate(tokens) if t is token), len(tokens))
    stop = Stop(tokens, at, allowed)
    return next(found for rule in RULES if (found := rule(stop)))


# ---------------------------------------------------------------- E0016, E0015: words


def _reserved_name(stop: Stop) -> Diagnostic | None:
    """A keyword where a name is bound: `state = 1`, `model next = ...`, `def where(x)`, `x = model + 1`."""
    if stop.at == 1 and stop.type == "EQUAL" and _is_word(stop.first):
        return _refuse_word(stop, stop.first)
    if stop.at == 0 and stop.near(1) == "EQUAL" and _is_word(stop.first):
        return _refuse_word(stop, stop.first)
    binds = "NAME" in stop.allowed and "NUMBER" not in stop.allowed
    if stop.ended or not _is_word(stop.tokens[stop.at]) or "NAME" not in stop.allowed or stop.at == 0:
        return None
    if binds or stop.type not in (*_INFIX_WORDS, "NOT", "FOREIGN"):
        return _refuse_word(stop, stop.tokens[stop.at])
    return None


def _is_word(token: Token) -> bool:
    return token.value in KEYWORDS or token.value in FOREIGN


def _refuse_word(stop: Stop, word: Token) -> Diagnostic:
    owner = "Flow" if word.value in KEYWORDS else "Python"
    help = f"choose another name, such as `{word.value}_`; after a dot and as an option's name it is free"
    return stop.refuse("E0016", f"`{word.value}` is a reserved word of {owner}", help, word.span)


def _python_constant(stop: Stop) -> Diagnostic | None:
    if stop.text in ("True", "False"):
        return stop.refuse("E0015", f"Flow spells `{stop.text}` in lower case", f"write `{stop.text.lower()}`")
    if stop.text == "None":
        return stop.refuse(
            "E0015", "Flow has no `None`", "leave the option out; a parameter without a default is required"
        )
    return None


# ---------------------------------------------------------------- E0012, E0018: constructs of Python


def _ternary(stop: Stop) -> Diagnostic | None:
    if stop.text in ("if", "else") and stop.at > 0:
        return stop.refuse("E0012", "Flow has no `a if c else b`", "write `where(c, a, b)`")
    return None


_PYTHON_LINES = {
    "if": "a condition on a step is `when COND:`, one on rows is `where(c, a, b)` or `keep(x, where=c)`",
    "elif": "write another `when COND:`",
    "else": "write another `when not COND:`",
    "for": "operations apply to all rows at once; `every N steps:` and `collect(...)` are what repeats",
    "while": "`collect(...)` repeats until enough rows are kept, `every N steps:` at intervals",
    "class": "functions are `def`, algorithms are `flow`",
    "async": "an asynchronous operator is Python: put it into a module and `import` it",
    "assert": "the compiler checks axes and sizes; record what you watch with `metric NAME = ...`",
    "pass": "leave the line out; a block that does nothing has no use",
    "del": "names need no deletion",
    "raise": "an operator that can fail is Python: put it into a module and `import` it",
    "try": "an operator that can fail is Python: put it into a module and `import` it",
}
_PYTHON_WORDS = {
    "lambda": "write a `def` at the top level",
    "for": "operations apply to all rows at once, without a loop",
    "is": "write `==`",
    "in": "compare with `==` and `or`",
    "await": "an asynchronous operator is called like any other",
}


def _python_word(stop: Stop) -> Diagnostic | None:
    if stop.type != "FOREIGN" and not (stop.type == "NOT" and stop.near(1) == "FOREIGN"):
        return None
    words = _PYTHON_LINES if stop.at == 0 else _PYTHON_WORDS
    text = "in" if stop.type == "NOT" else stop.text
    help = words.get(text, "what the language lacks is a Python module beside the flow: `import` it")
    return stop.refuse("E0018", f"`{text}` is Python, not Flow", help)


_PYTHON_MARKS = {
    "AT": ("Flow has no decorators and no `@`", "decorators belong to the Python front end"),
    "SEMICOLON": ("Flow has no `;`", "write each statement on its own line"),
    "ARROW": ("Flow has no `->`", "leave the result's type out: it is inferred"),
}


def _python_mark(stop: Stop) -> Diagnostic | None:
    if stop.type in _PYTHON_MARKS:
        message, help = _PYTHON_MARKS[stop.type]
        return stop.refuse("E0018", message, help)
    if stop.type in ("STAR", "POW") and stop.near(-1) in ("LPAR", "COMMA"):
        return stop.refuse("E0018", f"Flow has no `{stop.text}` arguments", "name each argument")
    if stop.type == "STAR" and stop.near(-1) == "IMPORT":
        return stop.refuse("E0018", "Flow has no `import *`", f"name what you use: `from {_module(stop)} import a, b`")
    return None


def _module(stop: Stop) -> str:
    return "".join(t.value for t in stop.tokens[1 : stop.at - 1])


def _prefixed_string(stop: Stop) -> Diagnostic | None:
    before = stop.tokens[stop.at - 1] if stop.at else None
    if stop.type not in ("STRING", "DOCSTRING") or before is None or before.type != "NAME":
        return None
    if before.value.lower() in ("f", "r", "b", "u", "rb", "br") and before.span.end_column == stop.span.column:
        help = "write a plain string; text is put together by a Python operator"
        return stop.refuse("E0018", f"Flow has no `{before.value}` strings", help, before.span.to(stop.span))
    return None


# ---------------------------------------------------------------- E0010, E0011, E0013, E0017: operators


def _assignment_form(stop: Stop) -> Diagnostic | None:
    """`x += 1`, `x := 1`, `x: int = 1`, `a, b = f()`, `policy.lr = 1`, `a = b = c`."""
    if stop.type == "AUGMENTED":
        help = "a name is assigned once; what changes from step to step is a `state` with a `next`"
        return stop.refuse("E0017", f"Flow has no `{stop.text}`", help)
    if stop.type == "WALRUS":
        return stop.refuse("E0017", "Flow has no `:=`", "assign the name on its own line")
    if stop.type == "COLON" and stop.at == 1 and stop.first.type == "NAME" and stop.near(1) not in ("", "COLON"):
        return stop.refuse("E0017", "an assignment has no annotation", f"write `{stop.first.value} = ...`")
    if stop.depth == 0 and _targets_end(stop):
        help = "give the whole a name and read its fields: `r = f(x)`, then `r.a`"
        return stop.refuse("E0017", "an assignment has one plain name at its left", help, _target_span(stop))
    if stop.type == "EQUAL" and stop.depth == 0 and stop.near(1 - stop.at) == "EQUAL":
        help = "assign each name on its own line; to compare, write `==`"
        return stop.refuse("E0017", "an assignment has one `=`", help)
    return None


def _targets_end(stop: Stop) -> bool:
    """Whether the line starts with something that isn't a plain name, and an `=` follows it outside brackets."""
    return stop.at == 1 and stop.first.type == "NAME" and stop.type in ("COMMA", "DOT") and _equal_index(stop) > 0


def _equal_index(stop: Stop) -> int:
    depth = 0
    for i, token in enumerate(stop.tokens):
        depth += (token.value in OPENING) - (token.value in CLOSING)
        if token.type == "EQUAL" and depth == 0:
            return i
    return 0


def _target_span(stop: Stop) -> Span:
    return stop.first.span.to(stop.tokens[_equal_index(stop) - 1].span)


def _equal_in_condition(stop: Stop) -> Diagnostic | None:
    if stop.type == "EQUAL" and "EQ" in stop.allowed:
        return stop.refuse("E0010", "`=` gives a name a value; it doesn't compare", "write `==`")
    return None


def _chained(stop: Stop) -> Diagnostic | None:
    if stop.type not in COMPARATORS or stop.at == 0 or "NUMBER" in stop.allowed:
        return None
    first, middle = _chain_parts(stop)
    if first is None:
        return None
    help = (
        f"write `a {first.value} b and b {stop.text} c`"
        if not middle
        else (f"repeat the middle: `... {first.value} {middle} and {middle} {stop.text} ...`")
    )
    return stop.refuse("E0011", "comparisons don't chain", help)


def _chain_parts(stop: Stop) -> tuple[Token | None, str]:
    """The comparator before this one in the same brackets, and the text between the two if it is one name or number."""
    depth = 0
    for i in range(stop.at - 1, -1, -1):
        token = stop.tokens[i]
        depth += (token.value in CLOSING) - (token.value in OPENING)
        if depth < 0 or (depth == 0 and token.type in ("AND", "OR", "COMMA", "EQUAL")):
            break
        if depth == 0 and token.type in COMPARATORS:
            between = stop.tokens[i + 1 : stop.at]
            return token, between[0].value if len(between) == 1 else ""
    return None, ""


_MEANT = {"&": "`and`", "&&": "`and`", "|": "`or`", "||": "`or`", "~": "`not`", "!": "`not`"} | {
    "^": "`**` for a power, `!=` for exclusive or",
    "<>": "`!=`",
    "=>": "`>=`",
    "=<": "`<=`",
}


def _unknown_operator(stop: Stop) -> Diagnostic | None:
    if stop.type != "UNKNOWN_OPERATOR":
        return None
    meant = _MEANT.get(stop.text)
    return stop.refuse(
        "E0013", f"Flow has no `{stop.text}`", f"write {meant}" if meant else "multiply by a power of two"
    )


# ---------------------------------------------------------------- E0014: brackets of Python


def _containers(stop: Stop) -> Diagnostic | None:
    if stop.type == "LSQB":
        return _square_bracket(stop)
    if stop.type == "LBRACE":
        return stop.refuse("E0014", "Flow has no dicts and no sets", "options are written `name=value`")
    empty = stop.type == "RPAR" and stop.near(-1) == "LPAR" and "NUMBER" in stop.allowed
    if empty or _parts_values(stop):
        help = "assign each value to its own name; an operator gives several values as fields of one result"
        return stop.refuse("E0014", "Flow has no tuples", help)
    return None


def _parts_values(stop: Stop) -> bool:
    """Whether this is a `,` after a value, where no list of arguments or names is open."""
    if stop.type != "COMMA" or stop.near(-1) in ("COMMA", "LPAR") or stop.first.type == "IMPORT":
        return False
    return "NUMBER" not in stop.allowed and not any(t.type == "WITH" for t in stop.tokens)


def _square_bracket(stop: Stop) -> Diagnostic:
    if "NUMBER" in stop.allowed:
        return stop.refuse(
            "E0014", "Flow has no lists", "many values are the rows of one: they come from `read` or `generate`"
        )
    help = "rows are chosen by a condition: `keep(x, where=c)`; a column is `x.name`"
    return stop.refuse("E0014", "Flow has no subscripts", help)


# ---------------------------------------------------------------- E0008: a missing `:`


def _missing_colon(stop: Stop) -> Diagnostic | None:
    if not (stop.ended and "COLON" in stop.allowed and stop.first.type in HEADERS and stop.depth == 0):
        return None
    help = "end the line with `:`"
    if stop.first.type == "DEF":
        help = "write `= EXPRESSION`, or end the line with `:` and return the value from its block"
    return stop.refuse("E0008", f"`:` is missing after the header of `{stop.first.value}`", help)


# ---------------------------------------------------------------- E0017, E0001: the rest


def _misspelt_keyword(stop: Stop) -> Diagnostic | None:
    """`modle policy = ...`: a name where a statement starts, and then no assignment."""
    if stop.at != 1 or stop.first.type != "NAME" or stop.type == "EQUAL" or "EQUAL" not in stop.allowed:
        return None
    close = nearest(stop.first.value, STARTERS)
    if close and stop.type in ("NAME", "LPAR", "NUMBER"):
        return stop.refuse(
            "E0001", f"no statement starts with `{stop.first.value}`", f"did you mean `{close}`?", stop.first.span
        )
    return None


def _bare_expression(stop: Stop) -> Diagnostic | None:
    """A line that only computes: nobody would see its value."""
    name_first = stop.at == 1 and stop.first.type == "NAME" and stop.allowed == {"EQUAL"}
    value_first = stop.at == 0 and stop.type in ("NUMBER", "MINUS", "LPAR", "NOT", "TRUE", "FALSE", "WHERE")
    function_first = stop.at == 1 and stop.first.type == "KEEP" and stop.type == "LPAR"
    if not ((name_first and stop.type not in ("NAME", "NUMBER", "STRING")) or value_first or function_first):
        return None
    help = "write `NAME = ...`, or `metric NAME = ...`"
    if stop.type == "EQ":
        help = f"`==` compares; to give `{stop.first.value}` a value, write `=`"
    span = stop.first.span.to(stop.tokens[-1].span)
    return stop.refuse("E0017", "this line computes a value that has no name", help, span)


def _after_colon(stop: Stop) -> Diagnostic | None:
    if stop.near(-1) != "COLON" or stop.allowed != {"$END"}:
        return None
    help = "put the block on its own lines, indented"
    if stop.first.type == "DEF":
        help = "write `def f(x) = EXPRESSION`, or put the block on its own lines"
    return stop.refuse("E0001", f"nothing may follow the `:` of `{stop.first.value}`", help)


def _unexpected(stop: Stop) -> Diagnostic:
    """What stands here, and what may."""
    found = "this line ends too early" if stop.ended else f"unexpected {_named(stop)}"
    wanted = allowed_in_words(stop.allowed)
    after = f" after `{stop.tokens[stop.at - 1].value}`" if stop.at else ""
    message = f"{found}{after}" if wanted else found
    return Diagnostic("E0001", message, stop.span, f"expected {wanted}" if wanted else "", help=_hint(stop))


def _named(stop: Stop) -> str:
    kind = {"STRING": "string ", "NUMBER": "number ", "DOCSTRING": "docstring "}.get(stop.type, "")
    return f"{kind}`{stop.text if len(stop.text) <= 30 else stop.text[:27] + '...'}`".replace("\n", " ")


def _hint(stop: Stop) -> str | None:
    match stop.type:
        case "DOCSTRING":
            return "triple quotes are for docstrings; a string stands on one line"
        case "PLUS" if "NUMBER" in stop.allowed:
            return "leave the `+` out"
        case "NOT":
            return "put it into parentheses: `(not x)`"
        case "COMMA" if stop.first.type == "IMPORT":
            return "write one `import` per module"
        case "COLON" if stop.first.type in ("FLOW", "DEF") and stop.at == 2:
            header = f"{stop.first.value} {stop.tokens[1].value}():"
            return f"parameters stand in parentheses, even if there are none: `{header}`"
        case "NAME" | "NUMBER" | "STRING" if "PLUS" in stop.allowed:
            return "an operator or a `,` is missing before it"
        case _:
            return None


RULES: tuple[Rule, ...] = (
    _python_constant,
    _ternary,
    _reserved_name,
    _python_word,
    _python_mark,
    _prefixed_string,
    _unknown_operator,
    _assignment_form,
    _after_colon,
    _equal_in_condition,
    _chained,
    _containers,
    _missing_colon,
    _misspelt_keyword,
    _bare_expression,
    _unexpected,
)
