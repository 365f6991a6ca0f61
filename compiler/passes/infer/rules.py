"""One typing rule per operator. A rule returns the type of a node or raises Refusal."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from ....dsl.diagnostics import suggest
from ....dsl.vocabulary import ROLLOUT_FIELDS
from ...facts import data_facts, model_facts
from ...graph import Axis, Node, Operand, Type
from .calls import call_type
from .context import Context, Refusal

NUMERIC = frozenset({"float", "int", "bool", "any"})
INTEGER = frozenset({"int", "any"})
COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
LOGIC = frozenset({"and", "or", "not"})
FLOAT_RESULT = frozenset({"/", "exp", "ln", "sqrt", "sigmoid", "log_sigmoid", "comb", "mean", "std", "var", "quantile"})


# ---------------------------------------------------------------- reads and fields


def _read(context: Context, node: Node) -> Type:
    axis = context.open(Axis(node.name, "prompt"), node)
    try:
        facts = data_facts(node.attrs["path"], context.places)
    except ValueError as error:
        raise Refusal("E0106", f"this data can't be read: {error}", help="mend the row, or leave it out") from None
    if facts is None:
        return Type("rows", axis, open=True)
    return Type("rows", axis, tuple((n, Type(d, axis)) for n, d in facts.columns.items()))


def _field(context: Context, node: Node) -> Type:
    record, name = context.type(node.args["record"]), node.attrs["field"]
    who = context.named(node.args["record"])
    if not record.is_record:
        raise Refusal("E0104", f"{who} is {_a(record.dtype)} and has no field `{name}`")
    found = record.field(name)
    if found:
        return found
    if record.open:
        return Type("any", record.axis)
    if node.attrs.get("is_axis"):  # a definition was passed it, and reads it as what it is
        return Type("none")
    if name in ("prompt", "sample", "token"):
        raise Refusal(
            "E0205", f"`{name}` of {who} is an axis, no value", help="axes stand after `by=`, `over=` and `to=`"
        )
    what = "column" if record.dtype == "rows" else "field"
    raise Refusal("E0104", f"{who} has no {what} `{name}`", help=suggest(name, [n for n, _ in record.fields]))


# ---------------------------------------------------------------- element by element


def _map(context: Context, node: Node) -> Type:
    fn = node.attrs["fn"]
    types = [context.type(a) for a in node.args.values()]
    for operand, type in zip(node.args.values(), types, strict=True):
        if type.is_record:
            help = _record_help(type)
            raise Refusal("E0205", f"{context.named(operand)} is a {type.dtype}, no number", at=operand, help=help)
        if type.dtype not in NUMERIC and not (fn in ("==", "!=", "where") and type.dtype == "text"):
            message = f"`{fn}` can't take {_a(type.dtype)}: {context.named(operand)}"
            raise Refusal("E0205", message, at=operand, help="make it a number with a Python function")
    _check_texts(context, node, fn)
    return Type(_map_dtype(fn, types), context.join(*node.args.values()))


def _check_texts(context: Context, node: Node, fn: str) -> None:
    """Text is compared with text, and chosen between texts; a condition is never one."""
    condition = node.args["0"] if fn == "where" else None
    if condition is not None and context.type(condition).dtype == "text":
        message = f"the condition of `where` is true or false, not text: {context.named(condition)}"
        raise Refusal("E0205", message, at=condition, help='compare it, such as `x == "yes"`')
    if condition is not None and context.type(condition).dtype in ("float", "int"):
        message = f"the condition of `where` is true or false, not a number: {context.named(condition)}"
        raise Refusal("E0205", message, at=condition, help="compare it, such as `x > 0`")
    values = [a for k, a in node.args.items() if fn != "where" or k != "0"]
    texts = [a for a in values if context.type(a).dtype == "text"]
    numbers = [a for a in values if context.type(a).dtype not in ("text", "any")]
    if texts and numbers:
        message = f"`{fn}` mixes text, {context.named(texts[0])}, and a number, {context.named(numbers[0])}"
        raise Refusal("E0205", message, help="quote the number, or make the text a number with a Python function")


def _record_help(type: Type) -> str:
    fields = ", ".join(f"`.{n}`" for n, _ in type.fields)
    return f"take one of its fields: {fields}" if fields else "call a model's method on it"


def _map_dtype(fn: str, types: list[Type]) -> str:
    if fn in COMPARISONS or fn in LOGIC:
        return "bool"
    if fn in FLOAT_RESULT:
        return "float"
    dtypes = [t.dtype for t in (types[1:] if fn == "where" else types)]
    if "text" in dtypes:
        return "text"
    if any(d in ("float", "any") for d in dtypes):
        return "float"
    return "bool" if fn == "where" and set(dtypes) == {"bool"} else "int"


# ---------------------------------------------------------------- up and down the axes


def _reduce(context: Context, node: Node) -> Type:
    fn, x = node.attrs["fn"], node.args["x"]
    type = context.type(x)
    if type.dtype not in NUMERIC and not (fn == "count" and type.dtype in ("text", "messages", "list")):
        help = _record_help(type) if type.is_record else None
        raise Refusal("E0205", f"`{fn}` can't take {_a(type.dtype)}: {context.named(x)}", at=x, help=help)
    axis = context.join(*(node.args[n] for n in ("x", "where") if n in node.args))
    if axis is None:
        help = "use it as it is; where a reduction must see rows, `expand(x, to=rollout.token)` brings it there"
        raise Refusal("E0209", f"{context.named(x)} is a scalar: `{fn}` has nothing to pool", help=help)
    _check_pooling(context, node, axis)
    return Type(_reduced_dtype(fn, type.dtype), _target(context, node, axis))


def _check_pooling(context: Context, node: Node, axis: Axis) -> None:
    """The condition and the fraction of a reduction."""
    where, q = node.args.get("where"), node.args.get("q")
    if where is not None and context.type(where).dtype not in NUMERIC:
        raise Refusal("E0205", f"the condition `where=` is true or false, not {context.named(where)}", at=where)
    if q is not None and (context.type(q).axis is not None or context.type(q).dtype not in NUMERIC):
        raise Refusal("E0205", f"the fraction of `quantile` is a scalar, not {context.named(q)}", at=q)
    if isinstance(q, int | float) and not 0 <= q <= 1:
        raise Refusal("E0113", f"the fraction of `quantile` is between 0 and 1, not {q}", help="0.5 is the median")


def _target(context: Context, node: Node, axis: Axis) -> Axis | None:
    """The axis of a reduction's result."""
    if node.attrs.get("over"):
        over = context.axis(node.attrs["over"], axis, context.named(node.args["x"]), innermost=True)
        if over != axis:
            raise Refusal(
                "E0203",
                f"`over={over.kind}` isn't the innermost axis; `{axis}` is",
                help=f"pool `{axis.kind}` first (`over={axis.kind}`), or write `by=…` with the axis to keep",
            )
        return axis.parent
    return context.axis(node.attrs["by"], axis, context.named(node.args["x"])) if node.attrs.get("by") else None


