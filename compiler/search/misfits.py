"""`place` lines that can't be: degrees against a model's shape and the devices, and lines against each other."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from ..passes.check.degrees import nearest_legal
from ..shapes import ModelShape
from .candidates import fits_tensor
from .instance import Request
from .problem import Problem


@dataclass(frozen=True)
class Misfit:
    """A line with a degree that can't be: the code and what to say of it, and the legal ones next to it."""

    request: Request
    code: str
    message: str
    help: str


def misfits(requests: Iterable[Request], problem: Problem, shapes: Mapping[str, ModelShape]) -> Iterator[Misfit]:
    """The lines at fault, one degree each time."""
    for request in requests:
        for phase in request.phases:
            yield from _cuts(request, shapes[problem.phase(phase).model])
            yield from _shares(request, phase)
            if problem.phase(phase).kind == "generate" and request.degrees.get("fsdp", 1) > 1:
                message = f"`fsdp={request.degrees['fsdp']}` of `{phase}`: a placement gives engines whole weights"
                yield Misfit(request, "E0508", message, "leave it out; `tp` and `pp` cut an engine's weights")


def _cuts(request: Request, shape: ModelShape) -> Iterator[Misfit]:
    tp, pp = request.degrees.get("tp", 1), request.degrees.get("pp", 1)
    if not fits_tensor(tp, shape):
        has = f"{shape.heads} heads, {shape.kv_heads} key-value heads and {shape.vocab} tokens in its vocabulary"
        message = f"`tp={tp}` doesn't divide `{shape.name}`, which has {has}"
        yield Misfit(request, "E0506", message, _legal("tp", nearest_legal(tp, lambda v: fits_tensor(v, shape))))
    if pp > shape.layers:
        message = f"`pp={pp}` doesn't fit `{shape.name}`, which has {shape.layers} layers"
        yield Misfit(request, "E0506", message, _legal("pp", [shape.layers]))


def _shares(request: Request, phase: str) -> Iterator[Misfit]:
    """Against the devices a line names: it takes all of them, so that its degrees divide their number."""
    if request.ranks is None:
        return
    devices, left = len(request.ranks), len(request.ranks)
    for name, degree in request.degrees.items():
        if left % degree:
            options = [v for v in range(1, left + 1) if left % v == 0]
            near = [max(v for v in options if v <= degree), *(v for v in options if v > degree)][:2]
            beside = f", of which other degrees leave {left}" if left != devices else ""
            message = f"`{name}={degree}` doesn't divide the {devices} devices of `{phase}`{beside}"
            yield Misfit(request, "E0505", message, _legal(name, near))
            return
        left //= degree


def clash(lines: Iterable[Request], problem: Problem) -> str:
    """Why two of these lines can't both be met, if it is where they put their phases; else nothing."""
    at = {name: r.ranks for r in lines if r.ranks is not None for name in r.phases}
    for a, b in problem.sharing():
        if a in at and b in at and at[a] != at[b]:
            return f": `{a}` and `{b}` use the same weights, so they are on the same devices"
    for (a, here), (b, there) in combinations(at.items(), 2):
        if here != there and set(here) & set(there):
            return f": the devices of `{a}` and of `{b}` overlap; groups of devices are the same or apart"
    return ""


def _legal(name: str, near: Iterable[int]) -> str:
    return f"nearest that fit: {' or '.join(f'`{name}={v}`' for v in near)}"
