"""Executes blocks of instructions: one handler per operator."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ...compiler.plan import Instruction, Operand
from ...compiler.plan import Value as Name
from .. import algebra
from ..deals import Deal, even
from ..errors import RunError
from ..numbers import NotNumbersError, numeric
from ..partials import partial
from ..values import Any_, Frame, Record, Value, dealt, innermost, keep_rows, root
from .session import Session, source_name


@dataclass
class Step:
    """What one step logs, what states it leaves, and whether a short `collect` took its updates away.

    failed: of a step that is made ahead, whether it couldn't be made, which matters only if it is still needed.
    """

    number: int
    next_states: dict[str, float | bool] = field(default_factory=dict)
    logged: dict[str, list[float]] = field(default_factory=dict)
    skip_updates: bool = False
    failed: bool = False
    generated_tokens: int = 0
    trained_tokens: int = 0

    def log(self, name: str, value: float) -> None:
        self.logged.setdefault(name, []).append(value)

    def take_over(self, logged: Mapping[str, list[float]], skip_updates: bool) -> None:
        """Count as this step's what was made for it ahead of time."""
        for name, values in logged.items():
            self.logged.setdefault(name, []).extend(values)
        self.skip_updates |= skip_updates

    def means(self) -> dict[str, float]:
        return {name: sum(values) / len(values) for name, values in self.logged.items()}


@dataclass
class Env:
    """The values of a block, and around it those of the blocks it stands in.

    counts: the denominators of means whose elements are in several micro-batches. is_part: whether this is one of them,
        and the same is computed again for all.
    """

    session: Session
    step: Step
    values: dict[str, Any_] = field(default_factory=dict)
    outer: "Env | None" = None
    counts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    is_part: bool = False

    def __getitem__(self, name: str) -> Any_:
        if name in self.values:
            return self.values[name]
        if self.outer is None:
            raise KeyError(name)
        return self.outer[name]

    def has(self, name: str) -> bool:
        """Whether this rank has a value of that name."""
        return name in self.values or (self.outer is not None and self.outer.has(name))

    def inner(self, **changes: Any) -> "Env":
        return Env(self.session, self.step, outer=self, **changes)

    def named(self) -> list[tuple[str, Any_]]:
        """The values of this block, those that its instructions name first: what is in a `collect` is `region/name`."""
        return sorted(self.values.items(), key=lambda item: "/" in item[0])

    def operand(self, value: Operand) -> Any:
        """A value of the program, or a constant as it stands."""
        return self[value.ref] if isinstance(value, Name) else value

    def value(self, value: Operand) -> Value:
        found = self.operand(value)
        assert isinstance(found, Value), f"{value} is no plain value"
        return found

    def record(self, value: Operand) -> Record:
        found = self.operand(value)
        assert isinstance(found, Record), f"{value} is no record"
        return found

    def scalar(self, value: Operand) -> float:
        found = self.operand(value)
        return float(numeric(found).tensor.detach()) if isinstance(found, Value) else float(found)

    def log(self, i: Instruction, name: str, value: float) -> None:
        """Record a number, once for all the ranks that have it."""
        if self.session.speaks(i.mesh):
            self.step.log(name, value)

    def told(self, i: Instruction) -> str:
        """An instruction as a message about a wait calls it."""
        return f"step {self.step.number}: {self.session.names.instruction(i)}"

    def called(self, operand: Operand) -> str:
        """An operand as a message calls it."""
        return self.session.names(operand)


Handler = Callable[[Instruction, Env], Any_ | None]


def run_block(block: Iterable[Instruction], env: Env) -> None:
    """Execute instructions in order; each result is bound to its name."""
    for instruction in block:
        env.session.world.place = env.told(instruction)
        try:
            handler, profile = HANDLERS[instruction.op], env.session.profile
            result = profile.timed(handler, instruction, env) if profile else handler(instruction, env)
        except NotNumbersError as error:
            raise error.named(_blamed(error, instruction, env)) from None
        if result is not None:
            env.values[instruction.out] = result


def _blamed(error: NotNumbersError, i: Instruction, env: Env) -> str:
    """What the value that holds no numbers is called."""
    for operand in i.args.values():
        if isinstance(operand, Name) and getattr(env[operand.ref], "data", None) is error.value.data:
            return f"`{env.called(operand)}`"
    return f"a value that `{env.called(Name(i.out))}` reads"


# ---------------------------------------------------------------- values