def _reduced_dtype(fn: str, dtype: str) -> str:
    if fn == "count":
        return "int"
    if fn in FLOAT_RESULT:
        return "float"
    return {"bool": "int", "any": "float"}.get(dtype, dtype)


def _expand(context: Context, node: Node) -> Type:
    x = context.type(node.args["x"])
    to = context.axis(node.attrs["to"], None, "this") if node.attrs["to"].owner else _no_owner(node)
    if x.is_record:
        raise Refusal("E0205", f"{context.named(node.args['x'])} is a {x.dtype}, no value", help=_record_help(x))
    if x.axis is not None and x.axis not in to.chain():
        help = "reduce it: `mean(x, by=…)`" if to in x.axis.chain() else None
        raise Refusal("E0201", f"`{x.axis}` isn't above `{to}`: it can't be expanded to it", help=help)
    return replace(x, axis=to)


def _no_owner(node: Node) -> Axis:
    kind = node.attrs["to"].kind
    raise Refusal("E0204", f"`to={kind}` doesn't say which", help=f"write the full name, such as `rollout.{kind}`")


def _rank(context: Context, node: Node) -> Type:
    type = context.type(node.args["x"])
    if type.axis is None or type.dtype not in NUMERIC:
        raise Refusal("E0205", f"rank takes numbers on an axis, not {context.named(node.args['x'])}")
    if node.attrs.get("by"):
        context.axis(node.attrs["by"], type.axis, context.named(node.args["x"]))
    return Type("int", type.axis)


