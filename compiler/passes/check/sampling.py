"""What usually is a mistake in policy-gradient losses: all of these are warnings."""

from collections.abc import Iterator, Mapping

from ....dsl.diagnostics import Report
from ....dsl.source import Span
from ...dataflow import Loss, ancestors, loss_of
from ...facts import Places
from ...graph import Axis, Graph, Node, Ref
from .sources import rollout_source, sampled_by

GROUP_STATISTICS = ("mean", "sum", "std", "var", "max", "min", "quantile", "rank")
"""What says nothing of a group of one. Its `count` does."""


def check_sampling(graph: Graph, report: Report, places: Places) -> None:
    nodes = graph.by_id()
    warned: set[tuple[Span, str]] = set()
    for node in graph.walk():
        loss = loss_of(node, nodes) if node.op == "update" else None
        if loss:
            _check_ratio(node, loss, nodes, report)
            _check_linear(node, loss, nodes, report)
        if node.op in ("reduce", "rank"):
            _check_group(node, nodes, warned, report)
        if node.op == "reduce":
            _check_levels(node, nodes, report)


# ---------------------------------------------------------------- ratio losses


def _check_ratio(update: Node, loss: Loss, nodes: Mapping[int, Node], report: Report) -> None:
    used = ancestors([loss.minimize.id], nodes)
    if not any(nodes[i].attrs.get("fn") == "exp" and i in loss.dependent for i in used):
        return
    for source in _sampled(loss, nodes):
        reads_sampler = any(_is_logprobs_of(nodes[i], source, nodes) for i in used)
        if source.attrs["max_staleness"] and not reads_sampler:
            name, steps = source.name, source.attrs["max_staleness"]
            message = f"`{name}` is sampled with weights of {steps} steps ago, but the loss ignores `{name}.logprobs`"
            report.add(
                "W0301",
                message,
                update.span,
                help=f"weigh by `exp(policy.logprobs({source.name}) - {source.name}.logprobs)`",
            )
        cut = _cut(source)
        if cut:
            message = (
                f"`{source.name}` is sampled from a cut distribution ({cut}), but the loss is a ratio of full ones"
            )
            report.add("W0302", message, update.span, help="sample with top_p=1, top_k=0 and min_new_tokens=0")


def _cut(source: Node) -> str:
    """The options of a draw that take probability away from some tokens; empty if none does."""
    full = {"top_p": 1, "top_k": 0, "min_new_tokens": 0}
    return ", ".join(f"{name}={source.attrs[name]}" for name, value in full.items() if source.attrs[name] != value)


def _sampled(loss: Loss, nodes: Mapping[int, Node]) -> list[Node]:
    found = {s.id: s for i in loss.live if (s := rollout_source(nodes[i], nodes))}
    return list(found.values())


def _is_logprobs_of(node: Node, source: Node, nodes: Mapping[int, Node]) -> bool:
    return node.op == "field" and node.attrs["field"] == "logprobs" and sampled_by(node.args["record"], nodes) == source


def _check_linear(update: Node, loss: Loss, nodes: Mapping[int, Node], report: Report) -> None:
    """The expected gradient of log p(x) under x ~ p is zero."""
    model = update.attrs["model"]
    for term in _terms(loss.minimize.args["value"], nodes):
        source = rollout_source(term, nodes) if term.op == "logprobs" else None
        own = source is not None and source.attrs["model"] == model and term.args["sequences"] == Ref(source.id)
        if own and term.id in loss.live:
            term_text = f"{model}.logprobs({source.name if source else ''})"
            message = f"a term of this loss is `{term_text}` without a weight: its expected gradient is zero"
            report.add(
                "W0303",
                message,
                loss.minimize.span,
                help="weigh it by an advantage, or use k2 or k3 instead of k1 for a KL loss",
            )


