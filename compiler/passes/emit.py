"""Emit: the scheduled graph → a Plan for the single-controller target."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...dsl.modules import STD
from ...dsl.operators import Hint
from ...dsl.operators import Operator as Signature
from .. import plan as p
from ..dataflow import loss_of
from ..graph import Axis, AxisName, Graph, Node, Operand, Ref, Role, Size, Type
from ..placement import Placement
from .schedule import Scheduled


def emit(scheduled: Scheduled, folder: Path, source: str, placement: Placement) -> p.Plan:
    """The plan of a scheduled graph. `source` is the text of everything it was compiled from."""
    graph = scheduled.graph
    every = [*(n for a in scheduled.ahead for n in _walk(a.nodes)), *graph.walk()]
    nodes = {n.id: n for n in every}
    names = {n.id: n.name for n in every}
    emitter = _Emitter(nodes, names, folder, placement)
    ahead = tuple(
        p.Ahead(a.staleness, emitter.block(a.nodes), tuple(names[i] for i in a.keeps), source=a.source)
        for a in scheduled.ahead
    )
    plan = p.Plan(
        schema=p.schema.SCHEMA,
        flow=graph.flow,
        doc=graph.doc,
        target="single",
        folder=_shown(folder),
        source=hashlib.sha256(source.encode()).hexdigest(),
        params={k: _plain(v) for k, v in graph.params.items()},
        axes=_axes(every),
        meshes=placement.meshes,
        models=_models(graph),
        states={s.name: s.initial for s in graph.states.values()},
        operators=_operators(every, folder),
        ahead=ahead,
        program=emitter.block(graph.nodes),
    )
    return p.sealed(msgspec.structs.replace(plan, meaning=p.meaning(plan)))


class _Emitter:
    def __init__(self, nodes: Mapping[int, Node], names: Mapping[int, str], folder: Path, placement: Placement) -> None:
        self.nodes, self.names, self.folder, self.placement = nodes, names, folder, placement

    def block(self, nodes: Iterable[Node]) -> tuple[p.Instruction, ...]:
        return tuple(self.instruction(n) for n in nodes if n.op != "error")

    def instruction(self, node: Node) -> p.Instruction:
        return p.Instruction(
            op=node.op,
            out=node.name,
            type="" if node.type.dtype == "none" else str(node.type),
            args={k: self.operand(v) for k, v in node.args.items()},
            attrs={**self.attrs(node), **self.loss(node), **self.placement.options(node)},
            body=self.block(node.body),
            mesh=self.placement.mesh(node),
        )

    def operand(self, value: Operand) -> p.Operand:
        if isinstance(value, Ref):
            return p.Value(self.names[value.id])
        return value.value if isinstance(value, Size) else value

    def attrs(self, node: Node) -> dict[str, Any]:
        out = {k: _attr(v) for k, v in node.attrs.items() if v is not None and k not in ("by", "over", "to", "region")}
        if node.op in ("reduce", "rank", "expand"):
            out["to"] = self._target(node)
        if node.op in ("generate", "keep"):
            out.update(_opened(node))
        if node.op == "tokenise":
            tokens = node.type.field("tokens")
            out["tokens"] = str(tokens.axis) if tokens else ""
        if node.op == "collected":
            out["region"] = self.names[node.attrs["region"]]
        return out

    def _target(self, node: Node) -> str | None:
        """The axis a reduction keeps, a rank counts in, or an expansion goes to."""
        if node.op != "rank":
            return str(node.type.axis) if node.type.axis else None
        by: AxisName | None = node.attrs.get("by")
        if by is None or node.type.axis is None:
            return None
        chain = node.type.axis.chain()
        return str(next((a for a in chain if a.kind == by.kind and self._owns(by, a)), None))

    def _owns(self, name: AxisName, axis: Axis) -> bool:
        return name.owner is None or any(
            axis in (t.axis.chain() if t.axis else ()) for t in _types(self.nodes[name.owner.id])
        )

    def loss(self, node: Node) -> dict[str, Any]:
        found = loss_of(node, self.nodes) if node.op == "update" else None
        if found is None:
            return {}
        return {
            "loss": {
                "roots": [str(r) for r in found.roots],
                "uncut": [str(a) for a in found.uncut],
                "live": [self.names[i] for i in found.live],
                "dependent": sorted(self.names[i] for i in found.dependent),
                "two_passes": found.two_passes,
            }
        }


def _walk(nodes: Iterable[Node]) -> Iterable[Node]:
    for node in nodes:
        yield from node.walk()


def _types(node: Node) -> list[Type]:
    return [node.type, *(t for _, t in node.type.fields)]


def _opened(node: Node) -> dict[str, Any]:
    """The axes a draw or a `keep` opens."""
    tokens = node.type.field("tokens")
    return {"rows": str(node.type.axis), **({"tokens": str(tokens.axis)} if tokens else {})}


def _attr(value: Any) -> Any:
    match value:
        case Size():
            return value.value
        case Signature():
            return f"{value.module}.{value.name}"
    return value


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Size) else value


def _axes(nodes: Iterable[Node]) -> tuple[p.Axis, ...]:
    found = {a for n in nodes for t in _types(n) if t.axis for a in t.axis.chain()}
    ordered = sorted(found, key=lambda a: (len(a.chain()), a.name))
    return tuple(p.Axis(a.name, a.kind, a.parent.name if a.parent else None) for a in ordered)


def _models(graph: Graph) -> tuple[p.Model, ...]:
    trained = {n.attrs["model"] for n in graph.walk() if n.op == "update"}
    replaced = {n.attrs["model"] for n in graph.walk() if n.op == "next_model"}

    def model(role: Role) -> p.Model:
        options = {k: v for k, v in role.options.items() if v is not None}
        return p.Model(
            role.name,
            role.kind,
            role.path or "",
            role.frozen,
            role.of,
            role.name in trained,
            role.name in replaced,
            options,
        )

    return tuple(model(r) for r in graph.roles.values())


def _operators(nodes: Iterable[Node], folder: Path) -> tuple[p.Operator, ...]:
    found = {_attr(n.attrs["operator"]): n.attrs["operator"] for n in nodes if n.op == "call"}
    return tuple(_operator(key, found[key], folder) for key in sorted(found))


def _operator(key: str, operator: Signature, folder: Path) -> p.Operator:
    result = operator.result if isinstance(operator.result, tuple) else (("", operator.result),)
    return p.Operator(
        key=key,
        file=_file(Path(operator.file), folder),
        name=operator.name,
        sha256=operator.sha256,
        params=tuple(_parameter(x.name, x.hint) for x in operator.params),
        result=tuple(_parameter(n, h) for n, h in result),
        is_async=operator.is_async,
        draws=operator.draws,
    )


def _parameter(name: str, hint: Hint) -> p.Parameter:
    return p.Parameter(name, hint.sees, hint.dtype)


def _file(path: Path, folder: Path) -> str:
    path = path.resolve()
    if path.is_relative_to(STD):
        return f"std/{path.relative_to(STD).as_posix()}"
    return Path(os.path.relpath(path, folder.resolve())).as_posix()


def _shown(folder: Path) -> str:
    """The flow's folder as it was named, so that a plan doesn't depend on where the project lies."""
    return folder.as_posix()
