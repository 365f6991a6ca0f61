"""What the grammar would have taken, in a person's words."""

from collections.abc import Set

COMPARATORS = ("EQ", "NE", "LESSTHAN", "LE", "MORETHAN", "GE")

_SPELT = {"LPAR": "`(`", "RPAR": "`)`", "LSQB": "`[`", "RSQB": "`]`", "COMMA": "`,`", "COLON": "`:`", "DOT": "`.`"} | {
    "EQUAL": "`=`",
    "$END": "the end of the line",
    "STRING": "a string",
    "NUMBER": "a number",
}
_INFIX = {"PLUS", "MINUS", "STAR", "SLASH", "FLOORDIV", "PERCENT", "POW", "AND", "OR", *COMPARATORS}
_EXPRESSION = {"NAME", "NUMBER", "STRING", "TRUE", "FALSE", "NOT", "MINUS", "WHERE", "KEEP", "LPAR"}


def allowed_in_words(allowed: Set[str]) -> str:
    """The terminals that may come next, grouped as a person thinks of them."""
    rest = set(allowed)
    words = []
    if {"FLOW", "MODEL"} <= rest:
        return "a statement"
    if "NUMBER" in rest and "NAME" in rest:
        words.append("an expression")
        rest -= _EXPRESSION
    elif "NAME" in rest:
        words.append("a unit" if "PLUS" in rest else "a name")
        rest.discard("NAME")
    if rest & _INFIX:
        words.append("an operator")
        rest -= _INFIX | {"DOT", "LPAR"}
    words += sorted(_SPELT.get(t, f"`{t.lower()}`") for t in rest)
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""