def _read(i: Instruction, env: Env) -> Record:
    session = env.session
    table, reader = session.table(i), session.reader(i)
    if i.attrs.get("all"):
        position, count, rows = 0, len(table), list(range(len(table)))
    else:
        count = i.attrs["batch"]
        position = session.cursors.get(source_name(i), env.step.number * count)
        rows = reader.indices(position, count)
    frame = _root(i, env, torch.arange(position, position + count))
    here = range(count) if frame.deal is None else frame.deal.mine().tolist()
    columns = table.take([rows[k] for k in here])
    return Record("rows", frame, {n: _column(c, frame, session) for n, c in columns.items()})


def _root(i: Instruction, env: Env, ids: torch.Tensor) -> Frame:
    """The frame of a read. A value that was made ahead of this step brings the frame of the same read with it.

    Rows lie as they were dealt when others of the same read came here; before that, evenly.
    """
    site = site_of(i)
    known = next((f for f in frames_named(env, f"{source_name(i)}.prompt") if _is_of(f, ids, site)), None)
    if known is not None:
        return known
    name, channel = f"{source_name(i)}.prompt", env.session.channel(i.mesh)
    if not site:
        return root(name, len(ids), ids)
    return dealt(name, Deal(ids, even(len(ids), channel.size), channel.index, site))


def _is_of(frame: Frame, ids: torch.Tensor, site: str) -> bool:
    """Whether a frame is of these draws, at a site."""
    if frame.deal is not None:
        return frame.deal.site == site and torch.equal(frame.deal.ids, ids)
    return not site and frame.ids is not None and torch.equal(frame.ids, ids)


def site_of(i: Instruction) -> str:
    """Where the rows of a result lie, as their deal says it; nothing where all rows are on each rank."""
    return f"{i.layout} @ {i.mesh}" if i.layout.startswith("sharded") else ""


def _column(column: list[Any], frame: Frame, session: Session) -> Value:
    """A data column: numbers become tensors, everything else stays as it is."""
    kinds = {type(x) for x in column}
    if kinds <= {bool}:
        return Value(torch.tensor(column, dtype=torch.bool), frame)
    if kinds <= {int}:
        return Value(torch.tensor(column, dtype=torch.long), frame)
    if kinds <= {int, float}:
        return Value(torch.tensor(column, dtype=session.settings.number), frame)
    return Value(column, frame)


def _field(i: Instruction, env: Env) -> Value:
    record = env.record(i.args["record"])
    if i.attrs["field"] not in record.fields:
        columns = ", ".join(f"`{n}`" for n in record.fields)
        raise RunError(f"`{env.called(i.args['record'])}` has no `{i.attrs['field']}`; it has {columns}")
    return record.fields[i.attrs["field"]]


def _map(i: Instruction, env: Env) -> Value:
    try:
        return algebra.pointwise(i.attrs["fn"], [env.operand(a) for a in i.args.values()])
    except ZeroDivisionError:
        raise RunError(f"step {env.step.number}: `{env.called(Name(i.out))}` divides an integer by zero") from None


def _reduce(i: Instruction, env: Env) -> Value:
    x = env.value(i.args["x"])
    where = env.value(i.args["where"]) if "where" in i.args else None
    target = _frame(i.attrs.get("to"), [x, where])
    fn, count = i.attrs["fn"], env.counts.get(i.out)
    if i.layout == PARTIAL and not env.is_part:
        return Value(partial(fn, x, where))
    q = env.scalar(i.args["q"]) if "q" in i.args else 0.5
    if fn == "mean" and count is None and not env.is_part:
        env.session.counters.empty_means += int((algebra.elements(x, target, where) == 0).sum())
    with _reduction_errors(i, env, fn, i.args["x"]):
        return algebra.reduce(fn, x, target, where, q, count)


@contextmanager
def _reduction_errors(i: Instruction, env: Env, fn: str, pooled: Operand) -> Iterator[None]:
    try:
        yield
    except algebra.ReductionError as error:
        raise RunError(f"step {env.step.number}: {fn}({env.called(pooled)}): {error}") from None


PARTIAL = "partial"
"""The layout of statistics that an `all_reduce` is still to combine."""


def _frame(name: str | None, values: Iterable[Value | None]) -> Frame | None:
    """The frame that an instruction names, above its operands."""
    if name is None:
        return None
    inner = innermost(v.frame for v in values if v is not None)
    assert inner is not None
    return inner.find(name)


