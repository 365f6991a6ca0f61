"""Reading the named options of a construct against its table in the vocabulary."""

from collections.abc import Mapping, Sequence

from ....dsl import ast
from ....dsl.diagnostics import nearest, suggest
from ....dsl.source import Span
from ....dsl.vocabulary import CLUSTER_OPTIONS, Option, Options
from ...graph import Constant, Operand, Ref, Size
from .context import Context, Env
from .expressions import evaluate

Given = Mapping[str, Operand]
"""Options by name. One that was refused is None, so that nothing is said twice of it."""

FIGURES = tuple(name for name, option in CLUSTER_OPTIONS.items() if option.kind == "float")
"""What a cluster may say of its devices. Of nothing, nothing could be planned."""

RANGES: Mapping[str, tuple[float | None, float | None]] = {
    "n": (1, None),
    "max_new_tokens": (1, None),
    "min_new_tokens": (0, None),
    "temperature": (0, None),
    "top_k": (0, None),
    "top_p": (0, 1),
    "max_staleness": (0, None),
    "dropout": (0, 1),
    "epochs": (1, None),
    "minibatches": (1, None),
    "rounds": (1, None),
    "lr": (0, None),
    "beta1": (0, 1),
    "beta2": (0, 1),
    "eps": (0, None),
    "weight_decay": (0, None),
    "clip_norm": (0, None),
    "warmup": (0, None),
    "decay": (1, None),
    "floor": (0, 1),
    **dict.fromkeys(("nodes", "devices", "tp", "pp", "dp", "fsdp"), (1, None)),
    **dict.fromkeys(FIGURES, (0, None)),
}
"""The least and the largest value of each option that has one."""

EXCLUDED = frozenset({("top_p", 0), ("dropout", 1), *((name, 0) for name in FIGURES)})
"""Ends of these ranges that aren't allowed themselves: nothing would be left to sample, or to learn from."""

WHOLE = frozenset({"max_new_tokens"})
"""Options that take any expression, but as a constant a whole number."""


def read_options(context: Context, env: Env, args: Sequence[ast.Arg], table: Options, what: str) -> Given:
    """The options given, checked; those not given are absent. `what` names the construct in messages."""
    found: dict[str, Operand] = {}
    for arg in args:
        if arg.name is None:
            context.refuse("E0109", f"{what} takes no further positional argument", env, arg.span, help=_all(table))
            found.setdefault(next(iter(table)), None)
        elif arg.name not in table:
            message = f"{what} has no option `{arg.name}`"
            context.refuse("E0105", message, env, arg.span, help=suggest(arg.name, table))
            found.setdefault(nearest(arg.name, table) or arg.name, None)
        elif found.get(arg.name) is not None:
            context.refuse("E0109", f"option `{arg.name}` is given twice", env, arg.span)
        else:
            found[arg.name] = _value(context, env, arg, table[arg.name], what)
    return found


def refused(given: Given, *names: str) -> bool:
    """Whether one of these options was given, and refused."""
    return any(n in given and given[n] is None for n in names)


def with_defaults(found: Given, table: Options) -> dict[str, Operand]:
    """Every option of the table, with its default where it wasn't given (or was refused)."""
    return {name: _or_default(found.get(name), option) for name, option in table.items()}


def _or_default(value: Operand, option: Option) -> Operand:
    default: Operand = option.default  # type: ignore[assignment]
    return default if value is None else value


# ---------------------------------------------------------------- one option


def _value(context: Context, env: Env, arg: ast.Arg, option: Option, what: str) -> Operand:
    if option.choices and isinstance(arg.value, ast.Name) and arg.value.id in option.choices:
        return arg.value.id
    if option.kind == "word" and isinstance(arg.value, ast.Name):
        _refuse_choice(context, env, arg, arg.value.id, option)
        return None
    value = evaluate(context, env.anonymous(), arg.value)
    if context.is_error(value):
        return None
    if isinstance(value, Ref):
        if option.kind == "value":
            return value
        message = f"option `{arg.name}` of {what} must be known at compile time"
        context.refuse("E0113", message, env, arg.value.span, help="use a number or a parameter of the flow")
        return None
    return _constant(context, env, arg, value, option)


