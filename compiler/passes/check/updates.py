"""Models and their updates: each is trained by one update or frozen, and each loss reaches its model."""

from collections.abc import Mapping

from ....dsl.diagnostics import Note, Report
from ...dataflow import Loss, ancestors, carries_gradient, cuts_gradient, depending, loss_of, named
from ...facts import Places, model_facts
from ...graph import ERROR, Graph, Node, Ref


def check_updates(graph: Graph, report: Report, places: Places) -> None:
    nodes = graph.by_id()
    updates = [n for n in graph.walk() if n.op == "update"]
    for update in updates:
        _check_update(graph, update, nodes, report)
    _check_once(updates, "model", "E0301", "model `{}` is updated twice in a step", report)
    steps = [n for n in graph.walk() if n.op in ("next_state", "next_model")]
    for key in ("state", "model"):
        _check_once([n for n in steps if key in n.attrs], key, "E0308", "the next `{}` is given twice", report)
    _check_trained(graph, updates, steps, report)
    for step in steps:
        if step.op == "next_model":
            _check_alike(graph, step, places, report)


def _check_once(nodes: list[Node], key: str, code: str, message: str, report: Report) -> None:
    first: dict[str, Node] = {}
    for node in nodes:
        name = node.attrs[key]
        if name in first:
            notes = (Note("first here", first[name].span),)
            help = "a step has one of them; merge the two"
            report.add(code, message.format(name), node.span, notes=notes, help=help)
        first.setdefault(name, node)


def _check_trained(graph: Graph, updates: list[Node], steps: list[Node], report: Report) -> None:
    trained = {u.attrs["model"] for u in updates}
    for step in steps:
        if step.attrs.get("model") in trained:
            message = f"`{step.attrs['model']}` has both an update and a `next`"
            notes = tuple(Note("its update", u.span) for u in updates if u.attrs["model"] == step.attrs["model"])
            help = "its next version comes from one of them; a copy of it is a model of its own"
            report.add("E0308", message, step.span, notes=notes, help=help)
    for role in graph.roles.values():
        if role.kind != "unknown" and not role.frozen and role.name not in trained:
            message = f"model `{role.name}` is neither updated nor frozen"
            report.add(
                "E0302", message, role.span, help=f"write `model {role.name} = frozen(…)`, or give it an `update`"
            )


SHAPE = ("vocabulary", "hidden", "layers", "heads", "kv_heads")


def _check_alike(graph: Graph, step: Node, places: Places, report: Report) -> None:
    """The next weights of a model fit into it: it is of the same kind and shape as what they come from."""
    target, source = graph.roles[step.attrs["model"]], graph.roles[step.attrs["source"]]
    if "unknown" in (target.kind, source.kind):
        return
    differ = [f"`{target.name}` is a {target.kind}, `{source.name}` a {source.kind}"] * (target.kind != source.kind)
    a, b = (model_facts(r.path, places) if r.path else None for r in (target, source))
    for what in SHAPE if a and b else ():
        mine, theirs = getattr(a, what), getattr(b, what)
        if mine is not None and theirs is not None and mine != theirs:
            differ.append(f"{what.replace('_', ' ')}: {mine} and {theirs}")
    if differ:
        message = f"`{target.name}` can't take the weights of `{source.name}`: {'; '.join(differ)}"
        help = f"make it a copy: `model {target.name} = frozen({source.name})`"
        report.add("E0317", message, step.span, notes=(Note("declared here", target.span),), help=help)


def _check_update(graph: Graph, update: Node, nodes: Mapping[int, Node], report: Report) -> None:
    name = update.attrs["model"]
    if name not in graph.roles or graph.roles[name].kind == "unknown":
        return
    if graph.roles[name].frozen:
        notes = (Note("it is frozen here", graph.roles[name].span),)
        help = "update the model it is a copy of" if graph.roles[name].of else "drop `frozen(…)`"
        report.add("E0307", f"`{name}` is frozen and can't be updated", update.span, notes=notes, help=help)
    losses = [n for n in update.body if n.op == "minimize"]
    misplaced = any(n.op == "error" for n in update.body)
    if len(losses) > 1 or not (losses or misplaced):
        message = f"the update of `{name}` has {len(losses) or 'no'} `minimize`; it has exactly one"
        report.add(
            "E0305",
            message,
            losses[1].span if losses else update.span,
            help="add the losses: `minimize a + b`" if losses else "add `minimize LOSS`",
        )
    _check_rows(name, update, nodes, report)
    if len(losses) == 1 and losses[0].type != ERROR:
        found = loss_of(update, nodes)
        if not (found and _check_operators(name, update, found, nodes, report)):
            _check_reaches(name, update, losses[0], found, report)


def _check_rows(name: str, update: Node, nodes: Mapping[int, Node], report: Report) -> None:
    """Rows may not be chosen by what the trained model says now: its loss would be made of two of its passes."""
    live = [n for n in update.body if n.attrs.get("version") == "live"]
    reached = depending([n.id for n in live], update.body)
    for phase in live:
        sequences = phase.args["sequences"]
        if isinstance(sequences, Ref) and sequences.id in reached:
            shown = named(nodes, sequences)
            message = f"the rows of `{shown}` depend on what `{name}` says in its own update"
            notes = (Note("they are chosen here", nodes[sequences.id].span),)
            help = "choose them before the update, or leave elements out by `where=` in a reduction"
            report.add("E0316", message, phase.span, notes=notes, help=help)


def _check_operators(name: str, update: Node, loss: Loss, nodes: Mapping[int, Node], report: Report) -> bool:
    """Refuse Python operators that a gradient on its way to the loss goes into and doesn't come out of."""
    flowing = carries_gradient(loss.live, update.body)
    needed = ancestors([loss.minimize.id], nodes)
    cutting = [n for n in update.body if n.id in needed and cuts_gradient(n) and any(r in flowing for r in n.refs())]
    for node in cutting:
        operator = node.attrs["operator"]
        message = f"`{operator.module}.{operator.name}` returns plain numbers: the gradient of `{name}` ends in it"
        help = (
            'write the formula in Flow, let it take and return `Float[Tensor, "token"]`, or pass '
            "`stop_gradient(…)` if its value is meant as a constant"
        )
        report.add("E0304", message, node.span, label="the loss needs this", help=help)
    return bool(cutting)


def _check_reaches(name: str, update: Node, loss: Node, found: Loss | None, report: Report) -> None:
    value = loss.args["value"]
    if found and isinstance(value, Ref) and value.id in carries_gradient(found.live, update.body):
        return
    if found and found.live:
        label, help = "the gradient stops on the way", "take `stop_gradient` or the comparison off the way to the model"
    else:
        label = "this holds no phase of the model"
        call = f"call `{name}` in the update, such as `{name}.logprobs(rollout)`"
        help = f"{call}; `rollout.logprobs` are the sampler's constants"
    report.add(
        "E0304",
        f"the loss of `{name}` doesn't reach `{name}`: its gradient would be zero",
        loss.span,
        label=label,
        help=help,
    )
