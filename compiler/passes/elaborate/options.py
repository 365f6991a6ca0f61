"""Reading the named options of a construct against its table in the vocabulary."""

from collections.abc import Mapping, Sequence

from ....dsl import ast
from ....dsl.diagnostics import nearest, suggest
from ....dsl.source import Span
from ....dsl.vocabulary import Option, Options
from ...graph import Constant, Operand, Ref, Size
from .context import Context, Env
from .expressions import evaluate


def read_options(context: Context, env: Env, args: Sequence[ast.Arg], table: Options, what: str) -> dict[str, Operand]:
    """The options given, checked; those not given are absent. `what` names the construct in messages."""
    found: dict[str, Operand] = {}
    for arg in args:
        if arg.name is None:
            context.refuse("E0109", f"{what} takes no further positional argument", env, arg.span, help=_all(table))
        elif arg.name not in table:
            message = f"{what} has no option `{arg.name}`"
            context.refuse("E0105", message, env, arg.span, help=suggest(arg.name, table))
        elif arg.name in found:
            context.refuse("E0109", f"option `{arg.name}` is given twice", env, arg.span)
        else:
            found[arg.name] = _value(context, env, arg, table[arg.name], what)
    return found


def with_defaults(found: Mapping[str, Operand], table: Options) -> dict[str, Operand]:
    """Every option of the table, with its default where it wasn't given."""
    return {name: found.get(name, option.default) for name, option in table.items()}  # type: ignore[misc]


def _value(context: Context, env: Env, arg: ast.Arg, option: Option, what: str) -> Operand:
    if option.choices and isinstance(arg.value, ast.Name) and arg.value.id in option.choices:
        return arg.value.id
    if option.kind == "word" and isinstance(arg.value, ast.Name):
        return _refuse_choice(context, env, arg, arg.value.id, option)
    value = evaluate(context, env.anonymous(), arg.value)
    if option.kind == "value":
        return _plain(value)
    if isinstance(value, Ref):
        node = context.node(env.scope, value)
        if node is None or node.op != "error":
            message = f"option `{arg.name}` of {what} must be known at compile time"
            context.refuse("E0113", message, env, arg.value.span, help="use a number or a parameter of the flow")
        return option.default  # type: ignore[return-value]
    return _constant(context, env, arg, value, option)


def _plain(value: Operand) -> Operand:
    return value.value if isinstance(value, Size) else value


def _constant(context: Context, env: Env, arg: ast.Arg, value: Constant, option: Option) -> Operand:
    if option.kind == "size":
        return sized(context, env, value, option.units, arg.name or "", arg.value.span) or option.default  # type: ignore[return-value]
    if option.choices and value not in option.choices:
        return _refuse_choice(context, env, arg, value, option)
    plain = _plain(value)
    if _fits(plain, option.kind):
        return plain
    wanted = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}[option.kind]
    shown = _shown(plain)
    context.refuse("E0113", f"option `{arg.name}` takes {wanted}, not {shown}", env, arg.value.span)
    return option.default  # type: ignore[return-value]


def _fits(value: object, kind: str) -> bool:
    match kind:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "bool":
            return isinstance(value, bool)
    return isinstance(value, str)


def sized(context: Context, env: Env, value: Constant, units: tuple[str, ...], name: str, span: Span) -> Size | None:
    """A size in one of `units`, or a report of what is wrong with its unit."""
    if isinstance(value, Size) and value.unit in units and value.value > 0:
        return value
    choices = " or ".join(f"`{value.value if isinstance(value, Size) else value} {u}`" for u in units)
    if isinstance(value, Size) and value.unit in units:
        context.refuse("E0113", f"`{name}` must be at least 1, not {value.value}", env, span)
    elif isinstance(value, Size):
        close = nearest(value.unit, units)
        message = f"`{name}` is counted in {' or '.join(units)}, not in {value.unit}"
        context.refuse(
            "E0206", message, env, span, help=f"did you mean `{value.value} {close}`?" if close else f"write {choices}"
        )
    elif isinstance(value, int) and not isinstance(value, bool):
        context.refuse("E0206", f"`{name}={value}` needs a unit", env, span, help=f"write {choices}")
    else:
        context.refuse("E0206", f"`{name}` takes a size such as `16 {units[0]}`, not {_shown(value)}", env, span)
    return None


def _refuse_choice(context: Context, env: Env, arg: ast.Arg, value: object, option: Option) -> Operand:
    message = f"option `{arg.name}` can't be {_shown(value)}"
    context.refuse("E0113", message, env, arg.value.span, help=suggest(str(value), option.choices))
    return option.default  # type: ignore[return-value]


def _shown(value: object) -> str:
    return {True: "`true`", False: "`false`"}.get(value, f"`{value}`") if isinstance(value, bool) else f"`{value}`"


def _all(table: Options) -> str:
    return f"options are {', '.join(f'`{n}`' for n in table)}"