def _constant(context: Context, env: Env, arg: ast.Arg, value: Constant, option: Option) -> Operand:
    if option.kind == "size":
        return sized(context, env, value, option.units, arg.name or "", arg.value.span)
    if option.choices and value not in option.choices:
        _refuse_choice(context, env, arg, value, option)
        return None
    if isinstance(value, Size):
        message = f"option `{arg.name}` takes a plain number, not a size in {value.unit}"
        context.refuse("E0206", message, env, arg.value.span, help=f"write `{arg.name}={value.value}`")
        return None
    kind = _kind(arg.name or "", option)
    if not _fits(value, kind):
        wanted = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}[kind]
        context.refuse("E0113", f"option `{arg.name}` takes {wanted}, not {_shown(value)}", env, arg.value.span)
        return None
    return _within(context, env, arg, value)


def _kind(name: str, option: Option) -> str:
    if option.kind != "value":
        return option.kind
    return "int" if name in WHOLE else "float"


def _fits(value: object, kind: str) -> bool:
    match kind:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "bool":
            return isinstance(value, bool)
    return isinstance(value, str)


def _within(context: Context, env: Env, arg: ast.Arg, value: Constant) -> Operand:
    """The value, if it is in the option's range."""
    least, most = RANGES.get(arg.name or "", (None, None))
    excluded = (arg.name, value) in EXCLUDED
    inside = not isinstance(value, int | float) or (
        (least is None or value >= least) and (most is None or value <= most)
    )
    if inside and not excluded:
        return value
    message = f"option `{arg.name}` {_allowed(arg.name or '', least, most)}, not {value}"
    context.refuse("E0113", message, env, arg.value.span)
    return None


def _allowed(name: str, least: float | None, most: float | None) -> str:
    """A range in words."""
    ends = [end for option, end in sorted(EXCLUDED) if option == name]
    if most is None:
        return f"is above {least}" if least in ends else f"is at least {least}"
    return f"is between {least} and {most}" + "".join(f", but not {end}" for end in ends)


# ---------------------------------------------------------------- sizes and choices


def sized(context: Context, env: Env, value: Constant, units: tuple[str, ...], name: str, span: Span) -> Size | None:
    """A size in one of `units`, or a report of what is wrong with its unit."""
    if isinstance(value, Size) and value.unit in units and value.value > 0:
        return value
    choices = " or ".join(f"`{value.value if isinstance(value, Size) else value} {u}`" for u in units)
    if isinstance(value, Size) and value.unit in units:
        context.refuse("E0113", f"`{name}` is at least 1, not {value.value}", env, span)
    elif isinstance(value, Size):
        message = f"`{name}` is counted in {' or '.join(units)}, not in {value.unit}"
        context.refuse("E0206", message, env, span, help=f"write {choices}")
    elif isinstance(value, int) and not isinstance(value, bool):
        context.refuse("E0206", f"`{name}` needs a unit: {value} of what?", env, span, help=f"write {choices}")
    else:
        context.refuse("E0206", f"`{name}` takes a size such as `16 {units[0]}`, not {_shown(value)}", env, span)
    return None


def _refuse_choice(context: Context, env: Env, arg: ast.Arg, value: object, option: Option) -> None:
    message = f"option `{arg.name}` can't be {_shown(value)}"
    context.refuse("E0113", message, env, arg.value.span, help=suggest(str(value), option.choices))


def _shown(value: object) -> str:
    return {True: "`true`", False: "`false`"}.get(value, f"`{value}`") if isinstance(value, bool) else f"`{value}`"


def _all(table: Options) -> str:
    return f"options are {', '.join(f'`{n}`' for n in table)}"
