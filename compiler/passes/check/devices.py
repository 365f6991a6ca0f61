"""The devices of a cluster, the ranks that a part of it names, and the degrees that fit on them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ....dsl import ast
from ....dsl.diagnostics import Report
from ....dsl.source import Span
from ...graph import Operand
from ...placement import DEFAULT_RANKS, Spot

LOCAL = ("local", "cpu")
DEGREES = ("tp", "pp", "dp", "fsdp")


@dataclass(frozen=True)
class Part:
    """What a cluster constructor says: devices of one kind on equal nodes. devices: None for all that a run has.

    figures: what it says of its devices, for planning.
    """

    device: str
    nodes: int
    devices: int | None
    figures: tuple[tuple[str, float], ...] = ()

    @property
    def options(self) -> dict[str, int | float]:
        """What it says, by the names it is written with."""
        devices = {} if self.devices is None else {"devices": self.devices}
        return {"nodes": self.nodes, **devices, **dict(self.figures)}

    @property
    def is_local(self) -> bool:
        return self.device in LOCAL

    @property
    def ranks(self) -> int | None:
        return None if self.devices is None else self.nodes * self.devices

    def __str__(self) -> str:
        if self.ranks is None:
            return f"{self.nodes} {self.device} nodes"
        shown = f"{self.ranks} {self.device} device{'s' if self.ranks > 1 else ''}"
        return f"{shown} ({self.nodes} nodes of {self.devices})" if self.nodes > 1 else shown


@dataclass(frozen=True)
class Cluster:
    """What a cluster expression says: nodes that follow each other, those of a part alike. A local one has one part."""

    parts: tuple[Part, ...]

    @property
    def nodes(self) -> int:
        return sum(part.nodes for part in self.parts)

    @property
    def is_local(self) -> bool:
        return self.parts[0].is_local

    @property
    def is_one_device(self) -> bool:
        return self.is_local and self.nodes == 1 and self.parts[0].devices in (None, 1)

    @property
    def ranks(self) -> int | None:
        each = [part.ranks for part in self.parts]
        return None if None in each else sum(n or 0 for n in each)

    def first(self, node: int) -> int | None:
        """The first rank of a node, or of what comes after the last; None if it isn't known how many a node has."""
        rank = 0
        for part in self.parts:
            if part.devices is None:
                return None
            rank += min(node, part.nodes) * part.devices
            node -= min(node, part.nodes)
        return rank

    def __str__(self) -> str:
        return " and ".join(map(str, self.parts))