def _rank(i: Instruction, env: Env) -> Value:
    x = env.value(i.args["x"])
    return algebra.rank(x, _frame(i.attrs.get("to"), [x]))


def _expand(i: Instruction, env: Env) -> Value:
    x = env.operand(i.args["x"])
    frame = find_frame(env, i.attrs["to"], site_of(i))
    return x.on(frame) if isinstance(x, Value) else Value(torch.full((frame.size,), x), frame)


def find_frame(env: Env, name: str, site: str = "") -> Frame:
    """The frame of an axis among all values in scope, at a site."""
    for frame in frames_named(env, name):
        if is_at(frame, site):
            return frame
    raise KeyError(name)


def is_at(frame: Frame, site: str) -> bool:
    """Whether the rows of a frame lie at a site."""
    deal = frame.chain()[-1].deal
    return site == ("" if deal is None else deal.site)


def frames_named(env: Env, name: str) -> Iterator[Frame]:
    """The frames of an axis among all values in scope, innermost block first."""
    here: Env | None = env
    while here is not None:
        for _, value in here.named():
            yield from (frame for frame in frames_of(value) if frame.name == name)
        here = here.outer


def known_frame(env: Env, frame: Frame) -> Frame:
    """The frame itself, or the one in scope that has its rows: what was made ahead of this step is on that one."""
    return next((known for known in frames_named(env, frame.name) if known.is_like(frame)), frame)


def frames_of(value: Any_) -> Iterable[Frame]:
    """Every frame a value is on."""
    if isinstance(value, Record):
        for inner in value.fields.values():
            yield from frames_of(inner)
        yield from value.frame.chain()
    elif value.frame is not None:
        yield from value.frame.chain()


def _keep(i: Instruction, env: Env) -> Record:
    record = env.record(i.args["record"])
    where = env.operand(i.args["where"])
    kept = (
        numeric(where).on(record.frame).tensor.bool()
        if isinstance(where, Value)
        else torch.full((record.frame.size,), bool(where))
    )
    return keep_rows(record, i.attrs["rows"], kept, i.attrs.get("tokens"), lambda frame: known_frame(env, frame))


def _state(i: Instruction, env: Env) -> Value:
    value = env.session.states[i.attrs["state"]]
    return Value(torch.tensor(value) if isinstance(value, bool) else torch.tensor(float(value), dtype=torch.float64))


def _step(i: Instruction, env: Env) -> Value:
    return Value(torch.tensor(env.step.number))


# ---------------------------------------------------------------- statements


def _metric(i: Instruction, env: Env) -> None:
    env.log(i, i.attrs["metric"], env.scalar(i.args["value"]))


def _record(i: Instruction, env: Env) -> None:
    """The mean over the rows of all ranks."""
    value = env.value(i.args["value"])
    if not isinstance(value.data, torch.Tensor):
        return
    here = torch.stack([value.tensor.double().sum(), torch.tensor(float(value.tensor.numel()), dtype=torch.float64)])
    total, count = env.session.channel(i.mesh).gather(here, env.told(i)).sum(0).tolist()
    if count:
        env.log(i, i.attrs["metric"], total / count)


def _next_state(i: Instruction, env: Env) -> None:
    """The new value holds from the next step on: every read of this step sees the old one."""
    name, value = i.attrs["state"], env.scalar(i.args["value"])
    is_bool = isinstance(env.session.plan.states[name], bool)
    env.step.next_states[name] = bool(value) if is_bool else value


def _snapshot(i: Instruction, env: Env) -> None:
    """Keep a model's weights until the end of the step."""
    env.session.take_snapshot(i.attrs["model"])


def _next_model(i: Instruction, env: Env) -> None:
    session = env.session
    role = session.roles[i.attrs["model"]]
    source = session.read_role(i.attrs.get("holding", i.attrs["source"]), bool(i.attrs.get("snapshot")))
    if "decay" in i.attrs:
        role.lerp_from(source, i.attrs["decay"])
    else:
        role.copy_from(source)
    session.changed(i.attrs["model"])


HANDLERS: dict[str, Handler] = {
    "read": _read,
    "field": _field,
    "map": _map,
    "reduce": _reduce,
    "rank": _rank,
    "expand": _expand,
    "keep": _keep,
    "state": _state,
    "step": _step,
    "metric": _metric,
    "record": _record,
    "next_state": _next_state,
    "snapshot": _snapshot,
    "next_model": _next_model,
}
"""By operator. The modules of phases, calls, collectives, regions and updates add theirs."""
