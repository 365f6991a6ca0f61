"""What runs ahead of the step: draws with `max_staleness=k`, made k steps early, and the queues they wait in.

What is made of such draws alone may run ahead too, behind them, with what their queue holds for its step.

On many ranks a draw is exchanged after the step: then those who made it, and those who will read it from the queue,
have been at work at the same time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...compiler.plan import Ahead
from ..errors import RunError
from ..values import Any_
from .interpreter import Env, Step, run_block
from .queue import Packer, Unpacker
from .regions import ShortError
from .session import Session


@dataclass
class Drawn:
    """What was made ahead for one step: its values, what it logged, and whether a short `collect` was skipped.

    env: where it was made, until it is exchanged. owners: in a commit, who had the rows of each copy (see `waiting`).
    """

    values: dict[str, Any_]
    logged: dict[str, list[float]] = field(default_factory=dict)
    skip_updates: bool = False
    env: Env | None = None
    owners: dict[str, list[int]] = field(default_factory=dict)


Queues = dict[int, dict[int, Drawn]]
"""By staleness, then by the step that will read them."""


def run_ahead(session: Session, queues: Queues, number: int, closing: bool = False) -> list[Drawn]:
    """Make what later steps will read, with the weights of now, and hand out what step `number` reads.

    At version v the draw of step v + k is made; at version 0 those of steps 0 to k are. That holds at the end of a run
    too: what is drawn beyond it waits in the last commit, so that a run made longer later is as if it had never ended.
    closing: this is for what runs after the last step, which reads on where the data has ended, and draws no further.
    The last draw is to be exchanged by `exchange`, after the step.
    """
    for ahead in session.plan.ahead:
        queue = queues.setdefault(ahead.staleness, {})
        last = number if closing else _last(session, ahead, number)
        for future in range(max(queue, default=number - 1) + 1, last + 1):
            if not closing and ahead.source and future not in queues[ahead.source]:
                break  # the data has ended
            drawn = (_made if closing or ahead.source else _produced)(session, queues, ahead, future)
            if drawn is None:
                break
            queue[future] = drawn
            if future <= number or future < last:
                _exchange(session, ahead, queue, future)
    return [queues[ahead.staleness].pop(number) for ahead in session.plan.ahead]


def _last(session: Session, ahead: Ahead, number: int) -> int:
    """The last step that may be made now.

    What is made of draws that wait in a queue can be made at any time: not before it is known to be needed, so that
    nothing fails for the sake of a step that the run doesn't have.
    """
    last = number + ahead.staleness
    return min(last, session.steps - 1) if ahead.source else last


def exchange(session: Session, queues: Queues) -> None:
    """Bring what was made ahead during the step to those who will read it."""
    for ahead in session.plan.ahead:
        queue = queues[ahead.staleness]
        for number in [n for n, drawn in queue.items() if drawn.env is not None]:
            _exchange(session, ahead, queue, number)


def _exchange(session: Session, ahead: Ahead, queue: dict[int, Drawn], number: int) -> None:
    env = queue[number].env
    assert env is not None
    for instruction in ahead.exchange:
        run_block([instruction], env)
        if env.step.failed:  # on other ranks: it couldn't be made, and isn't needed before the end
            del queue[number]
            return
    values = {name: env[name] for name in ahead.keeps if env.has(name)}
    queue[number] = Drawn(values, env.step.logged, env.step.skip_updates)


def _produced(session: Session, queues: Queues, ahead: Ahead, number: int) -> Drawn | None:
    """The draw of one step; None if there is no more data, or it can't be made and isn't needed before the end."""
    if session.is_exhausted():
        return None
    cursors = dict(session.cursors)
    try:
        return _made(session, queues, ahead, number)
    except RunError as error:
        is_common = session.world.size == 1 or isinstance(error, ShortError)
        if number < session.steps or not is_common:
            raise
        session.cursors = cursors
        return _given_up(session, ahead, number)


def _given_up(session: Session, ahead: Ahead, number: int) -> Drawn | None:
    """What tells ranks that wait for a draw that there is none; None if there are no such ranks."""
    if not any(i.op == "announce" for i in ahead.exchange):
        return None
    return Drawn({}, env=Env(session, Step(number, failed=True)))


def _made(session: Session, queues: Queues, ahead: Ahead, number: int) -> Drawn:
    """known: what other queues hold for the step, so that a read they share is on one frame."""
    known = {name: v for q in queues.values() if number in q for name, v in q[number].values.items()}
    env = Env(session, Step(number), known)
    run_block(ahead.program, env)
    return Drawn({}, env=env)


# ---------------------------------------------------------------- commits


def pack_queues(queues: Queues, packer: Packer) -> dict[str, Any]:
    """The queues as JSON, their tensors in the packer."""
    return {str(k): {str(step): _packed(drawn, packer) for step, drawn in q.items()} for k, q in queues.items()}


def _packed(drawn: Drawn, packer: Packer) -> dict[str, Any]:
    values = {name: packer.pack(value) for name, value in drawn.values.items()}
    return {"values": values, "logged": drawn.logged, "skip_updates": drawn.skip_updates, "owners": drawn.owners}


def unpack_queues(packed: dict[str, Any], unpacker: Unpacker) -> Queues:
    """The reverse of `pack_queues`."""
    return {int(k): {int(step): _unpacked(d, unpacker) for step, d in q.items()} for k, q in packed.items()}


def _unpacked(packed: dict[str, Any], unpacker: Unpacker) -> Drawn:
    values = {name: unpacker.unpack(value) for name, value in packed["values"].items()}
    return Drawn(values, packed["logged"], packed["skip_updates"], owners=packed["owners"])


def names_ahead(session: Session) -> Sequence[str]:
    """The names of all values that come out of queues."""
    return [name for ahead in session.whole.ahead for name in ahead.keeps]
