"""Which weights lie where: of each model one holding that is trained or replaced, and others that follow it."""

from collections.abc import Iterable

from ... import plan as p
from ...placement import Placement, Spot

SCORING = ("logprobs", "entropy", "values", "score")


class Holdings:
    """The holdings of a plan, in the order in which they were asked for."""

    def __init__(self, plan: p.Plan, placement: Placement) -> None:
        self._placement = placement
        self._changing = {m.name for m in plan.models if m.trained or m.replaced}
        self._homes = {name: self._home(plan, name) for name in self._changing}
        updates = [i for i in plan.walk() if i.op == "update"]
        self._inside = {x.out: self._homes[u.attrs["model"]] for u in updates for x in u.walk()}
        self._homes |= {m.name: self._first(plan, m.name) for m in plan.models if m.name not in self._changing}
        self._all: dict[tuple[str, Spot], p.Holding] = {}
        for model in plan.models:
            if model.name in self._changing:
                self.at(model.name, self._homes[model.name])

    @property
    def all(self) -> tuple[p.Holding, ...]:
        return tuple(self._all.values())

    def changes(self, model: str) -> bool:
        """Whether a step may give the model other weights."""
        return model in self._changing

    def home(self, model: str) -> Spot:
        """Where the model is trained or replaced; of one that never changes, where it is read first."""
        return self._homes[model]

    def spot(self, i: p.Instruction) -> Spot:
        """Where a phase runs: in an update, where that is."""
        return self._inside.get(i.out) or self._placement.spot(f"{i.attrs['model']}.{i.op}")

    def of(self, i: p.Instruction) -> p.Holding:
        """The weights that a phase reads. To generate, a rank needs all of them."""
        spot, home = self.spot(i), self._homes[i.attrs["model"]]
        if i.op == "generate":
            spot = Spot(spot.first, spot.ranks, spot.ranks)
        is_same = spot.mesh == home.mesh and spot.fsdp == home.fsdp
        return self.at(i.attrs["model"], home if is_same else spot)

    def at(self, model: str, spot: Spot) -> p.Holding:
        key = (model, spot)
        if key not in self._all:
            names = {h.name for h in self._all.values()}
            name = model if spot == self._homes[model] else f"{model}@{spot.mesh}"
            while name in names:
                name += f".fsdp{spot.fsdp}"
            self._all[key] = p.Holding(name, model, spot.mesh, spot.dp, spot.fsdp)
        return self._all[key]

    def followers(self, model: str) -> set[str]:
        """The holdings that are out of date when the model has changed."""
        return {h.name for h in self._all.values() if h.model == model and h.name != model}

    def spots(self) -> Iterable[Spot]:
        return [spot for _, spot in self._all]

    def _home(self, plan: p.Plan, model: str) -> Spot:
        """Where a model is trained; where it is read, if it is only replaced."""
        read = {i.op for i in plan.walk() if i.attrs.get("model") == model and i.attrs.get("version") != "live"}
        first = next((op for op in ("update", *SCORING, "generate") if op in read), "logprobs")
        return self._placement.spot(f"{model}.{first}")

    def _first(self, plan: p.Plan, model: str) -> Spot:
        """Where a model is read first, rather to score than to generate."""
        reads = [i for op in (*SCORING, "generate") for i in plan.walk() if i.op == op and i.attrs["model"] == model]
        return self.spot(reads[0]) if reads else self._placement.spot(f"{model}.logprobs")
