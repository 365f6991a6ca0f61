"""A plan as text: what a person reads, and golden tests hold.

What is as usual isn't shown, such as `top_p=1.0`; the plan itself has everything.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .schema import Holding, Instruction, Model, Operand, Plan, Value

INFIX = frozenset({"+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "and", "or"})
PURE = frozenset(
    {"map", "field", "reduce", "state", "step", "tokenise", "expand", "rank", "call", "logprobs", "values"}
) | {"all_reduce", "own", "spread"}
"""What may be shown where it is read."""
HIDDEN = frozenset(
    {"model", "version", "fn", "field", "to", "rows", "tokens", "operator", "metric", "state", "region", "path"}
) | {"snapshot", "holding", "axis", "source", "optimizer", "loss", "micro"}
"""Attributes that the operator's own spelling already shows, or only that of some operators."""
USUAL: Mapping[str, Mapping[str, Any]] = {
    "read": {"shuffle": True, "split": "train"},
    "generate": {"min_new_tokens": 0, "top_k": 0, "top_p": 1.0, "max_staleness": 0},
    "update": {"epochs": 1, "dp": 1, "fsdp": 1},
    "adamw": {
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "clip_norm": 1.0,
        "schedule": "constant",
        "warmup": 0,
        "floor": 0.0,
    },
}
"""Values of options that are not worth a word, by operator or optimizer: the language's defaults."""
DEALS = {"sharded evenly": "evenly", "sharded by length": "by length", "partial": "partial", "replicated": "whole"}
"""How rows lie on a mesh, by the layout."""

# ---------------------------------------------------------------- the whole


def plan_text(plan: Plan) -> str:
    """The whole plan, one line per instruction."""
    lines = [f"plan {plan.flow} for {plan.target}   # {plan.hash[:12]}"]
    lines += [f"  param {name} = {value!r}" for name, value in plan.params.items()]
    if plan.target == "multi":
        lines.append(f"  {_counted(plan.ranks, 'rank')}: {', '.join(m.name for m in plan.meshes)}")
    lines += [f"  model {_model(m)}" for m in plan.models]
    lines += [f"  weights {_holding(h)}" for h in plan.holdings]
    lines += [f"  state {name} = {value!r}" for name, value in plan.states.items()]
    lines += [f"  axis {a.name}" + (f" under {a.parent}" if a.parent else "") for a in plan.axes]
    lines += [f"  operator {o.key} from {o.file} ({o.sha256[:12]})" for o in plan.operators]
    return "\n".join([*lines, *_programs(plan)]) + "\n"


def rank_text(plan: Plan, rank: int) -> str:
    """A projected plan: what one rank does, and the groups that it communicates in."""
    lines = [f"rank {rank} of {plan.ranks} of plan {plan.flow}   # {plan.hash[:12]}"]
    lines += [f"  in {m.name}, number {rank - m.first} of {m.devices}" for m in plan.meshes]
    lines += [f"  in {g.name}" for g in plan.groups if len(g.meshes) > 1]
    lines += [f"  weights {_holding(h)}" for h in plan.holdings]
    return "\n".join([*lines, *_programs(plan)]) + "\n"


def _programs(plan: Plan) -> Iterator[str]:
    for ahead in plan.ahead:
        yield from ("", f"{_counted(ahead.staleness, 'step')} ahead, queue {', '.join(ahead.keeps)}:")
        yield from program_text(ahead.program)
        if ahead.exchange:
            yield from ("", "after the step, what was made ahead goes where it will be read:")
            yield from program_text(ahead.exchange)
    yield from ("", "step:", *program_text(plan.program))


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'s' if number != 1 else ''}"


def _model(model: Model) -> str:
    start = f"start of {model.of}" if model.of else f"{model.kind}({model.path!r})"
    marks = [w for w, on in (("trained", model.trained), ("replaced", model.replaced), ("frozen", model.frozen)) if on]
    return f"{model.name} = {start}   # {', '.join(marks)}"