def _terms(value: object, nodes: Mapping[int, Node]) -> Iterator[Node]:
    """The terms of a sum, seen through pooling, signs and constant factors."""
    if not isinstance(value, Ref):
        return
    node = nodes[value.id]
    fn = node.attrs.get("fn")
    if node.op == "map" and fn in ("+", "-", "neg") and not _is_bregman(node, nodes):
        for operand in node.args.values():
            yield from _terms(operand, nodes)
    elif node.op == "map" and fn in ("*", "/"):
        rows = [a for a in node.args.values() if isinstance(a, Ref) and nodes[a.id].type.axis is not None]
        scalars = [a for a in node.args.values() if isinstance(a, Ref) and a not in rows]
        for operand in rows if len(rows) == 1 else scalars if not rows and len(scalars) == 1 else ():
            yield from _terms(operand, nodes)
    elif node.op == "reduce" and fn in ("mean", "sum") and "where" not in node.args:
        yield from _terms(node.args["x"], nodes)
    else:
        yield node


def _is_bregman(node: Node, nodes: Mapping[int, Node]) -> bool:
    """Whether this is `exp(d) - d`, as in k3, whose linear part is a control variate and no mistake."""
    left, right = node.args.get("0"), node.args.get("1")
    if node.attrs["fn"] != "-" or not isinstance(left, Ref) or nodes[left.id].attrs.get("fn") != "exp":
        return False
    return _same(nodes[left.id].args["0"], right, nodes)


def _same(a: object, b: object, nodes: Mapping[int, Node]) -> bool:
    """Whether two operands are the same expression."""
    if not (isinstance(a, Ref) and isinstance(b, Ref)) or a == b:
        return a == b
    x, y = nodes[a.id], nodes[b.id]
    alike = x.op == y.op and x.attrs == y.attrs and x.args.keys() == y.args.keys() and x.op not in ("generate", "call")
    return alike and all(_same(x.args[k], y.args[k], nodes) for k in x.args)


# ---------------------------------------------------------------- groups and levels


def _check_group(node: Node, nodes: Mapping[int, Node], warned: set[tuple[Span, str]], report: Report) -> None:
    """Statistics over groups of one; once per call of a definition, which may take several of them."""
    x = node.args["x"]
    fn, given = node.attrs.get("fn", node.op), node.attrs.get("by")
    if fn not in GROUP_STATISTICS or not isinstance(x, Ref) or not given:
        return
    axis = nodes[x.id].type.axis
    if axis is None or axis.kind == "token":
        return
    by = next((a for a in axis.chain() if a.kind == given.kind), None) if node.op == "rank" else node.type.axis
    if by is None:
        return
    one = axis == by or (axis.parent == by and _samples(axis, nodes) == 1)
    if one and (node.span, str(by)) not in warned:
        warned.add((node.span, str(by)))
        message = f"`{fn}(…, by={by.kind})` is over groups of one: there is one sample per {by.kind}"
        report.add("W0202", message, node.span, help="give `generate` `n=8`, for example")


def _samples(axis: Axis, nodes: Mapping[int, Node]) -> int | None:
    return next((n.attrs["n"] for n in nodes.values() if n.op == "generate" and n.name == axis.owner), None)


def _check_levels(node: Node, nodes: Mapping[int, Node], report: Report) -> None:
    if node.attrs["fn"] != "mean":
        return
    axes = {t.type.axis for t in _summands(node.args["x"], nodes) if t.type.axis is not None}
    outer = axes - {max(axes, key=lambda a: len(a.chain()), default=None)}
    kept = node.type.axis.chain() if node.type.axis else ()
    if any(a not in kept for a in outer):  # pooled as often as there are inner elements
        shown = " and ".join(f"`{a}`" for a in sorted(axes, key=lambda a: len(a.chain())))
        message = (
            f"this mean pools a sum of terms on different axes, {shown}: each outer term counts once per inner element"
        )
        report.add("W0203", message, node.span, help="write two means, one per axis, and add them")


def _summands(value: object, nodes: Mapping[int, Node]) -> Iterator[Node]:
    if not isinstance(value, Ref):
        return
    node = nodes[value.id]
    if (node.op == "map" and node.attrs["fn"] in ("+", "-", "neg")) or (
        node.op == "map" and node.attrs["fn"] in ("*", "/") and sum(isinstance(a, Ref) for a in node.args.values()) == 1
    ):
        for operand in node.args.values():
            yield from _summands(operand, nodes)
    else:
        yield node
