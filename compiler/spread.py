"""How a plan spreads over its ranks: where phases run, how many rows a rank gets, and what moves between meshes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .graph import PHASES
from .plan import Instruction, Plan, original

Counts = Mapping[str, int | None]
"""Rows of each axis by its name; None where they are known only at run time."""


def spread_facts(plan: Plan, rows: Counts) -> dict[str, Any]:
    """Per phase its mesh, degrees and rows; what is moved, and when."""
    phases: dict[str, dict[str, Any]] = {}
    for phase in _phases(plan, rows):
        phases.setdefault(phase["phase"], phase)
    called = names_shown(plan)
    moves = [m for when, block in _blocks(plan) for m in _moves(block, when, called)]
    return {"ranks": plan.ranks, "phases": list(phases.values()), "moves": moves}


def _phases(plan: Plan, rows: Counts) -> Iterator[dict[str, Any]]:
    """The phases outside of updates, and the updates."""
    within = {x.out for u in plan.walk() if u.op == "update" for x in u.body}
    held = {h.name: h for h in plan.holdings}
    for i in (x for x in plan.walk() if x.op in (*PHASES, "update") and x.out not in within):
        holding = held[i.attrs.get("holding", i.attrs["model"])]
        yield {
            "phase": f"{i.attrs['model']}.{i.op}",
            "mesh": i.mesh,
            "dp": holding.dp,
            "fsdp": holding.fsdp,
            "dealt": "evenly" if i.op == "generate" else "by length",
            "rows per rank": _per_rank(plan, i, rows),
        }


def _per_rank(plan: Plan, i: Instruction, rows: Counts) -> dict[str, float] | None:
    """The prompts that a rank has of a phase's on average (of an update in a minibatch), and the samples under them.

    None if that is known only at run time.
    """
    kinds = {a.name: a.kind for a in plan.axes}
    chain = [axis for axis in plan.chain(_axis(i)) if kinds.get(axis, "token") != "token"]
    total = rows.get(chain[-1]) if chain else None
    if not total:
        return None
    size = next(m.devices for m in plan.meshes if m.name == i.mesh)
    prompts = ((i.op == "update" and i.attrs.get("minibatch")) or total) / size
    samples = rows.get(chain[0]) if len(chain) > 1 else None
    return {"prompts": prompts, **({"samples": prompts * samples / total} if samples else {})}


def _axis(i: Instruction) -> str | None:
    """The innermost axis of what a phase reads or draws."""
    if i.op == "update":
        return next(iter((*i.attrs["loss"]["uncut"], *i.attrs["loss"]["roots"])), None)
    if i.op == "generate":
        return str(i.attrs["rows"])
    return i.axis


def _blocks(plan: Plan) -> Iterator[tuple[str, Iterable[Instruction]]]:
    for a in plan.ahead:
        steps = f"{a.staleness} step{'s' if a.staleness > 1 else ''} ahead"
        yield steps, a.program
        yield "after the step", a.exchange
    yield "in the step", plan.program


def names_shown(plan: Plan) -> dict[str, str]:
    """What values are called for people: by the flow's names, without mesh and number; those that have none by type."""
    return {i.out: _shown(i) for i in plan.walk()}


def shown_as(name: str, called: Mapping[str, str]) -> str:
    """What a value is called, or the copy of one on another mesh."""
    plain = original(name)
    return called.get(name) or called.get(plain) or plain


def _shown(i: Instruction) -> str:
    if i.op == "collected":  # it has the name of what was collected, with a number
        return original(str(getattr(i.args["value"], "ref", i.out)))
    return i.type if i.out.startswith("%") else original(i.out)


def _moves(block: Iterable[Instruction], when: str, called: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The rows and weights that a block moves, in order."""
    for i in block:
        yield from _moves(i.body, _within(i) or when, called)
        if i.op == "move":
            yield {"moves": _moved(i, called), "from": i.attrs["source"], "to": i.mesh, "when": when}
        elif i.op == "weights":
            yield {"moves": [f"weights of {i.attrs['model']}"], "from": i.groups[0], "to": i.mesh, "when": when}


def _within(i: Instruction) -> str | None:
    match i.op:
        case "every":
            return f"every {i.attrs['period']} steps"
        case "when":
            name = original(str(getattr(i.args["condition"], "ref", i.args["condition"])))
            return "when its condition holds" if name.startswith("%") else f"when `{name}`"
        case "collect":
            return "in every round"
    return None


def _moved(i: Instruction, called: Mapping[str, str]) -> list[str]:
    """What a move takes along: values by their names, those that have none by their types; of records the fields."""
    shown = []
    for copy, value in i.args.items():
        name = getattr(value, "ref", "")
        fields = i.attrs.get("fields", {}).get(copy)
        shown.append(shown_as(name, called) + (f"{{{', '.join(fields)}}}" if fields else ""))
    return shown


# ---------------------------------------------------------------- as text


def phase_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    for phase in facts["phases"]:
        degrees = "".join(f", {d}={phase[d]}" for d in ("dp", "fsdp") if phase[d] > 1)
        rows = _rows_line(phase["rows per rank"] or {}, phase["dealt"])
        minibatch = " in a minibatch" if phase["phase"].endswith(".update") else ""
        yield f"{phase['phase']:<16} {phase['mesh']}{degrees}" + (f": {rows} a rank{minibatch}" if rows else "")


def _rows_line(rows: Mapping[str, float], dealt: str) -> str:
    """How many rows a rank has, such as `16 prompts = 128 samples`; by length tokens are as many for each, not rows."""
    shown = " = ".join(f"{round(number, 1):g} {word}" for word, number in rows.items())
    is_exact = dealt == "evenly" and all(number == int(number) for number in rows.values())
    return shown if is_exact or not shown else f"about {shown}"


def move_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    for move in facts["moves"]:
        way = "dealt by length" if move["from"] == move["to"] else f"{move['from']} → {move['to']}"
        yield f"{', '.join(move['moves'])}: {way}, {move['when']}"
