"""Updates: minibatches, micro-batches, gradients, optimizer steps.

A loss is a function of global sums over the minibatch, so its gradient is the same for every split:

* one micro-batch: the loss as it stands.
* a loss that is linear in its sums: each micro-batch's part with the minibatch's denominators, added up.
* any other loss: a pass without gradients gives the model's outputs for all rows, the loss's gradient with respect to
  them, and a second pass takes that gradient into the model.
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
from ..values import Any_, Frame, Record, Selection, Value
from .interpreter import HANDLERS, Env, frames_of, run_block
from .parts import Part, parts_of
from .phases import readable, temperature_of, token_frame
from .session import Session


def _update(i: Instruction, env: Env) -> None:
    name = i.attrs["model"]
    if env.step.skip_updates:
        env.session.counters.skipped_updates += 1
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
    orders = [_order(i, env, epoch, r) for r in roots]
    for part in zip(*(_cut(i, o) for o in orders), strict=True):
        selections = [Selection(r, rows) for r, rows in zip(roots, part, strict=True)]
        batch = env.inner()
        for name, value in outer.items():
            for selection in selections:
                value = selection(value)
            batch.values[name] = value
        yield batch


def _outer_names(i: Instruction, env: Env) -> set[str]:
    """What the block reads from outside, and a value on each axis that it expands something to."""
    read = {a.ref for x in i.body for a in x.args.values() if isinstance(a, Name)}
    axes = [str(x.attrs["to"]) for x in i.body if x.op == "expand"]
    return (read | {name for axis in axes for name in _names_on(axis, env)}) - {x.out for x in i.body}


def _names_on(axis: str, env: Env | None) -> list[str]:
    """The name of one value on an axis, of the innermost block that has one."""
    while env is not None:
        for name, value in env.values.items():
            if any(f.name == axis for f in frames_of(value)):
                return [name]
        env = env.outer
    return []


def _roots(i: Instruction, values: Iterable[Any_]) -> list[Frame]:
    found = {f.name: f for v in values for f in frames_of(v) if f.parent is None}
    return [found[name] for name in i.attrs["loss"]["roots"] if name in found]


def _order(i: Instruction, env: Env, epoch: int, root: Frame) -> Tensor:
    session = env.session
    parts = (session.settings.seed, session.plan.flow, "update", i.attrs["model"], env.step.number, epoch, root.name)
    return noise.permutation(root.size, *parts)


def _cut(i: Instruction, order: Tensor) -> Sequence[Tensor]:
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
    outputs: dict[str, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)

    @property
    def number(self) -> torch.dtype:
        return self.env.session.settings.number


def _train(i: Instruction, env: Env) -> bool:
    """One optimizer step on one minibatch; False if there was nothing to learn from."""
    session = env.session
    batch = _prepare(i, env)
    if not any(f.frame(op).size for f in batch.forwards for op in f.want):
        session.counters.empty_minibatches += 1
        return False
    if len(batch.parts) == 1:
        _at_once(batch)
    elif i.attrs["loss"]["two_passes"]:
        _in_two_passes(batch)
    else:
        _in_one_pass(batch)
    trainer = session.trainers[i.attrs["model"]]
    env.step.log(f"lr.{i.attrs['model']}", trainer.lr)
    env.step.log(f"grad_norm.{i.attrs['model']}", trainer.step())
    env.step.trained_tokens += sum(token_frame(f.record).size for f in batch.forwards)
    return True


def _prepare(i: Instruction, env: Env) -> _Batch:
    live = [x for x in i.body if x.attrs.get("version") == "live"]
    reached = {x.out for x in live}
    dependent: list[Instruction] = []
    for x in i.body:
        if x.out not in reached and any(isinstance(a, Name) and a.ref in reached for a in x.args.values()):
            reached.add(x.out)
            dependent.append(x)
    _refuse_choices(i, live, reached)
    run_block((x for x in i.body if x.out not in reached and x.op != "metric"), env)
    forwards = _forwards(live, env)
    role = env.session.roles[i.attrs["model"]]
    return _Batch(i, env, role, forwards, dependent, _parts(i, env.session, forwards))


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
    block = [x for x in batch.dependent if x.out in needed]
    counts = _denominators(batch, block)
    for n, part in enumerate(batch.parts):
        env, forwards = _micro(batch, part)
        outputs = _run_model(batch, forwards, n)
        _store(batch, outputs, part)
        env = env.inner(values=dict(outputs), counts=counts, is_part=True)
        run_block(block, env)
        loss = _loss(batch, env)
        if loss.requires_grad:  # it doesn't where a filter left no row in this micro-batch
            torch.autograd.backward(loss)
    _finish(batch, _gathered(batch, leaves=False))


def _in_two_passes(batch: _Batch) -> None:
    with torch.no_grad():
        for n, part in enumerate(batch.parts):
            _, forwards = _micro(batch, part)
            _store(batch, _run_model(batch, forwards, n), part)
    leaves = _gathered(batch, leaves=True)
    _finish(batch, leaves, backward=True)
    for n, part in enumerate(batch.parts):
        _, forwards = _micro(batch, part)
        out = _run_model(batch, forwards, n)
        pairs = [(v.tensor, leaves[name].tensor.grad, batch.outputs[name][n][1]) for name, v in out.items()]
        flowing = [(t, g[rows]) for t, g, rows in pairs if g is not None and t.requires_grad]
        if flowing:
            torch.autograd.backward([t for t, _ in flowing], [g.to(t.dtype) for t, g in flowing])


def _run_model(batch: _Batch, forwards: Iterable[_Forward], part: int = 0) -> dict[str, Value]:
    """The trained model's outputs on some rows, by the names of their phases. part: which of the micro-batches."""
    out: dict[str, Value] = {}
    _seed_dropout(batch, part)
    for x in forwards:
        if not len(x.seqs):
            out |= {p.out: Value(torch.zeros(0, dtype=batch.number), x.frame(p.op)) for p in x.phases}
            continue
        result = forward(batch.role, x.seqs, x.want, temperature_of(x.record))
        out |= {p.out: Value(result[p.op].cpu().to(batch.number), x.frame(p.op)) for p in x.phases}
    return out


