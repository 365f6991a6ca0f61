"""Degrees of parallelism against a model's shape: heads and the vocabulary are cut evenly, each stage has a layer."""

from collections.abc import Callable, Iterable, Mapping

from ....dsl.diagnostics import Report
from ....dsl.source import Span
from ...facts import ModelFacts, Places, model_facts
from ...graph import Graph, Operand

LARGEST = 4096
"""Degrees beyond this are not proposed."""


def check_degrees(
    graph: Graph, targets: Iterable[str], options: Mapping[str, Operand], span: Span, places: Places, report: Report
) -> None:
    """Check the degrees of a `place` line against every model whose phases it places."""
    for name in dict.fromkeys(t.partition(".")[0] for t in targets):
        role = graph.roles.get(name)
        facts = model_facts(role.path, places) if role and role.path else None
        if facts:
            _check(name, facts, options, span, report)


def _check(name: str, facts: ModelFacts, options: Mapping[str, Operand], span: Span, report: Report) -> None:
    for degree, fits, shape in (("tp", fits_tp, _cut(facts)), ("pp", fits_pp, _stages(facts))):
        value = options.get(degree)
        if isinstance(value, int) and value > 1 and not fits(value, facts):
            legal = nearest_legal(value, lambda v, fits=fits: fits(v, facts))  # type: ignore[misc]
            message = f"`{degree}={value}` doesn't fit `{name}`, which has {shape}"
            help = f"nearest that fit: {' or '.join(f'`{degree}={v}`' for v in legal)}"
            report.add("E0506", message, span, help=help)


def fits_tp(degree: int, facts: ModelFacts) -> bool:
    """Heads and vocabulary are cut evenly; key-value heads too, or each is held by the same number of devices."""
    kv = facts.kv_heads or facts.heads
    even = all(n is None or n % degree == 0 for n in (facts.heads, facts.vocabulary))
    return even and (kv is None or kv % degree == 0 or degree % kv == 0)


def fits_pp(degree: int, facts: ModelFacts) -> bool:
    return facts.layers is None or degree <= facts.layers


def nearest_legal(wanted: int, fits: Callable[[int], bool]) -> list[int]:
    """The legal degrees next below and next above `wanted`."""
    below = next(v for v in range(min(wanted, LARGEST) - 1, 0, -1) if v == 1 or fits(v))
    above = next((v for v in range(wanted + 1, LARGEST) if fits(v)), None)
    return [below] if above is None else [below, above]


def _cut(facts: ModelFacts) -> str:
    shape = {"heads": facts.heads, "key-value heads": facts.kv_heads, "tokens in its vocabulary": facts.vocabulary}
    shown = [f"{n} {what}" for what, n in shape.items() if n is not None]
    return " and ".join(", ".join(shown).rsplit(", ", 1))


def _stages(facts: ModelFacts) -> str:
    return f"{facts.layers} layer{'' if facts.layers == 1 else 's'}"