def _keep(context: Context, node: Node) -> Type:
    record, where = context.type(node.args["record"]), context.type(node.args["where"])
    if record.dtype not in ("rollout", "rows") or record.axis is None:
        message = f"keep takes a rollout or rows, not {context.named(node.args['record'])}"
        help = "keep the rollout, and compute the value of what is left" if record.axis else None
        raise Refusal("E0205", message, at=node.args["record"], help=help)
    if context.join(node.args["record"], node.args["where"]) != record.axis:
        message = f"the condition is on `{where.axis}`, the rows are on `{record.axis}`"
        help = f"reduce it with `by={record.axis.kind}`"
        raise Refusal("E0203", message, at=node.args["where"], help=help)
    if where.dtype not in NUMERIC:
        message = f"the condition of keep is true or false, not {_a(where.dtype)}"
        raise Refusal("E0205", message, at=node.args["where"])
    kept = context.open(Axis(node.name, "sample", record.axis), node)
    return _moved(context, record, kept, node)


def _moved(context: Context, record: Type, rows: Axis, node: Node) -> Type:
    """The same record on a child axis of its rows."""

    def move(type: Type) -> Type:
        if type.axis == record.axis:
            return replace(type, axis=rows)
        return replace(type, axis=context.open(Axis(node.name, "token", rows), node))

    return replace(record, axis=rows, fields=tuple((n, move(t)) for n, t in record.fields))


# ---------------------------------------------------------------- models


def _generate(context: Context, node: Node) -> Type:
    prompts = context.type(node.args["prompts"])
    who = context.named(node.args["prompts"])
    if prompts.dtype == "rows" and not prompts.open and prompts.field("prompt") is None:
        columns = ", ".join(f"`{n}`" for n, _ in prompts.fields)
        raise Refusal("E0104", f"{who} has no column `prompt`", help=f"pass the column to complete, one of {columns}")
    if prompts.dtype not in ("rows", "text", "messages", "any") or prompts.axis is None:
        message = f"generate takes rows, or a column of text or messages, not {who}"
        help = f"continue its text: `{who.strip('`')}.text`" if prompts.dtype == "rollout" else None
        raise Refusal("E0205", message, at=node.args["prompts"], help=help)
    for name in ("max_new_tokens", "temperature"):
        _per_prompt(context, node, name, prompts.axis)
    rows = prompts.axis
    if node.attrs["n"] is not None:
        rows = context.open(Axis(node.name, "sample", prompts.axis), node)
    tokens = context.open(Axis(node.name, "token", rows), node)
    fields = tuple((n, Type(d, rows if a == "sample" else tokens)) for n, (d, a) in ROLLOUT_FIELDS.items())
    return Type("rollout", rows, fields)


def _per_prompt(context: Context, node: Node, name: str, rows: Axis) -> None:
    """An option that may be a value per prompt."""
    option = node.args[name]
    type = context.type(option)
    if option is not None and type.dtype not in (INTEGER if name == "max_new_tokens" else NUMERIC):
        wanted = "a whole number" if name == "max_new_tokens" else "a number"
        raise Refusal("E0205", f"`{name}` is {wanted}, not {_a(type.dtype)}: {context.named(option)}", at=option)
    if context.join(node.args["prompts"], option) != rows:
        message = f"`{name}` is known per prompt, `{rows}`; {context.named(option)} is on `{type.axis}`"
        raise Refusal("E0203", message, at=option, help="give a number, or a column of the prompts")


def _tokenise(context: Context, node: Node) -> Type:
    for name in ("prompt", "response"):
        type = context.type(node.args[name])
        if type.dtype not in ("text", "messages", "any") or type.axis is None:
            message = f"the {name} is a column of text, not {context.named(node.args[name])}"
            help = "take a column of the rows" if type.is_record else None
            raise Refusal("E0205", message, at=node.args[name], help=help)
    rows = context.join(node.args["prompt"], node.args["response"])
    tokens = context.open(Axis(_token_owner(context, node), "token", rows), node)
    return Type("sequences", rows, (("tokens", Type("int", tokens)),))


def _token_owner(context: Context, node: Node) -> str:
    """Who opens the token axis of a tokenised column: the column, for all models with the same tokenizer."""
    column = context.named(node.args["response"]).strip("`")
    prompt = context.named(node.args["prompt"]).strip("`")
    role = context.graph.roles[node.attrs["tokenizer_of"]]
    facts = model_facts(role.path, context.places) if role.path else None
    digest = facts.tokenizer if facts else None
    known = context.tokenised.setdefault((prompt, column, node.attrs["chat"]), {})
    for other, owner in known.items():
        if other == digest or other is None or digest is None:
            return owner
    taken = {o for owners in context.tokenised.values() for o in owners.values()}
    known[digest] = column if column not in taken else f"{column}({role.name})"
    return known[digest]


