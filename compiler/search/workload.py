"""The arithmetic of a batch: prompts → samples → tokens of each phase in a step, and where each number comes from.

A phase may stand for several instructions, some of them in `every N steps` blocks. It runs as often as the most
frequent one, and the rows of one that runs in fewer of those steps count in proportion: costs are of a mean step.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm

from .. import plan as p
from ..batch import count_rows
from .assumptions import Lengths
from .decision import Quantity
from .dependencies import KINDS

ASSUMED_ROWS = 1024
"""Rows of a batch whose size isn't known before the run."""


@dataclass(frozen=True)
class Workload:
    """What a phase has to do in one of the steps in which it runs.

    samples: sequences it reads or makes, of one epoch. prompt, response: mean tokens of each; longest: of the longest
    response, however seldom. prompts: of a draw, those that its samples begin with. Of an update, epochs: how often it
    sees each; steps: optimizer steps in all; passes: forward passes before each backward one. every: it runs in one of
    so many steps. largest: sequences that are there at once at most, those of its largest instruction; 0: `samples`.
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
    largest: int = 0

    @property
    def at_once(self) -> int:
        """Sequences of the largest of its runs: what stands in an `every` block, or is drawn apart, runs by itself."""
        return self.largest or self.samples

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
    """Rows of each axis, and what was assumed where a plan doesn't say."""
    assumed = []
    for i in (x for x in plan.walk() if x.op == "collect"):
        read = ", ".join(f"`{r.out}`" for r in i.body if r.op == "read")
        assumed.append(f"the `collect` of {read} has enough rows after one round")

    def assume(opening: p.Instruction, above: int | None) -> int:
        if opening.op == "keep":
            assumed.append(f"`{opening.out}` keeps every row")
            return above or ASSUMED_ROWS
        assumed.append(f"`{opening.out}`, a whole file, has {ASSUMED_ROWS} rows")
        return ASSUMED_ROWS

    rows = {name: count for name, count in count_rows(plan, assume).items() if count is not None}
    return rows, list(dict.fromkeys([*assumed, *_conditional(plan)]))


def _conditional(plan: p.Plan) -> Iterator[str]:
    """What is said of blocks whose condition only a run knows."""
    for i in (x for x in plan.walk() if x.op == "when"):
        inside = [x.out for x in i.walk() if x.op in KINDS]
        if inside:
            yield f"the condition of {', '.join(f'`{x}`' for x in inside)} holds in every step"


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
    """Of values made in `every N steps` blocks, in how many steps they are made once."""
    found: dict[str, int] = {}

    def note(block: Iterable[p.Instruction], period: int) -> None:
        for i in block:
            inner = lcm(period, int(i.attrs["period"])) if i.op == "every" else period
            if period > 1:
                found[i.out] = period
            note(i.body, inner)

    for block in (*(a.program for a in plan.ahead), plan.program):
        note(block, 1)
    return found


# ---------------------------------------------------------------- of a phase


def workload_of(instructions: Sequence[p.Instruction], counts: Counts) -> Workload:
    """What the instructions of a phase have to do together, in a mean one of the steps in which any of them runs."""
    parts = [(share, w) for i, share in shares(instructions, counts) for w in _parts(i, counts)]
    weights = [(share * w.samples, w) for share, w in parts]
    whole = sum(weight for weight, _ in weights)
    first, one = instructions[0], max(1, whole)
    epochs, steps = _optimizer_steps(first, counts) if first.op == "update" else (1, 1)
    return Workload(
        round(whole) or min(1, len(parts)),
        round(sum(weight * w.prompt for weight, w in weights) / one),
        round(sum(weight * w.response for weight, w in weights) / one),
        max((w.longest for _, w in parts), default=0),
        round(sum(share * w.prompts for share, w in parts)),
        epochs,
        steps,
        2 if first.op == "update" and first.attrs.get("loss", {}).get("two_passes") else 1,
        min(counts.every.get(i.out, 1) for i in instructions),
        max((sum(w.samples for w in _parts(i, counts)) for i in instructions), default=0),
    )


