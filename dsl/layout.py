"""Expressions as text: minimal parentheses, and readable line breaks where a line would be too long."""

import math
from collections.abc import Sequence

from .ast import Arg, Attr, Binary, Bool, Call, Expr, Index, Name, Num, Str, Unary
from .literals import quote_string, spell_number

WIDTH = 100
INDENT = 4

_LEVELS = (("or",), ("and",), ("not",), ("==", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/", "//", "%"))
_BINDING = {op: level for level, ops in enumerate(_LEVELS, start=1) for op in ops} | {"**": 8}
_NOT, _COMPARISON, _NEGATIVE, _POWER, _POSTFIX, _ATOM = 3, 4, 7, 8, 9, 10


def format_expr(expr: Expr) -> str:
    """The expression on one line, with no more parentheses than its meaning needs."""
    match expr:
        case Num():
            number = spell_number(expr.value, expr.raw)
            return f"{number} {expr.unit}" if expr.unit else number
        case Str():
            return quote_string(expr.value)
        case Bool():
            return "true" if expr.value else "false"
        case Name():
            return expr.id
        case Attr():
            return f"{_base(expr.base)}.{expr.name}"
        case Index():
            stop = "" if expr.stop is None else f":{expr.stop}"
            return f"{_base(expr.base)}[{expr.index}{stop}]"
        case Call():
            return f"{_base(expr.func)}({', '.join(format_arg(a) for a in expr.args)})"
        case Unary():
            return _unary_mark(expr) + _inside(expr.operand, _binding(expr))
        case Binary():
            left, right = _operand_bindings(expr.op)
            return f"{_inside(expr.left, left)} {expr.op} {_inside(expr.right, right)}"


def format_arg(arg: Arg) -> str:
    """`x` or `name=x`."""
    value = format_expr(arg.value)
    return f"{arg.name}={value}" if arg.name else value


def _inside(expr: Expr, least: int) -> str:
    """The expression where only what binds at least this tightly stands without parentheses."""
    text = format_expr(expr)
    return text if _binding(expr) >= least else f"({text})"


def _base(expr: Expr) -> str:
    """Before a `.`, `(` or `[`; a number there would swallow the dot."""
    return f"({format_expr(expr)})" if isinstance(expr, Num) else _inside(expr, _POSTFIX)


def _binding(expr: Expr) -> int:
    match expr:
        case Binary():
            return _BINDING[expr.op]
        case Unary():
            return _NOT if expr.op == "not" else _NEGATIVE
        case Num() if math.copysign(1, expr.value) < 0:
            return _NEGATIVE
        case _:
            return _ATOM


def _unary_mark(expr: Unary) -> str:
    return "not " if expr.op == "not" else expr.op


def _operand_bindings(op: str) -> tuple[int, int]:
    """How tightly the operands must bind: powers bind to the right, comparisons not at all, the others to the left."""
    binding = _BINDING[op]
    if binding == _POWER:
        return _POSTFIX, _NEGATIVE
    return (binding + 1 if binding == _COMPARISON else binding), binding + 1


# ---------------------------------------------------------------- line breaks


def lay_out(prefix: str, expr: Expr, suffix: str, indent: int, least: int = 0) -> list[str]:
    """The lines of `prefix expr suffix`. `prefix` starts its line and holds its indentation, `indent` columns."""
    flat = prefix + _inside(expr, least) + suffix
    if len(flat) <= WIDTH:
        return [flat]
    match expr:
        case Binary():
            middle = _chain(expr, indent + INDENT)
            return [f"{prefix}(", *middle, f"{' ' * indent}){suffix}"]
        case Unary() if _binding(expr) >= least:
            return lay_out(prefix + _unary_mark(expr), expr.operand, suffix, indent, _binding(expr))
        case Call() if expr.args:
            return explode(f"{prefix}{_base(expr.func)}(", expr.args, f"){suffix}", indent)
        case _:
            return [flat]


def explode(head: str, items: Sequence[Arg], tail: str, indent: int) -> list[str]:
    """Arguments on lines of their own: all on one, or each on its own with a `,` after it."""
    inner = indent + INDENT
    together = " " * inner + ", ".join(format_arg(item) for item in items)
    if len(together) <= WIDTH:
        middle = [together]
    elif len(items) == 1:
        middle = _lay_out_arg(items[0], "", inner)
    else:
        middle = [line for item in items for line in _lay_out_arg(item, ",", inner)]
    return [head, *middle, " " * indent + tail]


def explode_words(head: str, words: Sequence[str], tail: str, indent: int) -> list[str]:
    """As `explode`, for parameters."""
    pad = " " * (indent + INDENT)
    together = pad + ", ".join(words)
    middle = [together] if len(together) <= WIDTH else [f"{pad}{word}," for word in words]
    return [head, *middle, " " * indent + tail]


def fill(head: str, words: Sequence[str], tail: str) -> list[str]:
    """As many words on each line as fit: for imported names, which are short and many."""
    lines = [" " * INDENT + words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 3 <= WIDTH:  # the blank before it, and a comma on both sides
            lines[-1] += f", {word}"
        else:
            lines[-1] += ","
            lines.append(" " * INDENT + word)
    return [head, *lines, tail]


def _lay_out_arg(arg: Arg, suffix: str, indent: int) -> list[str]:
    pad = " " * indent
    if arg.name:
        return lay_out(f"{pad}{arg.name}=", arg.value, suffix, indent)
    if isinstance(arg.value, Binary) and len(pad + format_expr(arg.value) + suffix) > WIDTH:
        *lines, last = _chain(arg.value, indent)  # the brackets around it are there already
        return [*lines, last + suffix]
    return lay_out(pad, arg.value, suffix, indent)


def _chain(expr: Binary, indent: int) -> list[str]:
    """Operands of one precedence below each other, each after its operator."""
    first, rest = _links(expr)
    left, right = _operand_bindings(expr.op)
    pad = " " * indent
    lines = lay_out(pad, first, "", indent, left)
    for op, operand in rest:
        lines += lay_out(f"{pad}{op} ", operand, "", indent, right)
    return lines


def _links(expr: Binary) -> tuple[Expr, list[tuple[str, Expr]]]:
    """`a + b - c` as `a` and `[(+, b), (-, c)]`."""
    left, rest = expr.left, [(expr.op, expr.right)]
    while (
        isinstance(left, Binary)
        and _BINDING[left.op] == _BINDING[expr.op] < _POWER
        and _BINDING[left.op] != _COMPARISON
    ):
        rest.insert(0, (left.op, left.right))
        left = left.left
    return left, rest