def _holding(holding: Holding) -> str:
    degrees = ", ".join(f"{k}={v}" for k, v in (("dp", holding.dp), ("fsdp", holding.fsdp)) if v > 1) or "one copy"
    return f"{holding.name} on {holding.mesh}: {degrees}"


# ---------------------------------------------------------------- a block

Inlined = Mapping[str, Instruction]
"""Instructions that are shown where their result is read, by its name."""


def program_text(program: Iterable[Instruction], indent: int = 1) -> list[str]:
    """The lines of a block. Values that are read once are shown where they are read."""
    block = list(program)
    inlined = _inlinable(block)
    lines: list[str] = []
    for instruction in block:
        if instruction.out not in inlined:
            lines.append("  " * indent + _line(instruction, inlined))
            lines += program_text(instruction.body, indent + 1)
    return lines


def _inlinable(block: list[Instruction]) -> dict[str, Instruction]:
    """Unnamed pure values of this block that only one instruction of this block itself reads."""
    uses: dict[str, int] = {}
    for instruction in block:
        for inner in instruction.walk():
            for name in inner.reads:
                uses[name] = uses.get(name, 0) + (1 if inner in block else 2)
    return {i.out: i for i in block if i.out.startswith("%") and i.op in PURE and uses.get(i.out) == 1}


def _line(i: Instruction, inlined: Inlined) -> str:
    def show(name: str) -> str:
        return _operand(i.args[name], inlined)

    match i.op:
        case "update":
            return f"update {i.attrs['model']} with {_optimizer(i)}, {_loss(i)}:{_at(i)}"
        case "when":
            return f"when {show('condition')}:"
        case "every":
            return f"every {i.attrs['period']} steps:"
        case "collect":
            return f"{i.out} = collect({', '.join(_options(i))}):"
        case "metric" | "record":
            return f"{i.op} {i.attrs['metric']} = {show('value')}"
        case "minimize":
            return f"minimize {show('value')}"
        case "next_state":
            return f"next {i.attrs['state']} = {show('value')}"
        case "next_model":
            decay = f", decay={i.attrs['decay']}" if "decay" in i.attrs else ""
            return f"next {i.attrs['model']} = {i.attrs['source']}@{_version(i)}{decay}"
        case "snapshot":
            return f"snapshot {i.attrs['model']}"
        case "keep_rows":
            return f"keep {show('rows')} where {show('where')}"
        case "move":
            return _move(i, inlined)
        case "gather":
            return f"{', '.join(i.args)} = gather({', '.join(map(show, i.args))}){_at(i)}"
        case "weights":
            version = "snapshot" if i.attrs.get("snapshot") else "newest"
            return f"weights {i.attrs['holding']} = {i.attrs['model']}@{version}   : {' → '.join(i.groups[:2])}"
        case "announce":
            return f"announce {i.attrs['region']}   : {i.attrs['source']} → {i.mesh}"
    return f"{i.out} = {_expression(i, inlined)}   : {i.type}{_where(i)}"


def _where(i: Instruction) -> str:
    """Where a result lies; in a plan for one process, only of what a model computes."""
    if not i.layout:
        return _at(i) if "micro" in i.attrs else ""
    is_scalar = "[" not in i.type
    return (f", {DEALS[i.layout]}" if i.layout == "partial" or not is_scalar else "") + f" @ {i.mesh}"


def _at(i: Instruction) -> str:
    return f"   @ {i.mesh}"


def _move(i: Instruction, inlined: Inlined) -> str:
    fields = i.attrs.get("fields", {})
    taken = (
        _operand(v, inlined) + ("{" + ", ".join(fields[k]) + "}" if k in fields else "") for k, v in i.args.items()
    )
    how = DEALS[i.layout] if i.attrs["deal"] != "known" else "as dealt there"
    role = i.attrs.get("role", "move")
    return f"{', '.join(i.args)} = {role}({', '.join(taken)})   : {i.attrs['source']} → {i.mesh}, {how}"


