"""What ranks do together: rows and weights move, statistics become results, scalars are told to others."""

import msgspec
import torch
from torch import Tensor

from ...compiler import plan
from ...compiler.plan import Instruction
from ...compiler.plan import Value as Name
from ..algebra import ReductionError
from ..deals import by_length, even
from ..errors import RunError
from ..models.weights import Holding, Route, send_weights
from ..partials import combined, elements
from ..ranks.rows import move
from ..ranks.whole import gather, gather_numbers, own, spread
from ..values import Record, Value
from .interpreter import HANDLERS, Env, find_frame, known_frame, site_of
from .session import Session
from .updates import minibatch_order, minibatches_of

# ---------------------------------------------------------------- rows


def _move(i: Instruction, env: Env) -> None:
    """Bring rows to the ranks of another mesh, or to other ranks of the same."""
    session, axis = env.session, i.attrs["axis"]
    source = session.member(i.attrs["source"])
    values = {copy: env[v.ref] for copy, v in i.args.items() if isinstance(v, Name)} if source is not None else {}
    moved = move(
        values,
        i.attrs.get("fields", {}),
        axis=axis,
        source=source,
        target=session.member(i.mesh),
        union=session.channel(i.groups[-1]),
        deal=None if i.attrs["deal"] == "known" else lambda ids, lengths: dealt_for(i, axis, env, lengths),
        known=lambda frame: known_frame(env, frame),
        root=lambda: find_frame(env, axis, site_of(i)),
        site=site_of(i),
        what=env.told(i),
    )
    env.values.update(moved)


def dealt_for(i: Instruction, axis: str, env: Env, lengths: Tensor) -> Tensor:
    """Which rank of the mesh gets each row: as many tokens for each, in every minibatch that they will train on."""
    size = len(env.session.whole.ranks_of(i.mesh))
    if i.layout == EVENLY:
        return even(len(lengths), size)
    return by_length(lengths, _minibatches(i, axis, env, len(lengths)), size)


EVENLY = "sharded evenly"
"""The layout of rows whose lengths don't matter yet."""


def _minibatches(i: Instruction, axis: str, env: Env, rows: int) -> list[Tensor]:
    """The rows of every minibatch of the updates on a mesh, of all epochs."""
    updates = [u for u in env.session.whole.walk() if u.op == "update" and u.mesh == i.mesh]
    reading = [u for u in updates if axis in u.attrs["loss"]["roots"]]
    orders = [(u, minibatch_order(u, env, epoch, axis, rows)) for u in reading for epoch in range(u.attrs["epochs"])]
    return [part for u, order in orders for part in minibatches_of(u, order)]


def _gather(i: Instruction, env: Env) -> None:
    values = {copy: env[v.ref] for copy, v in i.args.items() if isinstance(v, Name)}
    channel = env.session.channel(i.mesh)
    env.values.update(gather(values, channel, env.told(i), lambda frame: known_frame(env, frame)))


def _own(i: Instruction, env: Env) -> Value | Record:
    whole = env.operand(i.args["x"])
    frame = find_frame(env, i.attrs["axis"], site_of(i))
    part: Value | Record = own(whole, frame, env.session.channel(i.mesh), env.told(i))
    return part


def _spread(i: Instruction, env: Env) -> Value:
    return spread(env.value(i.args["x"]), env.session.channel(i.mesh), env.told(i))


# ---------------------------------------------------------------- numbers


def _all_reduce(i: Instruction, env: Env) -> Value:
    """The result of all ranks' statistics; in a micro-batch, whose parts are added up at the end, what it is there."""
    part, session, fn = env.value(i.args["x"]), env.session, i.attrs["fn"]
    if env.is_part:
        return part
    stats = gather_numbers(part.tensor, session.channel(i.mesh), env.told(i))
    if fn == "mean" and not elements(stats):
        session.counters.empty_means += session.speaks(i.mesh)
    try:
        return Value(combined(fn, stats, torch.long if i.type == "int" else session.settings.number))
    except ReductionError as error:
        raise RunError(f"step {env.step.number}: {env.called(Name(i.out))}: {error}") from None


def _share(i: Instruction, env: Env) -> Value:
    """A scalar of another mesh, or one that all have to agree on: the first rank there has the word."""
    session, channel = env.session, env.session.channel(i.groups[-1])
    source = channel.ranks.index(session.whole.ranks_of(i.attrs["source"])[0])
    own = env.value(i.args["x"]).tensor if channel.index == source else None
    data = b"" if own is None else msgspec.msgpack.encode((str(own.dtype).removeprefix("torch."), own.item()))
    dtype, number = msgspec.msgpack.decode(channel.share(data, env.told(i), source))
    return Value(torch.tensor(number, dtype=getattr(torch, dtype)))


def _announce(i: Instruction, env: Env) -> None:
    """What all ranks have to know of a `collect`: how far its reads are, and whether updates are left out."""
    session, channel = env.session, env.session.channel(i.mesh)
    source = session.whole.ranks_of(i.attrs["source"])[0]
    news = {"cursors": session.cursors, "skip": env.step.skip_updates, "failed": env.step.failed}
    shared = msgspec.json.decode(channel.share(msgspec.json.encode(news), env.told(i), source))
    session.cursors.update(shared["cursors"])
    env.step.skip_updates |= shared["skip"]
    env.step.failed = env.step.failed or shared["failed"]


# ---------------------------------------------------------------- weights


def _weights(i: Instruction, env: Env) -> None:
    """Give a holding the newest weights of its model, if it has others."""
    session, channel = env.session, env.session.channel(i.groups[-1])
    model, holding, what = i.attrs["model"], i.attrs["holding"], env.told(i)
    kept = bool(i.attrs.get("snapshot"))
    first = channel.ranks.index(session.whole.ranks_of(i.groups[0])[0])
    version = int.from_bytes(channel.share(_version(session, model, kept).to_bytes(8, "big"), what, first), "big")
    source = session.read_role(model, kept) if session.member(i.groups[0]) else None
    target = session.roles[holding] if session.member(i.mesh) else None
    is_old = torch.tensor([target is not None and session.versions.get(holding, 0) != version])
    if bool(channel.gather(is_old, what).any()):
        send_weights(source, target, _route(i, env))
        session.versions[holding] = version


def _route(i: Instruction, env: Env) -> Route:
    session = env.session
    held = {h.name: h for h in session.whole.holdings}
    source, target = (_end(session, held[name]) for name in (i.attrs["model"], i.attrs["holding"]))
    return Route(source, target, session.channel(i.groups[-1]), session.device_groups[i.groups[-1]])


def _end(session: Session, holding: plan.Holding) -> Holding:
    return Holding(tuple(session.whole.ranks_of(holding.mesh)), holding.fsdp, session.dtype_of(holding.model))


def _version(session: Session, model: str, snapshot: bool) -> int:
    kept = session.snapshots.get(model) if snapshot else None
    return kept.version if kept else session.versions.get(model, 0)


HANDLERS |= {
    "move": _move,
    "gather": _gather,
    "own": _own,
    "spread": _spread,
    "all_reduce": _all_reduce,
    "share": _share,
    "announce": _announce,
    "weights": _weights,
}
