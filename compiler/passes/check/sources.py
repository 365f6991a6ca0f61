"""Data files and model directories: are they here, and do models agree on the tokens they read?"""

from collections.abc import Mapping

from ....dsl.diagnostics import Note, Report, nearest
from ...facts import Places, model_facts
from ...graph import Graph, Node, Ref, Role


def check_sources(graph: Graph, report: Report, places: Places) -> None:
    for role in graph.roles.values():
        facts = model_facts(role.path, places) if role.path and not role.of else None
        if facts and facts.problem:
            report.add("E0106", f"model `{role.path}` can't be read: {facts.problem}", role.span)
        if role.path and not role.of and facts is None:
            message = f"model `{role.path}` isn't on this machine: its shape can't be checked"
            report.add("W0402", message, role.span, help=_help(role.path, places, "or fetch the model first"))
    for node in graph.walk():
        if node.op == "read" and places.find(node.attrs["path"]) is None:
            message = f"data `{node.attrs['path']}` isn't on this machine: its columns can't be checked"
            report.add("W0401", message, node.span, help=_help(node.attrs["path"], places, "or fetch the data first"))
    _check_tokenizers(graph, report, places)
    _check_context(graph, report, places)


def _help(path: str, places: Places, otherwise: str) -> str:
    folder = places.find(path)
    if folder is not None and folder.is_dir():
        models = sorted(c.parent.relative_to(folder).as_posix() for c in folder.glob("*/*/config.json"))
        inside = f"; it holds {', '.join(f'`{path}/{m}`' for m in models)}" if models else ""
        return f"`{path}` is a folder without a `config.json`, so no model{inside}"
    close = nearest(path, places.siblings(path))
    return f"did you mean `{close}`?" if close else f"give a path relative to the flow, {otherwise}"


def _check_tokenizers(graph: Graph, report: Report, places: Places) -> None:
    """A rollout is token ids: only a model with the same tokenizer can read it."""
    nodes = graph.by_id()
    for node in graph.walk():
        if node.op not in ("logprobs", "entropy", "values"):
            continue
        source = rollout_source(node, nodes)
        if source is None:
            continue
        writer, reader = graph.roles[source.attrs["model"]], graph.roles[node.attrs["model"]]
        a, b = _tokenizer(writer, places), _tokenizer(reader, places)
        if a and b and a != b:
            report.add(
                "E0313",
                f"`{reader.name}` has another tokenizer than `{writer.name}`, which sampled `{source.name}`",
                node.span,
                notes=(Note(f"`{source.name}` is sampled here", source.span),),
                help="only `score` re-tokenises the text; use a model of the same family",
            )


def _tokenizer(role: Role, places: Places) -> str | None:
    facts = model_facts(role.path, places) if role.path else None
    return facts.tokenizer if facts else None


def rollout_source(node: Node, nodes: Mapping[int, Node]) -> Node | None:
    """The draw that made the rollout a phase reads."""
    return sampled_by(node.args.get("sequences"), nodes)


def sampled_by(ref: object, nodes: Mapping[int, Node]) -> Node | None:
    """The draw that made a rollout, through `keep` and `collect`."""
    while isinstance(ref, Ref):
        source = nodes[ref.id]
        if source.op == "generate":
            return source
        ref = source.args.get("record") or source.args.get("value")
    return None


def _check_context(graph: Graph, report: Report, places: Places) -> None:
    """New tokens alone must fit the model's context; prompts are measured when they are read."""
    for node in graph.walk():
        budget = node.args.get("max_new_tokens")
        if node.op != "generate" or not isinstance(budget, int):
            continue
        role = graph.roles[node.attrs["model"]]
        facts = model_facts(role.path, places) if role.path else None
        least = node.attrs["min_new_tokens"]
        if least > budget:
            message = f"min_new_tokens={least} is more than max_new_tokens={budget}"
            report.add("E0113", message, node.span, help=f"at most {budget}")
        if facts and facts.max_positions and budget >= facts.max_positions:
            context = f"`{role.name}` has a context of {facts.max_positions} tokens"
            message = f"max_new_tokens={budget} leaves no room for a prompt: {context}"
            report.add("E0402", message, node.span, help=f"at most {facts.max_positions - 1}, less the longest prompt")
