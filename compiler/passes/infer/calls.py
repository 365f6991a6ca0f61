"""The type of a call to a Python operator: what one call sees of each argument, and so the axis of its result."""

from ....dsl.operators import PACKED, Hint, Operator, Parameter
from ...graph import Axis, Node, Operand, Type
from .context import Context, Refusal

WHOLE = frozenset({"batch", *PACKED.values()})
"""What makes one call see all rows in scope."""

COMPATIBLE = {
    "float": {"float", "int", "bool", "any"},
    "int": {"int", "bool", "any"},
    "bool": {"bool", "any"},
    "text": {"text", "any"},
    "messages": {"messages", "list", "any"},
    "list": {"list", "messages", "any"},
}


def call_type(context: Context, node: Node) -> Type:
    operator: Operator = node.attrs["operator"]
    params = {p.name: p for p in operator.params}
    for name, operand in node.args.items():
        _check_dtype(context, operator, params[name], operand)
    row = _row_axis(context, node, operator, params)
    if isinstance(operator.result, Hint):
        return _result(context, node, operator, operator.result, row)
    fields = tuple((n, _result(context, node, operator, h, row)) for n, h in operator.result)
    return Type("record", row, fields)


def _check_dtype(context: Context, operator: Operator, param: Parameter, operand: Operand) -> None:
    given = context.type(operand)
    allowed = COMPATIBLE.get(param.hint.dtype)
    if given.is_record:
        help = (
            f"pass one of its fields, such as {context.named(operand).rstrip('`')}.{given.fields[0][0]}`"
            if given.fields
            else None
        )
        message = f"`{operator.name}` can't take {context.named(operand)}, a {given.dtype}, as `{param.name}`"
        raise Refusal("E0205", message, at=operand, help=help)
    if allowed and given.dtype not in allowed:
        message = (
            f"`{param.name}` of `{operator.name}` is {param.hint.dtype}; {context.named(operand)} is {given.dtype}"
        )
        help = f"pass {_wanted(param.hint.dtype)}, or change the hint in `{operator.module}`"
        raise Refusal("E0205", message, at=operand, help=help)


def _wanted(dtype: str) -> str:
    return {"text": "text, such as `rollout.text` or a column", "messages": "a column of chat messages"}.get(
        dtype, f"{'an' if dtype[0] in 'aeio' else 'a'} {dtype}"
    )


def _seen(params: dict[str, Parameter], node: Node, kind: str) -> list[Operand]:
    return [a for n, a in node.args.items() if params[n].hint.sees == kind]


def _row_axis(context: Context, node: Node, operator: Operator, params: dict[str, Parameter]) -> Axis | None:
    """The axis on which the function is called once per element."""
    for kind in ("group", "sequence"):
        members = _seen(params, node, kind)
        if members:
            return _parent_axis(context, node, members, kind)
    if any(p.hint.sees in WHOLE for p in params.values()):
        _check_whole(context, node, params)
        return None
    return context.join(*node.args.values())


def _check_whole(context: Context, node: Node, params: dict[str, Parameter]) -> None:
    """One call sees all rows: beside them there are only scalars, and packed values are of sequences."""
    packed = [a for kind in PACKED.values() for a in _seen(params, node, kind)]
    if packed:
        inner = _same_axis(context, packed, "packed")
        if inner.parent is None:
            message = f"`{inner}` has nothing above it, so its rows are no sequences"
            raise Refusal("E0205", message, at=packed[0], help="packed values are on `token`, or on `sample`")
    for operand in _seen(params, node, "row"):
        axis = context.type(operand).axis
        if axis is not None:
            message = f"one call sees all rows, but {context.named(operand)} has a value for each row of `{axis}`"
            help = "pass a scalar, or give that parameter the hint of the others"
            raise Refusal("E0201", message, at=operand, help=help)


def _parent_axis(context: Context, node: Node, members: list[Operand], kind: str) -> Axis | None:
    inner = _same_axis(context, members, kind)
    if kind == "sequence" and inner.kind != "token":
        message = f'{context.named(members[0])} has no token axis, which `Float[Tensor, "token"]` asks for'
        raise Refusal("E0205", message, at=members[0], help=f"it is on `{inner}`; pass a value per token")
    if inner.parent is None:
        message = f"`{inner}` has nothing above it, so its rows are no group"
        help = "`Batch[…]` sees all rows in scope; a group is what `n=8` samples of one prompt are"
        raise Refusal("E0205", message, at=members[0], help=help)
    others = [a for a in node.args.values() if a not in members]
    outer = context.join(*others) if others else None
    if outer is not None and (inner.parent is None or outer not in inner.parent.chain()):
        what = "group" if kind == "group" else "sequence"
        message = f"one call sees a {what} under `{inner.parent}`, but another argument is on `{outer}`"
        raise Refusal("E0201", message, help=f"give that parameter the hint of a {what} too")
    return inner.parent


def _same_axis(context: Context, members: list[Operand], kind: str) -> Axis:
    axes = {context.type(a).axis for a in members}
    context.join(*members)
    axis = next(iter(axes))
    if axis is None and len(axes) == 1:
        raise Refusal("E0205", f"{context.named(members[0])} is a scalar, no {kind}", at=members[0])
    if len(axes) != 1 or axis is None:
        shown = ", ".join(sorted(f"`{a}`" if a else "a scalar" for a in axes))
        message = f"the {kind} arguments of one call are on different axes: {shown}"
        raise Refusal("E0201", message, help="`expand(x, to=rollout.token)` brings a value to an axis below it")
    return axis


def _result(context: Context, node: Node, operator: Operator, hint: Hint, row: Axis | None) -> Type:
    if hint.sees == "row":
        return Type(hint.dtype, row)
    params = {p.name: p for p in operator.params}
    members = _seen(params, node, hint.sees)
    if not members:
        message = f"`{operator.name}` returns a {hint.sees}, but no argument of this call is one"
        raise Refusal("E0602", message, help="return one value per call, or take a parameter with the same hint")
    return Type(hint.dtype, context.join(*members))
