"""Updates: minibatches, micro-batches, gradients, optimizer steps.

A loss is a function of global sums over the minibatch, so its gradient is the same for every split, into micro-batches
and among the ranks of a mesh:

* one micro-batch: the loss as it stands.
* a loss that is linear in its sums: each micro-batch's part with the minibatch's denominators, added up.
* any other loss: a pass without gradients gives the model's outputs for all rows, the loss's gradient with respect to
  them, and a second pass takes that gradient into the model.

Every rank makes as many passes as the one with most micro-batches, because a pass of a sharded model is a collective.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...compiler.plan import Instruction
from ...compiler.plan import Value as Name
from .. import algebra, noise
from ..errors import RunError
from ..models import Sequences, forward
from ..models.loading import Role
from ..models.scoring import idle, tie, touch
from ..values import Any_, Frame, Record, Value, cut
from .interpreter import HANDLERS, Env, frames_of, is_at, run_block, site_of
from .parts import Part, parts_of
from .phases import readable, temperature_of, token_frame
from .session import Session


def _update(i: Instruction, env: Env) -> None:
    name = i.attrs["model"]
    if env.step.skip_updates:
        env.session.counters.skipped_updates += env.session.speaks(i.mesh)
        return
    trained = False
    for epoch in range(i.attrs["epochs"]):
        for batch in _minibatches(i, env, epoch):
            trained |= _train(i, batch)
    if trained:
        env.session.changed(name)


HANDLERS["update"] = _update
HANDLERS["minimize"] = lambda i, env: None

# ---------------------------------------------------------------- minibatches


def _minibatches(i: Instruction, env: Env, epoch: int) -> Iterable[Env]:
    """The block's outer values, cut along each root axis in this epoch's order."""
    outer = {name: env[name] for name in sorted(_outer_names(i, env))}
    roots = _roots(i, outer.values())
    orders = [minibatch_order(i, env, epoch, name, _rows_of(frames[0])) for name, frames in roots.items()]
    for part in zip(*(minibatches_of(i, o) for o in orders), strict=True):
        selections = [cut(f, rows) for frames, rows in zip(roots.values(), part, strict=True) for f in frames]
        batch = env.inner()
        for name, value in outer.items():
            for selection in selections:
                value = selection(value)
            batch.values[name] = value
        yield batch


def _outer_names(i: Instruction, env: Env) -> set[str]:
    """What the block reads from outside, and a value on each axis that it expands something to."""
    read = {name for x in i.body for name in x.reads}
    axes = [(str(x.attrs["to"]), site_of(x)) for x in i.body if x.op == "expand"]
    carriers = {name for axis, site in axes for name in _names_on(axis, site, env)}
    return (read | carriers) - {out for x in i.body for out in x.outs}


def _names_on(axis: str, site: str, env: Env | None) -> list[str]:
    """The name of one value on an axis at a site, of the innermost block that has one."""
    while env is not None:
        for name, value in env.named():
            if any(f.name == axis and is_at(f, site) for f in frames_of(value)):
                return [name]
        env = env.outer
    return []


def _roots(i: Instruction, values: Iterable[Any_]) -> dict[str, list[Frame]]:
    """The frames of each root axis: this rank's own rows, and where something saw all of them, all rows."""
    found = dict.fromkeys(f for v in values for f in frames_of(v) if f.parent is None)
    names = [name for name in i.attrs["loss"]["roots"] if any(f.name == name for f in found)]
    return {name: [f for f in found if f.name == name] for name in names}


def _rows_of(root: Frame) -> int:
    """How many rows a root has, on all ranks together."""
    return root.size if root.deal is None else root.deal.rows


def minibatch_order(i: Instruction, env: Env, epoch: int, root: str, rows: int) -> Tensor:
    """[rows]: the order in which an epoch of an update goes through the rows of a root."""
    session = env.session
    parts = (session.settings.seed, session.plan.flow, "update", i.attrs["model"], env.step.number, epoch, root)
    return noise.permutation(rows, *parts)


