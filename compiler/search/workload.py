"""The arithmetic of a batch: prompts → samples → tokens of each phase in a step, and where each number comes from."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .. import plan as p
from .assumptions import Lengths
from .decision import Quantity

ASSUMED_ROWS = 1024
"""Rows of a batch whose size isn't known before the run."""


@dataclass(frozen=True)
class Workload:
    """What a phase has to do in one step.

    samples: sequences it reads or makes, of one epoch. prompt, response: mean tokens of each; longest: of the longest
    response. Of an update, epochs: how often it sees each; steps: optimizer steps in all; passes: forward passes
    before each backward one. every: it runs in one of so many steps.
    """

    samples: int
    prompt: int
    response: int
    longest: int
    prompts: int = 0
    epochs: int = 1
    steps: int = 1
    passes: int = 1
    every: int = 1

    @property
    def tokens(self) -> int:
        """Prompt and response tokens of a step, every epoch counted."""
        return self.samples * (self.prompt + self.response) * self.epochs


@dataclass(frozen=True)
class Counts:
    """Rows of each axis, lengths of each value of sequences by its name, and what was assumed of them."""

    rows: Mapping[str, int]
    sequences: Mapping[str, Workload]
    every: Mapping[str, int]
    assumptions: tuple[str, ...]


def counted(plan: p.Plan, lengths: Lengths) -> Counts:
    """Rows and lengths of everything a model reads."""
    rows, assumed = _rows(plan)
    sequences = {i.out: s for i in plan.walk() if (s := _sequences(i, rows, lengths, plan)) is not None}
    for i in plan.walk():  # what has come out of a `collect` or a `keep` is as long as what went in
        source = next((sequences[r] for r in i.reads if r in sequences), None)
        if i.out not in sequences and source and i.type.startswith(("rollout[", "sequences[")):
            sequences[i.out] = source
    return Counts(rows, sequences, _every(plan), tuple(assumed))


def _rows(plan: p.Plan) -> tuple[dict[str, int], list[str]]:
    rows: dict[str, int] = {}
    assumed: list[str] = []
    for i in plan.walk():
        if i.op == "collect":
            rows |= {f"{r.out}.prompt": i.attrs["target"] for r in i.body if r.op == "read"}
            read = ", ".join(f"`{r.out}`" for r in i.body if r.op == "read")
            assumed.append(f"the `collect` of {read} has enough rows after one round")
        elif i.op == "read" and f"{i.out}.prompt" not in rows:
            if not i.attrs.get("batch"):
                assumed.append(f"`{i.out}`, a whole file, has {ASSUMED_ROWS} rows")
            rows[f"{i.out}.prompt"] = i.attrs.get("batch") or ASSUMED_ROWS
    opened = {i.attrs["rows"]: i for i in plan.walk() if i.op in ("generate", "keep")}
    for axis in sorted(plan.axes, key=lambda a: len(plan.chain(a.name))):
        above = rows.get(axis.parent or "", ASSUMED_ROWS)
        made = opened.get(axis.name)
        if axis.kind != "token" and axis.name not in rows:
            rows[axis.name] = above * int(made.attrs.get("n") or 1) if made else above
            if made is not None and made.op == "keep":
                assumed.append(f"`{made.out}` keeps every row")
    return rows, list(dict.fromkeys(assumed))