def _version(i: Instruction) -> str:
    """Which weights are read: `now`, `next`, `live`, or `snapshot`, those of now kept aside."""
    return "snapshot" if i.attrs.get("snapshot") else str(i.attrs["version"])


def _loss(i: Instruction) -> str:
    """An update's minibatches, micro-batches and passes."""
    loss = i.attrs.get("loss", {})
    passes = "two passes" if loss.get("two_passes") else "one pass"
    micro = f"micro={i.attrs['micro']} by {' and '.join(loss['uncut'])}" if loss["uncut"] else "all at once"
    return ", ".join([*_options(i), micro, passes])


def _optimizer(i: Instruction) -> str:
    optimizer = i.attrs["optimizer"]
    given = {k: v for k, v in optimizer.items() if k != "name"}
    return f"{optimizer['name']}({', '.join(_unusual(given, USUAL.get(optimizer['name'], {})))})"


def _options(i: Instruction) -> list[str]:
    return _unusual({k: v for k, v in i.attrs.items() if k not in HIDDEN}, USUAL.get(i.op, {}))


def _unusual(options: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    """Options as they are written, without those that are as usual, or say nothing."""
    return [f"{k}={_constant(v)}" for k, v in options.items() if usual.get(k) != v and v not in (False, "", None)]


# ---------------------------------------------------------------- expressions


def _operand(value: Operand, inlined: Inlined, *, is_part: bool = False) -> str:
    """A value by its name, or as it is computed. is_part: as part of an expression, which may need parentheses."""
    if not isinstance(value, Value):
        return repr(value) if isinstance(value, str) else _constant(value)
    if value.ref not in inlined:
        return value.ref
    inner = inlined[value.ref]
    text = _expression(inner, inlined)
    return f"({text})" if is_part and _is_infix(inner) else text


def _constant(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_infix(i: Instruction) -> bool:
    return i.op == "map" and i.attrs["fn"] in INFIX


def _expression(i: Instruction, inlined: Inlined) -> str:
    def parts() -> list[str]:
        return [_operand(v, inlined, is_part=True) for v in i.args.values()]

    match i.op:
        case "map" if _is_infix(i):
            return f" {i.attrs['fn']} ".join(parts())
        case "map" if i.attrs["fn"] == "neg":
            return f"-{parts()[0]}"
        case "field":
            return f"{parts()[0]}.{i.attrs['field']}"
        case "state":
            return str(i.attrs["state"])
        case "share":
            return f"share({_named_args(i, inlined)}) from {i.attrs['source']}"
        case "map" | "reduce":
            return _called(str(i.attrs["fn"]), _named_args(i, inlined), *_to(i))
        case "rank" | "expand":
            return _called(i.op, _named_args(i, inlined), *_to(i))
        case "call":
            return _called(i.attrs["operator"], _named_args(i, inlined))
        case "read":
            return _called("read", repr(i.attrs["path"]), *_options(i))
        case "own":
            return f"own({parts()[0]})"
        case "generate" | "logprobs" | "entropy" | "values" | "score":
            name = f"{i.attrs['model']}@{_version(i)}.{i.op}"
            return _called(name, _named_args(i, inlined), *_options(i))
    return _called(i.op, _named_args(i, inlined), *_options(i))


def _called(name: str, *arguments: str) -> str:
    return f"{name}({', '.join(a for a in arguments if a)})"


PLAIN = frozenset({"x", "prompts", "sequences", "value", "record", "prompt", "response"})
"""Parameters that need no name, as those without one: `0`, `1`."""


def _named_args(i: Instruction, inlined: Inlined) -> str:
    shown = {k: _operand(v, inlined) for k, v in i.args.items()}
    return ", ".join(text if k in PLAIN or k.isdigit() else f"{k}={text}" for k, text in shown.items())


def _to(i: Instruction) -> list[str]:
    to = i.attrs.get("to")
    word = "to" if i.op == "expand" else "by"
    return [f"{word}={to}"] if to else []