def minibatches_of(i: Instruction, order: Tensor) -> Sequence[Tensor]:
    """A minibatch is `minibatch` rows, or one of `minibatches` parts; the last takes what is left."""
    rows = len(order)
    if "minibatches" in i.attrs:
        size = max(1, rows // i.attrs["minibatches"])
        starts = [size * k for k in range(i.attrs["minibatches"])]
        return [order[a:b] for a, b in zip(starts, [*starts[1:], rows], strict=True)]
    size = i.attrs.get("minibatch") or max(1, rows)
    return list(torch.split(order, size)) if rows else [order]


# ---------------------------------------------------------------- one minibatch


@dataclass
class _Forward:
    """One forward pass of the trained model: the phases that read the same sequences, together."""

    record: Record
    seqs: Sequences
    phases: list[Instruction]

    @property
    def want(self) -> tuple[str, ...]:
        return tuple(sorted({p.op for p in self.phases}))

    def frame(self, op: str) -> Frame:
        return self.record.frame if op == "score" else token_frame(self.record)


@dataclass
class _Batch:
    """A minibatch on its way to a gradient.

    env: the values of the block that don't depend on the trained model. dependent: the instructions that do.
    parts: the micro-batches; a None is all rows in one.
    """

    instruction: Instruction
    env: Env
    role: Role
    forwards: list[_Forward]
    dependent: list[Instruction]
    parts: list[Part] | list[None]
    shares: "_Shares"
    outputs: dict[str, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)

    @property
    def number(self) -> torch.dtype:
        return self.env.session.settings.number


def _train(i: Instruction, env: Env) -> bool:
    """One optimizer step on one minibatch; False if there was nothing to learn from."""
    session = env.session
    batch = _prepare(i, env)
    if not batch.shares.rows:
        session.counters.empty_minibatches += session.speaks(i.mesh)
        return False
    if batch.shares.is_one_part:
        _at_once(batch)
    elif i.attrs["loss"]["two_passes"]:
        _in_two_passes(batch)
    else:
        _in_one_pass(batch)
    trainer = session.trainers[i.attrs["model"]]
    env.log(i, f"lr.{i.attrs['model']}", trainer.lr)
    env.log(i, f"grad_norm.{i.attrs['model']}", trainer.step())
    env.step.trained_tokens += sum(token_frame(f.record).size for f in batch.forwards)
    return True


def _prepare(i: Instruction, env: Env) -> _Batch:
    live = [x for x in i.body if x.attrs.get("version") == "live"]
    reached = {x.out for x in live}
    dependent: list[Instruction] = []
    for x in i.body:
        if x.out not in reached and any(name in reached for name in x.reads):
            reached.update((x.out, *x.outs))
            dependent.append(x)
    _refuse_choices(i, live, reached)
    run_block((x for x in i.body if x.out not in reached and x.op != "metric"), env)
    forwards = _forwards(live, env)
    role = env.session.roles[i.attrs["model"]]
    parts = _parts(i, env.session, forwards)
    return _Batch(i, env, role, forwards, dependent, parts, _agree(i, env, forwards, dependent, parts))


def _refuse_choices(i: Instruction, live: Iterable[Instruction], reached: set[str]) -> None:
    """Rows may not be chosen by what the trained model says now: its loss would be made of two of its passes."""
    for x in live:
        sequences = x.args["sequences"]
        if isinstance(sequences, Name) and sequences.ref in reached:
            model = i.attrs["model"]
            raise RunError(
                f"`{model}.{x.op}({sequences.ref})` in the update of `{model}`: its rows depend on what `{model}` says "
                "in the same update; choose them before the update, or leave elements out by `where=` in a reduction"
            )


def _forwards(live: Iterable[Instruction], env: Env) -> list[_Forward]:
    found: dict[int, _Forward] = {}
    for x in live:
        record = env.record(x.args["sequences"])
        seqs, _ = readable(env.session.roles[x.attrs["model"]], record, x, env)
        found.setdefault(id(record), _Forward(record, seqs, [])).phases.append(x)
    return list(found.values())


def _parts(i: Instruction, session: Session, forwards: Sequence[_Forward]) -> list[Part] | list[None]:
    read = [(x.record.frame, x.seqs.lengths) for x in forwards]
    return parts_of(read, i.attrs["loss"]["uncut"], session.settings.micro or i.attrs["micro"])


# ---------------------------------------------------------------- gradients


def _at_once(batch: _Batch) -> None:
    env = batch.env.inner(values=_run_model(batch, batch.forwards))
    run_block(batch.dependent, env)
    torch.autograd.backward(_loss(batch, env))
    _log(batch, env)


def _in_one_pass(batch: _Batch) -> None:
    needed = set(batch.instruction.attrs["loss"]["dependent"])
    block = [x for x in batch.dependent if needed & {*x.outs}]
    for n, part in enumerate(batch.parts):
        env, forwards = _micro(batch, part)
        outputs = _run_model(batch, forwards, n)
        _store(batch, outputs, part)
        env = env.inner(values=dict(outputs), counts=batch.shares.counts, is_part=True)
        run_block(block, env)
        _backward(batch, _loss(batch, env), outputs)
    _idle(batch)
    _finish(batch, _gathered(batch, leaves=False))


def _backward(batch: _Batch, loss: Tensor, outputs: Mapping[str, Value]) -> None:
    """Take the gradient of a part of the loss: through all of a sharded model, whose ranks go through it together."""
    if batch.role.is_sharded:
        loss = loss + touch([v.tensor for v in outputs.values()])
    if loss.requires_grad:  # it doesn't where a filter left no row in this micro-batch
        torch.autograd.backward(loss)


def _idle(batch: _Batch) -> None:
    """The passes of other ranks that have more micro-batches; without gradients, the forward ones."""
    for _ in range(len(batch.parts), batch.shares.parts):
        if torch.is_grad_enabled():
            idle(batch.role, *(whole.want for whole in batch.forwards))
        else:
            for whole in batch.forwards:
                forward(batch.role, Sequences([], []), whole.want)


def _in_two_passes(batch: _Batch) -> None:
    with torch.no_grad():
        for n, part in enumerate(batch.parts):
            _, forwards = _micro(batch, part)
            _store(batch, _run_model(batch, forwards, n), part)
        _idle(batch)
    leaves = _gathered(batch, leaves=True)
    _finish(batch, leaves, backward=True)
    for n, part in enumerate(batch.parts):
        _, forwards = _micro(batch, part)
        out = _run_model(batch, forwards, n)
        pairs = [(v.tensor, leaves[name].tensor.grad, batch.outputs[name][n][1]) for name, v in out.items()]
        flowing = [(t, g[rows].to(t.dtype)) for t, g, rows in pairs if g is not None and t.requires_grad]
        if batch.role.is_sharded:
            reached = touch([v.tensor for v in out.values()])
            flowing.append((reached, torch.zeros_like(reached)))
        if flowing:
            torch.autograd.backward([t for t, _ in flowing], [g for _, g in flowing])
    _idle(batch)


def _run_model(batch: _Batch, forwards: Iterable[_Forward], part: int = 0) -> dict[str, Value]:
    """The trained model's outputs on some rows, by the names of their phases. part: which of the micro-batches."""
    _seed_dropout(batch, part)
    made: dict[str, tuple[Tensor, Frame]] = {}
    for x in forwards:
        result = forward(batch.role, x.seqs, x.want, temperature_of(x.record))
        made |= {p.out: (result[p.op], x.frame(p.op)) for p in x.phases}
    if batch.role.is_sharded:  # all ranks go back through its passes in the same order
        tied = tie([tensor for tensor, _ in made.values()])
        made = {name: (t, frame) for t, (name, (_, frame)) in zip(tied, made.items(), strict=True)}
    return {name: Value(t.cpu().to(batch.number), frame) for name, (t, frame) in made.items()}


def _seed_dropout(batch: _Batch, part: int) -> None:
    """Dropout is keyed by the optimizer step, so that a second pass and a resumed run drop the same.

    Each rank has a key of its own: other rows, other elements are dropped.
    """
    if batch.role.dropout > 0:
        session, model = batch.env.session, batch.instruction.attrs["model"]
        count, rank = session.trainers[model].count, session.channel(batch.instruction.mesh).index
        torch.manual_seed(noise.key(session.settings.seed, session.plan.flow, "dropout", model, count, part, rank))


def _micro(batch: _Batch, part: Part | None) -> tuple[Env, list[_Forward]]:
    """The minibatch's values for the rows of a micro-batch."""
    if part is None:
        return batch.env, batch.forwards
    env = batch.env.inner(values={name: part(value) for name, value in batch.env.values.items()})
    return env, [_selected(part, f) for f in batch.forwards]


def _selected(part: Part, whole: _Forward) -> _Forward:
    record = part(whole.record)
    assert isinstance(record, Record)
    return _Forward(record, whole.seqs.select(part.rows(whole.record.frame).tolist()), whole.phases)


def _store(batch: _Batch, outputs: Mapping[str, Value], part: Part | None) -> None:
    """Remember the outputs of a micro-batch, and which rows of the minibatch they are."""
    for whole in batch.forwards:
        for phase in whole.phases:
            frame = whole.frame(phase.op)
            rows = torch.arange(frame.size) if part is None else part.rows(frame)
            batch.outputs.setdefault(phase.out, []).append((outputs[phase.out].tensor.detach(), rows))


def _gathered(batch: _Batch, leaves: bool) -> dict[str, Value]:
    """The outputs of all micro-batches as values of the minibatch; as leaves, they gather gradients."""
    out: dict[str, Value] = {}
    for x in batch.forwards:
        for phase in x.phases:
            frame = x.frame(phase.op)
            whole = torch.zeros(frame.size, dtype=batch.number)
            for part, rows in batch.outputs.get(phase.out, ()):  # a rank may have no rows at all
                whole[rows] = part
            out[phase.out] = Value(whole.requires_grad_(leaves), frame)
    return out


def _finish(batch: _Batch, outputs: dict[str, Value], backward: bool = False) -> None:
    """The loss and the metrics of the whole minibatch, from the model's outputs."""
    env = batch.env.inner(values=dict(outputs))
    with torch.set_grad_enabled(backward):
        run_block(batch.dependent, env)
        loss = _loss(batch, env)
    if backward:
        torch.autograd.backward(loss)
    _log(batch, env)


@dataclass(frozen=True)
class _Shares:
    """What the ranks of the mesh have of a minibatch together.

    rows: the rows that a model reads. parts: the most micro-batches of one rank. counts: how many elements each mean
    over the minibatch pools, known before any of them is computed. is_one_part: whether all rows are in one
    micro-batch on one rank.
    """

    rows: int
    parts: int
    counts: dict[str, Tensor]
    is_one_part: bool


def _agree(
    i: Instruction,
    env: Env,
    forwards: Sequence[_Forward],
    dependent: Iterable[Instruction],
    parts: Sequence[Part | None],
) -> _Shares:
    """Learn of the other ranks' parts of a minibatch: counts alone, before anything is computed."""
    channel = env.session.channel(i.mesh)
    rows = sum(f.frame(op).size for f in forwards for op in f.want)
    if channel.size == 1 and len(parts) == 1:
        return _Shares(rows, 1, {}, is_one_part=True)
    counts = _denominators(i, env, forwards, dependent)
    own = torch.tensor([rows, len(parts), *counts.values()])
    every = channel.gather(own, env.told(i))
    sums = {name: every[:, 2 + n].sum()[None] for n, name in enumerate(counts)}
    return _Shares(int(every[:, 0].sum()), int(every[:, 1].max()), sums, is_one_part=False)


def _denominators(
    i: Instruction, env: Env, forwards: Sequence[_Forward], dependent: Iterable[Instruction]
) -> dict[str, int]:
    """How many elements of this rank's rows each mean over the minibatch pools."""
    needed = set(i.attrs["loss"]["dependent"])
    values = [*env.values.values(), *(f.record for f in forwards)]
    frames = {f.name: f for v in values for f in frames_of(v)}
    found: dict[str, int] = {}
    if i.attrs["loss"]["two_passes"]:
        return found
    for x in dependent:
        if x.out in needed and x.op == "reduce" and x.attrs["fn"] == "mean" and x.attrs.get("to") is None:
            pooled = frames[_axis(i, x)]
            where = env.value(x.args["where"]) if "where" in x.args else None
            found[x.out] = int(algebra.elements(Value(torch.zeros(pooled.size), pooled), None, where)[0])
    return found


def _axis(i: Instruction, reduction: Instruction) -> str:
    """The axis of what a reduction pools."""
    x = reduction.args["x"]
    assert isinstance(x, Name)
    made = next(y for y in i.body if y.out == x.ref)
    return made.type.split("[")[1].rstrip("]")


def _loss(batch: _Batch, env: Env) -> Tensor:
    minimize = next(x for x in batch.instruction.body if x.op == "minimize")
    loss = env.value(minimize.args["value"]).tensor
    if not torch.isfinite(loss):
        name, step = batch.instruction.attrs["model"], env.step.number
        raise RunError(
            f"the loss of `{name}` is {loss.item()} at step {step}: look for a division by zero, a logarithm of zero "
            "or an overflow of `exp` in it"
        )
    return loss


def _log(batch: _Batch, env: Env) -> None:
    i = batch.instruction
    env.log(i, f"loss.{i.attrs['model']}", float(_loss(batch, env).detach()))
    for x in i.body:
        if x.op == "metric":
            env.log(i, x.attrs["metric"], env.scalar(x.args["value"]))
