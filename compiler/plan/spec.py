"""The instructions that a plan may hold: for each operator its operands and attributes, and whether it communicates.

A closed set. The interpreter has a handler for each, and tests hold every plan against it.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from .schema import Instruction, Plan

ANY = "*"
"""In place of operands: any number, by any name."""


@dataclass(frozen=True)
class Spec:
    """What an operator may hold; what may be missing is in `optional`.

    talks: whether its ranks communicate: `never`, `maybe`, or `always` in a plan for many ranks. is_inserted: whether
    the compiler puts it between the flow's own operators, in plans for many ranks alone. has_body: whether it holds
    instructions.
    """

    args: frozenset[str]
    attrs: frozenset[str]
    optional: frozenset[str]
    talks: str = "never"
    is_inserted: bool = False
    has_body: bool = False


def _op(
    args: str = "",
    attrs: str = "",
    optional: str = "",
    talks: str = "never",
    *,
    inserted: bool = False,
    body: bool = False,
) -> Spec:
    required, static, more = (frozenset(text.split()) for text in (args, attrs, optional))
    return Spec(required, static, more, talks=talks, is_inserted=inserted, has_body=body)


_SCORING = _op("sequences", "model version micro", "holding snapshot checkpointing compile engine", "maybe")

OPS: dict[str, Spec] = {
    # values
    "read": _op("", "path", "batch all stream epochs shuffle split name"),
    "field": _op("record", "field"),
    "map": _op("0", "fn", "1 2"),
    "reduce": _op("x", "fn to", "where q ddof"),
    "rank": _op("x", "to"),
    "expand": _op("x", "to"),
    "keep": _op("record where", "rows tokens"),
    "call": _op(ANY, "operator"),
    "state": _op("", "state"),
    "step": _op(),
    # models
    "tokenise": _op("prompt response", "tokens tokenizer_of chat"),
    "generate": _op(
        "prompts",
        "model version micro rows tokens",
        "max_new_tokens min_new_tokens temperature top_k top_p n chat max_staleness partial prompt holding snapshot "
        "checkpointing compile engine",
        "maybe",
    ),
    **dict.fromkeys(("logprobs", "entropy", "values", "score"), _SCORING),
    "snapshot": _op("", "model"),
    "next_model": _op("", "model source version", "decay holding snapshot"),
    # statements
    "metric": _op("value", "metric", "", "maybe"),
    "record": _op("value", "metric", "", "maybe"),
    "minimize": _op("value"),
    "next_state": _op("value", "state"),
    # regions
    "update": _op(
        "",
        "model optimizer epochs micro loss",
        "minibatch minibatches dp fsdp checkpointing compile engine",
        "always",
        body=True,
    ),
    "when": _op("condition", body=True),
    "every": _op("", "period", body=True),
    "collect": _op("", "target rounds short", "", "always", body=True),
    "keep_rows": _op("rows where", "", "", "always"),
    "collected": _op("value", "region"),
    # what the layout inserts
    "move": _op(ANY, "axis source deal", "fields role", "always", inserted=True),
    "gather": _op(ANY, talks="always", inserted=True),
    "own": _op("x like", "axis", "", "always", inserted=True),
    "all_reduce": _op("x", "fn", "", "always", inserted=True),
    "spread": _op("x", talks="always", inserted=True),
    "share": _op("x", "source", "", "always", inserted=True),
    "weights": _op("", "model holding", "snapshot", "always", inserted=True),
    "announce": _op("", "region source", "", "always", inserted=True),
}

LAYOUTS = frozenset({"", "sharded evenly", "sharded by length", "replicated", "partial"})
"""How a result lies on its mesh."""


def problems(plan: Plan) -> list[str]:
    """What a plan holds that it may not; empty for every plan that the compiler makes."""
    found = [f"`{i.out}` ({i.op}): {what}" for i in plan.walk() for what in (*_of(i), *_among(i, plan))]
    queued = set[str]()
    for ahead in plan.ahead:
        found += _unknown((*ahead.program, *ahead.exchange), queued if ahead.source else set())
        queued = queued | {*ahead.keeps}
    return [*found, *_unknown(plan.program, queued)]


def _of(i: Instruction) -> Iterator[str]:
    """What is wrong with an instruction by itself."""
    spec = OPS.get(i.op)
    if spec is None:
        yield "no such operator"
        return
    allowed = spec.args | spec.attrs | spec.optional
    if ANY not in spec.args:
        yield from _strays("operand", i.args, allowed)
        yield from (f"no operand `{name}`" for name in sorted(spec.args - i.args.keys()))
    yield from _strays("attribute", i.attrs, allowed)
    yield from (f"no attribute `{name}`" for name in sorted(spec.attrs - i.attrs.keys()))
    if i.body and not spec.has_body:
        yield "it holds no instructions"
    if i.layout not in LAYOUTS:
        yield f"no layout `{i.layout}`"


def _strays(what: str, found: Iterable[str], allowed: Collection[str]) -> Iterator[str]:
    return (f"unknown {what} `{name}`" for name in found if name not in allowed)


def _among(i: Instruction, plan: Plan) -> Iterator[str]:
    """What is wrong with an instruction in its plan: meshes, groups and holdings are the plan's."""
    spec = OPS.get(i.op)
    if i.mesh not in {m.name for m in plan.meshes}:
        yield f"no mesh `{i.mesh}`"
    yield from (f"no group `{g}`" for g in i.groups if g not in {x.name for x in plan.groups})
    if "holding" in i.attrs and i.attrs["holding"] not in {h.name for h in plan.holdings}:
        yield f"no weights `{i.attrs['holding']}`"
    if spec is None:
        return
    if i.groups and spec.talks == "never":
        yield "it communicates"
    if plan.target == "single" and (spec.is_inserted or i.groups or i.layout):
        yield "it is of a plan for many ranks"
    if plan.target == "multi" and spec.talks == "always" and not i.groups:
        yield "it communicates on no group"


def _unknown(block: Iterable[Instruction], known: set[str]) -> Iterator[str]:
    """Operands that name no value made before."""
    for i in block:
        yield from (f"`{i.out}` ({i.op}): `{name}` isn't made before" for name in sorted({*i.reads} - known))
        yield from _unknown(i.body, set(known))
        known = known | {*i.outs}
        if i.op == "collect":
            known |= {out for x in i.body for out in x.outs}
