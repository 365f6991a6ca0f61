"""Regions: blocks that may not run, or run several times."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...compiler.plan import Instruction
from ...compiler.plan import Value as Name
from ..errors import RunError
from ..numbers import numeric
from ..ranks.channel import Channel
from ..values import Any_, Concatenation, Record, cut
from .interpreter import HANDLERS, Env, frames_of, run_block
from .session import source_name


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


class ShortError(RunError):
    """A `collect` has not kept enough rows."""


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
    if _channel(i, env).index == 0:
        env.step.log("collect_rounds", float(len(kept.rounds)))
    for name, value in _joined(i, kept, target).items():
        env.values[f"{i.out}/{name}"] = value


def _channel(i: Instruction, env: Env) -> Channel:
    """The ranks that take part in the block."""
    return env.session.channel(i.groups[0] if i.groups else i.mesh)


def _advance(i: Instruction, env: Env, inner: Env) -> None:
    """Run one round; its reads go on where the last round's ended."""
    cursors = env.session.cursors
    for read in (x for x in i.body if x.op == "read"):
        cursors.setdefault(source_name(read), 0)
    run_block(i.body, inner)
    batches = {source_name(x): x.attrs["batch"] for x in i.body if x.op == "read" and "batch" in x.attrs}
    for name, batch in batches.items():
        cursors[name] += batch


def _keep_round(i: Instruction, inner: Env, kept: _Kept) -> None:
    """Keep rows of the round, on whichever ranks and meshes they are: each rank knows which of its own to keep."""
    statement = _statement(i)
    own = _kept_here(statement, inner).numpy().tobytes() if inner.session.member(statement.mesh) else b""
    every = _channel(i, inner).collect(own, inner.told(statement))
    positions = torch.frombuffer(bytearray(b"".join(every)), dtype=torch.long).sort().values if any(every) else _NONE
    kept.rounds.append(_cut(inner.values, _root_name(statement), positions))
    kept.rows += len(positions)


_NONE = torch.zeros(0, dtype=torch.long)


def _kept_here(statement: Instruction, inner: Env) -> Tensor:
    """The kept rows of this rank, by their numbers among the rows of all."""
    rows, where = inner.record(statement.args["rows"]), inner.value(statement.args["where"])
    here = torch.nonzero(numeric(where).on(rows.frame).tensor.bool())[:, 0]
    return here if rows.frame.deal is None else rows.frame.deal.mine()[here]


def _cut(values: Mapping[str, Any_], root: str, positions: Tensor) -> dict[str, Any_]:
    """The values with those rows of a root alone, wherever its rows lie."""
    frames = {id(f): f for v in values.values() for f in frames_of(v) if f.name == root and f.parent is None}
    selections = [cut(frame, positions) for frame in frames.values()]
    out = dict(values)
    for selection in selections:
        out = {name: selection(value) for name, value in out.items()}
    return out


def _statement(i: Instruction) -> Instruction:
    return next(x for x in i.body if x.op == "keep_rows")


def _root_name(statement: Instruction) -> str:
    """The axis of the rows that are kept."""
    rows = statement.args["rows"]
    assert isinstance(rows, Name)
    return f"{rows.ref.partition('@')[0]}.prompt"


def _short(i: Instruction, env: Env, rows: int, target: int) -> None:
    if i.attrs["short"] == "skip":
        env.step.skip_updates = True
        return
    raise ShortError(
        f"step {env.step.number}: {i.attrs['rounds']} rounds kept {rows} of {target} prompts; raise `rounds=`, keep "
        "more, or write `short=skip` to make no update in such a step"
    )


def _joined(i: Instruction, kept: _Kept, target: int) -> Mapping[str, Any_]:
    """All rounds as one, in draw order, cut to the target."""
    join = Concatenation()
    names = [n for n, v in kept.rounds[0].items() if isinstance(v, Record) or v.frame is not None]
    joined = {n: join([r[n] for r in kept.rounds]) for n in names}
    return _cut(joined, _root_name(_statement(i)), torch.arange(min(target, kept.rows)))


def _collected(i: Instruction, env: Env) -> Any_:
    value = i.args["value"]
    assert isinstance(value, Name)
    return env[f"{i.attrs['region']}/{value.ref}"]


HANDLERS["when"] = _when
HANDLERS["every"] = _every
HANDLERS["collect"] = _collect
HANDLERS["collected"] = _collected
HANDLERS["keep_rows"] = lambda i, env: None