def _sequences(i: p.Instruction, rows: Mapping[str, int], lengths: Lengths, plan: p.Plan) -> Workload | None:
    if i.op == "generate":
        mean, longest = lengths.responses(_limit(i))
        samples = rows.get(i.attrs["rows"], ASSUMED_ROWS)
        return Workload(samples, lengths.prompt_tokens, mean, longest, samples // int(i.attrs.get("n") or 1))
    axis = re.fullmatch(r"(?:sequences|rollout)\[(.+)\]", i.type)
    if i.op in ("tokenise", "keep") and axis:
        mean, longest = lengths.responses(None)
        samples = rows.get(axis[1], ASSUMED_ROWS)
        return Workload(samples, lengths.prompt_tokens, mean, longest, samples)
    return None


def _limit(i: p.Instruction) -> int | None:
    """New tokens of a draw at most; None where that is known only at run time."""
    limit = i.args.get("max_new_tokens", i.attrs.get("max_new_tokens"))
    return limit if isinstance(limit, int) else None


def limits_of(plan: p.Plan) -> tuple[int, ...]:
    """The limits of the plan's draws, those that are known."""
    return tuple(limit for i in plan.walk() if i.op == "generate" and (limit := _limit(i)) is not None)


def _every(plan: p.Plan) -> dict[str, int]:
    """Of values made in an `every N steps` block, N."""
    blocks = (i for i in plan.walk() if i.op == "every")
    return {x.out: int(i.attrs["period"]) for i in blocks for x in i.walk() if x is not i}


# ---------------------------------------------------------------- of a phase


def workload_of(instructions: Sequence[p.Instruction], counts: Counts, plan: p.Plan) -> Workload:
    """What the instructions of a phase have to do together."""
    parts = [w for i in instructions for w in _parts(i, counts)]
    samples = sum(w.samples for w in parts)
    first, one = instructions[0], max(1, samples)
    epochs, steps = _optimizer_steps(first, counts) if first.op == "update" else (1, 1)
    return Workload(
        samples,
        round(sum(w.samples * w.prompt for w in parts) / one),
        round(sum(w.samples * w.response for w in parts) / one),
        max((w.longest for w in parts), default=0),
        max((w.prompts for w in parts), default=0),
        epochs,
        steps,
        2 if first.op == "update" and first.attrs.get("loss", {}).get("two_passes") else 1,
        min(counts.every.get(i.out, 1) for i in instructions),
    )


def _parts(i: p.Instruction, counts: Counts) -> Iterator[Workload]:
    if i.op == "update":
        live = (x for x in i.body if x.attrs.get("version") == "live")
        read = dict.fromkeys(r for x in live for r in x.reads)
        yield from (counts.sequences[r] for r in read if r in counts.sequences)
    elif i.op == "generate":
        yield counts.sequences[i.out]
    else:
        yield from (counts.sequences[r] for r in i.reads if r in counts.sequences)


def _optimizer_steps(i: p.Instruction, counts: Counts) -> tuple[int, int]:
    """Epochs of an update, and its optimizer steps in all."""
    roots = i.attrs.get("loss", {}).get("roots") or []
    batch = counts.rows.get(roots[0], ASSUMED_ROWS) if roots else ASSUMED_ROWS
    size = i.attrs.get("minibatch") or batch
    parts = i.attrs.get("minibatches") or max(1, batch // size)
    epochs = int(i.attrs.get("epochs", 1))
    return epochs, parts * epochs


# ---------------------------------------------------------------- to explain


def arithmetic(plan: p.Plan, counts: Counts) -> tuple[Quantity, ...]:
    """Each number of the batch, and what it was made of."""
    return tuple(_arithmetic(plan, counts))


def _arithmetic(plan: p.Plan, counts: Counts) -> Iterator[Quantity]:
    seen: set[str] = set()
    for i in (x for x in plan.walk() if x.out not in seen):
        seen.add(i.out)
        if i.op == "read":
            rows = counts.rows[f"{i.out}.prompt"]
            said = f"`read({i.attrs['path']}, batch=…)`" if i.attrs.get("batch") else "an assumption"
            yield Quantity(f"prompts of {i.out}", rows, "prompts", said)
        elif i.op == "generate":
            yield from _of_a_draw(i, counts)
        elif i.op == "update":
            yield from _of_an_update(i, counts)


def _of_a_draw(i: p.Instruction, counts: Counts) -> Iterator[Quantity]:
    w = counts.sequences[i.out]
    yield Quantity(f"samples of {i.out}", w.samples, "samples", f"{w.prompts} prompts × n={i.attrs.get('n') or 1}")
    said = f"{w.samples} samples × ({w.prompt} prompt + {w.response} new tokens on average)"
    yield Quantity(f"tokens of {i.out}", w.samples * (w.prompt + w.response), "tokens", said)


def _of_an_update(i: p.Instruction, counts: Counts) -> Iterator[Quantity]:
    epochs, steps = _optimizer_steps(i, counts)
    name = f"{i.attrs['model']}.update"
    samples = sum(w.samples for w in _parts(i, counts))
    said = f"{steps // epochs} minibatches × {epochs} epoch{'s' if epochs > 1 else ''}"
    yield Quantity(f"optimizer steps of {name}", steps, "a step", said)
    each = samples * epochs / steps
    yield Quantity(f"minibatch of {name}", each, "samples", f"{samples} samples ÷ {steps // epochs} minibatches")
