"""Which phases a plan has, and which wait for which: from what its instructions read and which versions they need."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .. import plan as p
from .decision import Kind, Operator

SCORING = ("logprobs", "entropy", "values", "score")
KINDS: Mapping[str, Kind] = {"update": "train", "generate": "generate", **dict.fromkeys(SCORING, "forward")}


@dataclass(frozen=True)
class Found:
    """A phase of a plan: the instructions it stands for, and the phases it follows."""

    name: str
    model: str
    kind: Kind
    instructions: tuple[p.Instruction, ...]
    after: tuple[str, ...]
    ahead: int
    beside: str | None


@dataclass(frozen=True)
class Dependencies:
    """All phases in the order of the plan, the operators between them, and what had to be assumed."""

    phases: tuple[Found, ...]
    operators: tuple[Operator, ...]
    assumptions: tuple[str, ...]


@dataclass
class _Reader:
    """Walks a plan. sources: the phases that the value of each name is made of, none between them and it."""

    phases: dict[str, list[p.Instruction]] = field(default_factory=dict)
    after: dict[str, list[str]] = field(default_factory=dict)
    ahead: dict[str, int] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    operators: dict[str, Operator] = field(default_factory=dict)
    updated: dict[str, str] = field(default_factory=dict)

    def block(self, block: Iterable[p.Instruction], ahead: int, inside: str | None = None) -> None:
        for i in block:
            self.instruction(i, ahead, inside)

    def instruction(self, i: p.Instruction, ahead: int, inside: str | None) -> None:
        if i.op == "update":
            self._update(i, ahead)
        elif i.op in KINDS:
            self._phase(i, ahead, inside, i.reads)
        else:
            self.block(i.body, ahead, inside)
            made_in = [x.out for x in i.body] if i.op == "collect" else []
            self.sources[i.out] = self._sources([*i.reads, *made_in, *_region(i)])
            if i.op == "call":
                self._operator(i)

    def _update(self, i: p.Instruction, ahead: int) -> None:
        model = i.attrs["model"]
        name = f"{model}.update"
        own = [x for x in i.body if x.attrs.get("version") == "live" and x.op in KINDS]
        self.block((x for x in i.body if x not in own), ahead, name)
        made = {x.out for x in i.walk()}
        self._phase(i, ahead, None, [r for x in i.walk() for r in x.reads if r not in made])
        inner = [n for n, host in self.beside.items() if host == name]
        self._follow(name, [*inner, *(n for x in i.body for n in self.sources.get(x.out, ()))])
        self.updated[model] = name

    def _phase(self, i: p.Instruction, ahead: int, inside: str | None, reads: Iterable[str]) -> None:
        name = f"{i.attrs['model']}.{i.op}"
        self.phases.setdefault(name, []).append(i)
        self.after.setdefault(name, [])
        self.ahead.setdefault(name, ahead)
        if inside is not None:
            self.beside.setdefault(name, inside)
        self._follow(name, self._sources(reads))
        if i.attrs.get("version") == "next" and i.attrs["model"] in self.updated:
            self._follow(name, [self.updated[i.attrs["model"]]])
        self.sources[i.out] = (name,)

    def _follow(self, name: str, phases: Iterable[str]) -> None:
        """Note what a phase waits for. A phase that runs several times in a step is counted where it runs first."""
        order = list(self.phases)
        earlier = [x for x in phases if x != name and order.index(x) < order.index(name)]
        same_block = [x for x in earlier if self.ahead[x] == self.ahead[name]]
        self.after[name] = list(dict.fromkeys([*self.after[name], *same_block]))

    def _operator(self, i: p.Instruction) -> None:
        waits = self.sources[i.out]
        self.operators[i.out] = Operator(i.out, str(i.attrs["operator"]), waits[0] if waits else "controller", waits)

    def _sources(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s for n in names for s in self.sources.get(n, ())))

    def read_before_update(self) -> None:
        """A phase that reads version t of a model comes before the update that makes t+1, unless of a snapshot."""
        for name, found in self.phases.items():
            update = self.updated.get(found[0].attrs["model"])
            now = any(i.attrs.get("version") == "now" and not i.attrs.get("snapshot") for i in found)
            if update and name != update and now and name not in self.beside:
                self._follow(update, [name])


def dependencies(plan: p.Plan) -> Dependencies:
    """The phases of a plan for one process, in its order, and what each waits for in its own part of the period.

    What runs ahead of the step doesn't wait for it, nor it for them: their values were made a step before.
    """
    reader = _Reader()
    for ahead in plan.ahead:
        reader.block(ahead.program, ahead.staleness)
    reader.block(plan.program, 0)
    reader.read_before_update()
    phases = tuple(
        Found(
            name,
            found[0].attrs["model"],
            KINDS[found[0].op],
            tuple(found),
            tuple(_nearest(reader.after, reader.after[name])),
            reader.ahead[name],
            reader.beside.get(name),
        )
        for name, found in reader.phases.items()
    )
    return Dependencies(phases, tuple(reader.operators.values()), _assumed(phases))


def _nearest(after: Mapping[str, list[str]], names: Iterable[str]) -> list[str]:
    """Those of some phases that none of the others waits for already."""
    names = list(names)

    def earlier(name: str) -> set[str]:
        return {y for x in after[name] for y in (x, *earlier(x))}

    implied = {y for x in names for y in earlier(x)}
    return [x for x in names if x not in implied]


def _assumed(phases: Iterable[Found]) -> tuple[str, ...]:
    """What is simplified of phases inside an update."""
    inside = (x for x in phases if x.beside is not None)
    return tuple(
        f"{x.name} runs inside {x.beside}: it counts as a phase before it, on the same devices" for x in inside
    )


def _region(i: p.Instruction) -> list[str]:
    return [str(i.attrs["region"])] if i.op == "collected" else []
