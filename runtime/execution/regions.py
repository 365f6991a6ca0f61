"""Regions: blocks that may not run, or run several times."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ...compiler.plan import Instruction
from ...compiler.plan import Value as Name
from ..errors import RunError
from ..numbers import numeric
from ..values import Any_, Concatenation, Record, Selection
from .interpreter import HANDLERS, Env, run_block


def _when(i: Instruction, env: Env) -> None:
    if env.scalar(i.args["condition"]):
        run_block(i.body, env.inner())


def _every(i: Instruction, env: Env) -> None:
    if env.step.number % i.attrs["period"] == 0:
        run_block(i.body, env.inner())


def runs_after_the_end(i: Instruction) -> bool:
    """Whether an `every` block also runs once after the last step: if it changes no model."""
    return i.op == "every" and not any(x.op in ("update", "next_model", "next_state") for x in i.walk())


# ---------------------------------------------------------------- collect


@dataclass
class _Kept:
    """The kept rows of the rounds so far, by name."""

    rounds: list[dict[str, Any_]] = field(default_factory=list)
    rows: int = 0


def _collect(i: Instruction, env: Env) -> None:
    """Repeat the block until enough rows are kept. Names of the block stay in `env` as `region/name`."""
    kept, target = _Kept(), i.attrs["target"]
    for _ in range(i.attrs["rounds"]):
        inner = env.inner()
        _advance(i, env, inner)
        _keep_round(i, inner, kept)
        if kept.rows >= target:
            break
    if kept.rows < target:
        _short(i, env, kept.rows, target)
    env.step.log("collect_rounds", float(len(kept.rounds)))
    for name, value in _joined(i, kept, target).items():
        env.values[f"{i.out}/{name}"] = value


def _advance(i: Instruction, env: Env, inner: Env) -> None:
    """Run one round; its reads go on where the last round's ended."""
    cursors = env.session.cursors
    for read in (x for x in i.body if x.op == "read"):
        cursors.setdefault(read.out, 0)
    run_block(i.body, inner)
    for read in (x for x in i.body if x.op == "read" and "batch" in x.attrs):
        cursors[read.out] += read.attrs["batch"]


def _keep_round(i: Instruction, inner: Env, kept: _Kept) -> None:
    statement = next(x for x in i.body if x.op == "keep_rows")
    rows, where = inner.record(statement.args["rows"]), inner.value(statement.args["where"])
    selection = Selection(rows.frame, torch.nonzero(numeric(where).on(rows.frame).tensor.bool())[:, 0])
    kept.rounds.append({name: selection(value) for name, value in inner.values.items()})
    kept.rows += selection.frame.size


def _short(i: Instruction, env: Env, rows: int, target: int) -> None:
    if i.attrs["short"] == "skip":
        env.step.skip_updates = True
        return
    raise RunError(
        f"step {env.step.number}: {i.attrs['rounds']} rounds kept {rows} of {target} prompts; raise `rounds=`, keep "
        "more, or write `short=skip` to make no update in such a step"
    )


def _joined(i: Instruction, kept: _Kept, target: int) -> Mapping[str, Any_]:
    """All rounds as one, in draw order, cut to the target."""
    join = Concatenation()
    names = [n for n, v in kept.rounds[0].items() if isinstance(v, Record) or v.frame is not None]
    joined = {n: join([r[n] for r in kept.rounds]) for n in names}
    statement = next(x for x in i.body if x.op == "keep_rows")
    rows = statement.args["rows"]
    assert isinstance(rows, Name)
    base = joined[rows.ref]
    assert isinstance(base, Record)
    cut = Selection(base.frame, torch.arange(min(target, base.frame.size)))
    return {n: cut(v) for n, v in joined.items()}


def _collected(i: Instruction, env: Env) -> Any_:
    value = i.args["value"]
    assert isinstance(value, Name)
    return env[f"{i.attrs['region']}/{value.ref}"]


HANDLERS["when"] = _when
HANDLERS["every"] = _every
HANDLERS["collect"] = _collect
HANDLERS["collected"] = _collected
HANDLERS["keep_rows"] = lambda i, env: None
