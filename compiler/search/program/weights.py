"""How long new weights take to where they generate, as a table over how they lie."""

from collections.abc import Iterable
from typing import Any

from ..instance import Instance, Spread
from .variables import Program, SpreadKey


def add_weights(p: Program) -> None:
    """How long the new weights of a generation take."""
    for train, generate in p.instance.problem.sampled_after_training():
        together = p.model.new_bool_var(f"{train} with {generate}")
        p.together[train, generate] = together
        for slot in p.slots:
            p.model.add(p.on[train, slot] == p.on[generate, slot]).only_enforce_if(together)
            p.model.add_bool_or([p.on[train, slot].Not(), p.on[generate, slot].Not(), together])
        p.moving[generate] = p.model.new_int_var(0, p.horizon, f"weights of {generate}")
        _table(p, train, generate, together)


def _table(p: Program, train: str, generate: str, together: Any) -> None:
    """Rows and columns of equal times are one class: nothing is lost, and the table is small."""
    times = moves_of(p.instance, train, generate)
    sources, targets = sorted({s for s, _ in times}), sorted({t for _, t in times})
    ticks = {k: tuple(p.ticks(m) for m in ms) for k, ms in times.items()}
    source_class = _classes(sources, lambda s: tuple(ticks[s, t] for t in targets))
    target_class = _classes(targets, lambda t: tuple(ticks[s, t] for s in sources))
    chosen = [_class_of(p, x, c) for x, c in ((train, source_class), (generate, target_class))]
    rows = {
        (source_class[s], target_class[t], same, ticks[s, t][same])
        for s in sources
        for t in targets
        for same in (0, 1)
        if ticks[s, t][same] <= p.horizon
    }
    p.model.add_allowed_assignments([*chosen, together, p.moving[generate]], sorted(rows))


def moves_of(instance: Instance, train: str, generate: str) -> dict[tuple[SpreadKey, SpreadKey], tuple[float, float]]:
    """Seconds of each pair of spreads: apart, and on the same slot (as apart where slots can't be one)."""
    model = instance.problem.phase(train).model
    found: dict[tuple[SpreadKey, SpreadKey], tuple[float, float]] = {}
    for s, source in _spreads(instance, train).items():
        for t, target in _spreads(instance, generate).items():
            apart = instance.move(model, source, target, False).seconds
            same = instance.move(model, source, target, True).seconds if s[0] == t[0] else apart
            found[s, t] = (apart, same)
    return found


def _spreads(instance: Instance, phase: str) -> dict[SpreadKey, Spread]:
    """How the weights of a phase may lie."""
    by_room = instance.choices[phase].items()
    return {(room, c.key): Spread(room, c.layout) for room, cs in by_room for c in cs}


def _classes(items: Iterable[SpreadKey], of: Any) -> dict[SpreadKey, int]:
    numbers: dict[Any, int] = {}
    return {item: numbers.setdefault(of(item), len(numbers)) for item in items}


def _class_of(p: Program, phase: str, classes: dict[SpreadKey, int]) -> Any:
    number = p.model.new_int_var(0, max(classes.values(), default=0), f"class of {phase}")
    p.model.add(number == sum(classes[p.spread(k)] * b for k, b in p.of(phase)))
    return number