def shares(instructions: Sequence[p.Instruction], counts: Counts) -> tuple[tuple[p.Instruction, float], ...]:
    """The instructions of a phase, and in what part of its steps each runs: 1 for the most frequent ones."""
    periods = [counts.every.get(i.out, 1) for i in instructions]
    return tuple((i, min(periods) / period) for i, period in zip(instructions, periods, strict=True))


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


def combined(name: str, instructions: Sequence[p.Instruction], counts: Counts) -> str | None:
    """What is simplified of a phase that runs several times, in words; None of one that doesn't."""
    if len(instructions) < 2 or instructions[0].op == "update":
        return None
    run = shares(instructions, counts)
    rare = [f"{_called(i, counts)} in one of {counts.every[i.out]} steps" for i, share in run if share < 1]
    if rare:
        return (
            f"{name} runs {len(run)} times, {' and '.join(rare)}: it counts as one phase of the rows of a mean step, "
            "in which those that are seldom there are a part"
        )
    return f"{name} runs {len(run)} times in a step: it counts as one phase of all their rows"


def _called(i: p.Instruction, counts: Counts) -> str:
    """The draw, or what is scored."""
    return f"`{i.out}`" if i.op == "generate" else ", ".join(f"`{r}`" for r in i.reads if r in counts.sequences)


# ---------------------------------------------------------------- to explain


def arithmetic(plan: p.Plan, counts: Counts, phases: Mapping[str, Sequence[p.Instruction]]) -> tuple[Quantity, ...]:
    """Each number of the batch, and what it was made of. phases: by name, the instructions that they stand for."""
    return (
        *_arithmetic(plan, counts),
        *(q for name, found in phases.items() for q in _of_a_phase(name, found, counts)),
    )


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
    period = counts.every.get(i.out, 1)
    seldom = f", in one of {period} steps" if period > 1 else ""
    said = f"{w.prompts} prompts × n={i.attrs.get('n') or 1}{seldom}"
    yield Quantity(f"samples of {i.out}", w.samples, "samples", said)
    said = f"{w.samples} samples × ({w.prompt} prompt + {w.response} new tokens on average){seldom}"
    yield Quantity(f"tokens of {i.out}", w.samples * (w.prompt + w.response), "tokens", said)


def _of_a_phase(name: str, instructions: Sequence[p.Instruction], counts: Counts) -> Iterator[Quantity]:
    """Of a phase that runs several times: the rows of a mean step."""
    if len(instructions) < 2 or instructions[0].op == "update":
        return
    work = workload_of(instructions, counts)
    said = " + ".join(_said_rows(i, share, counts) for i, share in shares(instructions, counts))
    seldom = f", in one of {work.every} steps" if work.every > 1 else ""
    yield Quantity(f"samples of {name}", work.samples, "samples", f"{said}{seldom}")


def _said_rows(i: p.Instruction, share: float, counts: Counts) -> str:
    rows = sum(w.samples for w in _parts(i, counts))
    return f"{rows} of {_called(i, counts)}" + (f" ÷ {1 / share:g}" if share < 1 else "")


def _of_an_update(i: p.Instruction, counts: Counts) -> Iterator[Quantity]:
    epochs, steps = _optimizer_steps(i, counts)
    name = f"{i.attrs['model']}.update"
    samples = sum(w.samples for w in _parts(i, counts))
    said = f"{steps // epochs} minibatches × {epochs} epoch{'s' if epochs > 1 else ''}"
    yield Quantity(f"optimizer steps of {name}", steps, "a step", said)
    each = samples * epochs / steps
    yield Quantity(f"minibatch of {name}", each, "samples", f"{samples} samples ÷ {steps // epochs} minibatches")