def sized(
    cluster: Cluster, asked: int | None, span: Span, report: Report, fits: Callable[[Cluster], bool] = lambda _: True
) -> Cluster:
    """The cluster with the devices that a run of many ranks has; it and the ranks that were asked for must agree.

    fits: whether the lines of the block can be placed on another cluster, which is only offered if they can.
    """
    if cluster.ranks is None:
        ranks = asked or DEFAULT_RANKS * cluster.nodes
        if ranks % cluster.nodes:
            message = f"{_ranks(ranks)} can't be the same number on each of {cluster.nodes} nodes"
            report.add("E0505", message, span, help=f"ask for {_either(_multiples(ranks, cluster.nodes))} ranks")
        return Cluster((replace(cluster.parts[0], devices=max(1, ranks // cluster.nodes)),))
    if asked not in (None, cluster.ranks):
        message = f"this cluster has {cluster}, but a plan for {_ranks(asked)} was asked for"
        help = f"start {_ranks(cluster.ranks)} (`flowrun --nproc {cluster.ranks}`, `flowc --ranks {cluster.ranks}`)"
        other = _resized(cluster, asked or 1)
        offer = f", or write `{_call(other)}`" if other is not None and fits(other) else ""
        report.add("E0505", message, span, help=help + offer)
    return cluster


def _resized(cluster: Cluster, ranks: int) -> Cluster | None:
    """A cluster of that device with so many ranks, on the same number of nodes if they divide; None of several."""
    if len(cluster.parts) > 1:
        return None
    nodes = cluster.nodes if ranks % cluster.nodes == 0 else 1
    return Cluster((replace(cluster.parts[0], nodes=nodes, devices=ranks // nodes),))


def _call(cluster: Cluster) -> str:
    """A cluster of one part as it is written."""
    (part,) = cluster.parts
    nodes = [("nodes", part.nodes)] if part.nodes > 1 else []
    options = [*nodes, ("devices", part.devices), *part.figures]
    return f"{part.device}({', '.join(f'{name}={value}' for name, value in options)})"


def _ranks(number: int | None) -> str:
    return f"{number} rank{'s' if number != 1 else ''}"


def _multiples(number: int, of: int) -> list[int]:
    """The multiples next below and next above a number."""
    below = number // of * of
    return [n for n in (below, below + of) if n > 0]


def _either(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))


# ---------------------------------------------------------------- a part of a cluster


class NoSuchRanks(Exception):
    """Reported already."""


def ranks_of(mesh: ast.Expr | None, cluster: Cluster, report: Report) -> range | None:
    """The ranks that a mesh expression names; None if it isn't known how many a node has. Raises NoSuchRanks."""
    match mesh:
        case ast.Name(id="controller"):
            return range(1)
        case ast.Name(id="local") if cluster.parts[0].device == "local":
            return _nodes(cluster, 0, cluster.nodes)
        case None | ast.Name(id="nodes"):
            return _nodes(cluster, 0, cluster.nodes)
        case ast.Index(base=ast.Name(id="nodes"), index=start, stop=stop):
            last = stop if stop is not None else start + 1
            if 0 <= start < last <= cluster.nodes:
                return _nodes(cluster, start, last)
            named = f"nodes[{start}]" if stop is None else f"nodes[{start}:{stop}]"
            if stop is not None and stop <= start:
                help = f"the second number is the node after the last: `nodes[{start}:{start + 1}]` is one node"
                report.add("E0505", f"`{named}` names no nodes", mesh.span, help=help)
                raise NoSuchRanks
            only = "only nodes[0]" if cluster.nodes == 1 else f"nodes[0] to nodes[{cluster.nodes - 1}]"
            report.add("E0505", f"`{named}` is outside this cluster: it has {only}", mesh.span)
            raise NoSuchRanks
    local = ", or `local`" if cluster.parts[0].device == "local" else ""
    help = f"write `nodes`, `nodes[0]`, `nodes[0:2]` or `controller`{local}"
    report.add("E0504", "this names no devices of the cluster", mesh.span, help=help)
    raise NoSuchRanks


def _nodes(cluster: Cluster, first: int, last: int) -> range | None:
    start, stop = cluster.first(first), cluster.first(last)
    return None if start is None or stop is None else range(start, stop)


# ---------------------------------------------------------------- degrees


def degree(options: Mapping[str, Operand], name: str) -> int:
    value = options.get(name)
    return value if isinstance(value, int) else 1


def written(options: Mapping[str, Operand]) -> str:
    """The degrees above 1, as they are written."""
    return " × ".join(f"{d}={degree(options, d)}" for d in DEGREES if degree(options, d) > 1)


def check_product(options: Mapping[str, Operand], available: int | None, span: Span, report: Report) -> bool:
    """Whether a line's degrees need no more devices than its mesh has, as far as that is known."""
    wanted = math.prod(degree(options, d) for d in DEGREES)
    if available is None or wanted <= available:
        return True
    message = f"{written(options)} needs {wanted} devices, but this mesh has {available}"
    report.add("E0505", message, span, help=f"choose degrees whose product is at most {available}")
    return False


def spot(options: Mapping[str, Operand], ranks: range, phase: str, span: Span, report: Report) -> Spot | None:
    """How a phase lies on its ranks. A data-parallel degree that is written says how many it takes; else it takes all.

    None after reporting that they can't be shared out evenly.
    """
    fsdp = degree(options, "fsdp")
    if "dp" in options:
        dp = degree(options, "dp")
        return Spot(ranks.start, dp * fsdp, dp, fsdp)
    if len(ranks) % fsdp == 0:
        return Spot(ranks.start, len(ranks), len(ranks) // fsdp, fsdp)
    legal = _divisors_around(fsdp, len(ranks))
    message = f"`fsdp={fsdp}` doesn't divide the {len(ranks)} ranks of `{phase}`"
    used = len(ranks) // fsdp * fsdp
    help = f"nearest that do: {' or '.join(f'`fsdp={d}`' for d in legal)}"
    help += f"; or `dp={len(ranks) // fsdp}` too, to use {used} of the {len(ranks)}"
    report.add("E0505", message, span, help=help)
    return None


def _divisors_around(number: int, of: int) -> list[int]:
    """The divisors of `of` next below and next above a number that is none."""
    divisors = [d for d in range(1, of + 1) if of % d == 0]
    return [max(d for d in divisors if d < number), min(d for d in divisors if d > number)]