def _per_token(context: Context, node: Node) -> Type:
    sequences = _sequences(context, node)
    tokens = sequences.field("tokens")
    return Type("float", tokens.axis if tokens else None)


def _score(context: Context, node: Node) -> Type:
    return Type("float", _sequences(context, node).axis)


def _sequences(context: Context, node: Node) -> Type:
    type = context.type(node.args["sequences"])
    if type.dtype not in ("rollout", "sequences"):
        who = f"{node.attrs['model']}.{node.op}"
        help = f"write `{who}(rollout)` or `{who}(d.prompt, d.response)`"
        raise Refusal(
            "E0205",
            f"`{who}` takes a rollout, or a prompt and a response, not {context.named(node.args['sequences'])}",
            help=help,
        )
    return type


# ---------------------------------------------------------------- statements


def _scalar(context: Context, node: Node, operand: Operand, what: str, code: str) -> Type:
    type = context.type(operand)
    if type.axis is not None or type.dtype not in NUMERIC:
        help = "pool it: `mean(x)`, or `mean(mean(x, over=token))`"
        if type.dtype not in NUMERIC:
            help = _record_help(type) if type.is_record else "make it a number with a Python function"
        raise Refusal(code, f"{what} must be one number, not {_shown(type)}", at=operand, help=help)
    return type


def _metric(context: Context, node: Node) -> Type:
    return _scalar(context, node, node.args["value"], f"metric `{node.attrs['metric']}`", "E0210")


def _minimize(context: Context, node: Node) -> Type:
    return _scalar(context, node, node.args["value"], "a loss", "E0303")


def _next_state(context: Context, node: Node) -> Type:
    return _scalar(context, node, node.args["value"], f"state `{node.attrs['state']}`", "E0210")


def _when(context: Context, node: Node) -> Type:
    return _scalar(context, node, node.args["condition"], "the condition of `when`", "E0210")


def _keep_rows(context: Context, node: Node) -> Type:
    rows, where = context.type(node.args["rows"]), context.type(node.args["where"])
    if rows.dtype != "rows":
        message = f"`keep … where` takes the rows of a `read`, not {context.named(node.args['rows'])}"
        raise Refusal("E0205", message, help="a rollout's rows go with their prompts; say when a prompt is kept")
    if where.axis != rows.axis or where.dtype not in NUMERIC:
        shown = f"on `{where.axis}`" if where.axis else "a scalar"
        message = f"the condition is {shown}, the rows are on `{rows.axis}`"
        if where.axis == rows.axis:
            message = f"the condition is {_a(where.dtype)}, neither true nor false"
        help = "reduce it with `by=prompt`" if where.axis else "compare a value per prompt"
        raise Refusal("E0203", message, at=node.args["where"], help=help)
    return rows


def _collected(context: Context, node: Node) -> Type:
    """The type inside of the block; whether the value has kept rows at all is checked where it is used."""
    return context.type(node.args["value"])


def _shown(type: Type) -> str:
    return f"{_a(type.dtype)} on `{type.axis}`" if type.axis else _a(type.dtype)


def _a(dtype: str) -> str:
    names = {"text": "text", "messages": "chat messages", "list": "a list", "float": "a number", "rows": "rows"}
    return names.get(dtype, f"{'an' if dtype[0] in 'aeio' else 'a'} {dtype}")


def _constant(dtype: str) -> Callable[[Context, Node], Type]:
    return lambda context, node: Type(dtype)


def _state(context: Context, node: Node) -> Type:
    initial = context.graph.states[node.attrs["state"]].initial
    return Type("bool" if isinstance(initial, bool) else "float")


RULES: Mapping[str, Callable[[Context, Node], Type]] = {
    "read": _read,
    "field": _field,
    "map": _map,
    "reduce": _reduce,
    "expand": _expand,
    "rank": _rank,
    "keep": _keep,
    "generate": _generate,
    "tokenise": _tokenise,
    "logprobs": _per_token,
    "entropy": _per_token,
    "values": _per_token,
    "score": _score,
    "call": call_type,
    "state": _state,
    "step": _constant("int"),
    "metric": _metric,
    "minimize": _minimize,
    "next_state": _next_state,
    "next_model": _constant("none"),
    "keep_rows": _keep_rows,
    "collected": _collected,
    "when": _when,
    "every": _constant("none"),
    "update": _constant("none"),
    "collect": _constant("none"),
}