def _seed_dropout(batch: _Batch, part: int) -> None:
    """Dropout is keyed by the optimizer step, so that a second pass and a resumed run drop the same."""
    if batch.role.dropout > 0:
        session, model = batch.env.session, batch.instruction.attrs["model"]
        count = session.trainers[model].count
        torch.manual_seed(noise.key(session.settings.seed, session.plan.flow, "dropout", model, count, part))


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
    assert part is not None
    for whole in batch.forwards:
        for phase in whole.phases:
            kept = batch.outputs.setdefault(phase.out, [])
            kept.append((outputs[phase.out].tensor.detach(), part.rows(whole.frame(phase.op))))


def _gathered(batch: _Batch, leaves: bool) -> dict[str, Value]:
    """The outputs of all micro-batches as values of the minibatch; as leaves, they gather gradients."""
    out: dict[str, Value] = {}
    for x in batch.forwards:
        for phase in x.phases:
            frame = x.frame(phase.op)
            whole = torch.zeros(frame.size, dtype=batch.number)
            for part, rows in batch.outputs[phase.out]:
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


def _denominators(batch: _Batch, block: Iterable[Instruction]) -> dict[str, Tensor]:
    """How many elements each mean over the minibatch pools, known before any of them is computed."""
    frames = {f.name: f for v in _all_values(batch) for f in frames_of(v)}
    found: dict[str, Tensor] = {}
    for x in block:
        if x.op == "reduce" and x.attrs["fn"] == "mean" and x.attrs.get("to") is None:
            pooled = frames[_axis(batch, x)]
            where = batch.env.value(x.args["where"]) if "where" in x.args else None
            found[x.out] = algebra.elements(Value(torch.zeros(pooled.size), pooled), None, where)
    return found


def _all_values(batch: _Batch) -> Iterable[Any_]:
    yield from batch.env.values.values()
    yield from (f.record for f in batch.forwards)


def _axis(batch: _Batch, reduction: Instruction) -> str:
    """The axis of what a reduction pools."""
    x = reduction.args["x"]
    assert isinstance(x, Name)
    made = next(y for y in batch.instruction.body if y.out == x.ref)
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
    env.step.log(f"loss.{batch.instruction.attrs['model']}", float(_loss(batch, env).detach()))
    for x in batch.instruction.body:
        if x.op == "metric":
            env.step.log(x.attrs["metric"], env.scalar(x.args["value"]))
