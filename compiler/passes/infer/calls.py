"""The type of a call to a Python operator: what one call sees of each argument, and so the axis of its result."""

from ....dsl.operators import Hint, Operator, Parameter
from ...graph import Axis, Node, Operand, Type
from .context import Context, Refusal

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
        raise Refusal("E0205", message, help=help)
    if allowed and given.dtype not in allowed:
        message = (
            f"`{param.name}` of `{operator.name}` is {param.hint.dtype}; {context.named(operand)} is {given.dtype}"
        )
        raise Refusal("E0205", message)


def _seen(params: dict[str, Parameter], node: Node, kind: str) -> list[Operand]:
    return [a for n, a in node.args.items() if params[n].hint.sees == kind]


def _row_axis(context: Context, node: Node, operator: Operator, params: dict[str, Parameter]) -> Axis | None:
    """The axis on which the function is called once per element."""
    for kind in ("group", "sequence"):
        members = _seen(params, node, kind)
        if members:
            return _parent_axis(context, node, members, kind)
    if operator.sees_batch:
        return None
    return context.join(*node.args.values())


def _parent_axis(context: Context, node: Node, members: list[Operand], kind: str) -> Axis | None:
    inner = _same_axis(context, members, kind)
    if kind == "sequence" and inner.kind != "token":
        raise Refusal(
            "E0205", f'{context.named(members[0])} has no token axis, which `Float[Tensor, "token"]` asks for'
        )
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
    if len(axes) != 1 or axis is None:
        raise Refusal(
            "E0201", f"the {kind} arguments of one call are on different axes: {', '.join(f'`{a}`' for a in axes)}"
        )
    return axis


def _result(context: Context, node: Node, operator: Operator, hint: Hint, row: Axis | None) -> Type:
    if hint.sees == "row":
        return Type(hint.dtype, row)
    params = {p.name: p for p in operator.params}
    members = _seen(params, node, hint.sees)
    if not members:
        raise Refusal("E0602", f"`{operator.name}` returns a {hint.sees}, but no parameter of it is one")
    return Type(hint.dtype, context.join(*members))
