"""A plan as text: what a person reads, and golden tests hold."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .schema import Holding, Instruction, Model, Operand, Plan, Value

INFIX = frozenset({"+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "and", "or"})
PURE = frozenset(
    {"map", "field", "reduce", "state", "step", "tokenise", "expand", "rank", "call", "logprobs", "values"}
) | {"all_reduce", "own", "spread"}
"""What may be shown where it is read."""
HIDDEN = frozenset(
    {"model", "version", "fn", "field", "to", "rows", "tokens", "operator", "metric", "state", "region"}
) | {"snapshot", "holding", "axis", "source"}
"""Attributes that the operator's own spelling already shows."""


def plan_text(plan: Plan) -> str:
    """The whole plan, one line per instruction."""
    lines = [f"plan {plan.flow} for {plan.target}   # {plan.hash[:12]}"]
    lines += [f"  param {name} = {value!r}" for name, value in plan.params.items()]
    lines += [f"  mesh {m.name}: {m.devices} device{'s' if m.devices > 1 else ''}" for m in plan.meshes]
    lines += [f"  group {g.name}" for g in plan.groups if len(g.meshes) > 1]
    lines += [f"  model {_model(m)}" for m in plan.models]
    lines += [f"  weights {_holding(h)}" for h in plan.holdings]
    lines += [f"  state {name} = {value!r}" for name, value in plan.states.items()]
    lines += [f"  axis {a.name}" + (f" under {a.parent}" if a.parent else "") for a in plan.axes]
    lines += [f"  operator {o.key} from {o.file} ({o.sha256[:12]})" for o in plan.operators]
    return "\n".join([*lines, *_programs(plan)]) + "\n"


def rank_text(plan: Plan, rank: int) -> str:
    """A projected plan: what one rank does."""
    lines = [f"rank {rank} of {plan.ranks} of plan {plan.flow}   # {plan.hash[:12]}"]
    lines += [f"  mesh {m.name}: rank {rank - m.first} of {m.devices} there" for m in plan.meshes]
    lines += [f"  group {g.name}" for g in plan.groups if len(g.meshes) > 1]
    lines += [f"  weights {_holding(h)}" for h in plan.holdings]
    return "\n".join([*lines, *_programs(plan)]) + "\n"


def _programs(plan: Plan) -> Iterator[str]:
    for ahead in plan.ahead:
        yield from ("", f"{ahead.staleness} steps ahead, queue {', '.join(ahead.keeps)}:")
        yield from program_text(ahead.program)
        if ahead.exchange:
            yield from ("", "after the step, what was made ahead goes where it will be read:")
            yield from program_text(ahead.exchange)
    yield from ("", "step:", *program_text(plan.program))


def _model(model: Model) -> str:
    start = f"start of {model.of}" if model.of else f"{model.kind}({model.path!r})"
    marks = [w for w, on in (("trained", model.trained), ("replaced", model.replaced), ("frozen", model.frozen)) if on]
    return f"{model.name} = {start}   # {', '.join(marks)}"


def _holding(holding: Holding) -> str:
    degrees = ", ".join(f"{k}={v}" for k, v in (("dp", holding.dp), ("fsdp", holding.fsdp)) if v > 1) or "one copy"
    return f"{holding.name} on {holding.mesh}: {degrees}"


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
            for name in _reads(inner):
                uses[name] = uses.get(name, 0) + (1 if inner in block else 2)
    return {i.out: i for i in block if i.out.startswith("%") and i.op in PURE and uses.get(i.out) == 1}


def _reads(instruction: Instruction) -> Iterator[str]:
    for value in instruction.args.values():
        if isinstance(value, Value):
            yield value.ref


def _line(i: Instruction, inlined: Mapping[str, Instruction]) -> str:
    def show(value: Operand) -> str:
        return _operand(value, inlined)

    match i.op:
        case "update":
            options = _options(i, ("optimizer", "loss"))
            return f"update {i.attrs['model']} {_loss(i)}{options} {_optimizer(i)}:   @ {i.mesh}"
        case "when":
            return f"when {show(i.args['condition'])}:"
        case "every":
            return f"every {i.attrs['period']} steps:"
        case "collect":
            return f"{i.out} = collect{_options(i, ())}:"
        case "metric" | "record":
            return f"{i.op} {i.attrs['metric']} = {show(i.args['value'])}"
        case "minimize":
            return f"minimize {show(i.args['value'])}"
        case "next_state":
            return f"next {i.attrs['state']} = {show(i.args['value'])}"
        case "next_model":
            decay = f", decay={i.attrs['decay']}" if "decay" in i.attrs else ""
            return f"next {i.attrs['model']} = {i.attrs['source']}@{_version(i)}{decay}"
        case "snapshot":
            return f"snapshot {i.attrs['model']}"
        case "keep_rows":
            return f"keep {show(i.args['rows'])} where {show(i.args['where'])}"
        case "move":
            return _move(i, show)
        case "gather":
            return f"{', '.join(i.args)} = gather({', '.join(map(show, i.args.values()))})   @ {i.mesh}"
        case "weights":
            return f"weights {i.attrs['holding']} = {i.attrs['model']}@{_now(i)}   @ {' → '.join(i.groups[:2])}"
        case "announce":
            return f"announce {i.attrs['region']} from {i.attrs['source']}   @ {i.mesh}"
    return f"{i.out} = {_expression(i, inlined)}   : {i.type}{_where(i)}"


def _where(i: Instruction) -> str:
    """Where a result lies; in a plan for one process, only of what a model computes."""
    if i.layout:
        return f", {i.layout} @ {i.mesh}"
    return f"   @ {i.mesh}" if "micro" in i.attrs else ""


def _now(i: Instruction) -> str:
    return "snapshot" if i.attrs.get("snapshot") else "newest"


def _move(i: Instruction, show: Callable[[Operand], str]) -> str:
    fields = i.attrs.get("fields", {})
    taken = (show(v) + ("{" + ", ".join(fields[k]) + "}" if k in fields else "") for k, v in i.args.items())
    how = "as dealt there" if i.attrs["deal"] == "known" else f"dealt {_deals[i.attrs['deal']]}"
    role = i.attrs.get("role", "move")
    return f"{', '.join(i.args)} = {role}({', '.join(taken)})   : {i.attrs['source']} → {i.mesh}, {how}"


_deals = {"even": "evenly", "length": "by length"}


def _version(i: Instruction) -> str:
    """Which weights are read: `now`, `next`, `live`, or `snapshot`, those of now kept aside."""
    return "snapshot" if i.attrs.get("snapshot") else str(i.attrs["version"])


def _loss(i: Instruction) -> str:
    loss = i.attrs.get("loss", {})
    passes = "two passes" if loss.get("two_passes") else "one pass"
    return f"[{passes}, micro-batches of {' and of '.join(loss['uncut'])}]"


def _optimizer(i: Instruction) -> str:
    given = ", ".join(f"{k}={v}" for k, v in i.attrs["optimizer"].items() if k != "name" and v is not None)
    return f"{i.attrs['optimizer']['name']}({given})"


def _options(i: Instruction, hidden: tuple[str, ...]) -> str:
    shown = {k: v for k, v in i.attrs.items() if k not in HIDDEN and k not in hidden and _matters(v)}
    return "".join(f" {k}={v}" for k, v in shown.items())


def _matters(value: Any) -> bool:
    return value is not False and value != "" and value is not None


def _operand(value: Operand, inlined: Mapping[str, Instruction]) -> str:
    if not isinstance(value, Value):
        return repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    if value.ref not in inlined:
        return value.ref
    inner = inlined[value.ref]
    text = _expression(inner, inlined)
    return f"({text})" if inner.op == "map" and inner.attrs["fn"] in INFIX else text


def _expression(i: Instruction, inlined: Mapping[str, Instruction]) -> str:
    args = [_operand(v, inlined) for v in i.args.values()]
    match i.op:
        case "map" if i.attrs["fn"] in INFIX:
            return f"{args[0]} {i.attrs['fn']} {args[1]}"
        case "map" if i.attrs["fn"] == "neg":
            return f"-{args[0]}"
        case "map":
            return f"{i.attrs['fn']}({', '.join(args)})"
        case "field":
            return f"{args[0]}.{i.attrs['field']}"
        case "reduce":
            return f"{i.attrs['fn']}({_named_args(i, inlined)}{_to(i)})"
        case "all_reduce" | "spread":
            return f"{i.op}({args[0]})"
        case "own":
            return f"own({args[0]})"
        case "share":
            return f"share({args[0]}) from {i.attrs['source']}"
        case "rank" | "expand":
            return f"{i.op}({', '.join(args)}{_to(i)})"
        case "state":
            return str(i.attrs["state"])
        case "call":
            return f"{i.attrs['operator']}({_named_args(i, inlined)})"
        case "generate" | "logprobs" | "entropy" | "values" | "score":
            return f"{i.attrs['model']}@{_version(i)}.{i.op}({_named_args(i, inlined)}){_options(i, ('micro',))}"
    return f"{i.op}({_named_args(i, inlined)}){_options(i, ())}"


def _named_args(i: Instruction, inlined: Mapping[str, Instruction]) -> str:
    plain = ("x", "0", "prompts", "sequences", "value", "record", "prompt", "response")
    return ", ".join(_operand(v, inlined) if k in plain else f"{k}={_operand(v, inlined)}" for k, v in i.args.items())


def _to(i: Instruction) -> str:
    to = i.attrs.get("to")
    word = "to" if i.op == "expand" else "by"
    return f", {word}={to}" if to else ""
