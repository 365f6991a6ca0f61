"""Weights on their way from one holding of a model to another: from the ranks that train it to those that use it.

A first version: every tensor is put together on its first holders, goes to all ranks of both holdings, and each keeps
its part. What it takes says enough of both sides for a planned exchange of only the missing bytes.
"""

import hashlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ..ranks.channel import Channel
from .loading import ModelError, Role, local
from .sharding import bare_twin, buckets, own_part

# Tensors travel together up to so many elements (64 MiB in float32).
_BUCKET_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Holding:
    """Where a role's weights lie.

    ranks: in the world, ascending. fsdp: over how many neighbours each parameter is spread; 1 where all have it whole.
    """

    ranks: tuple[int, ...]
    fsdp: int
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Route:
    """A way of weights, the same on all ranks of both holdings.

    channel: the ranks of both, on the CPU. group: the same ranks, for the device that the roles are on.
    """

    source: Holding
    target: Holding
    channel: Channel
    group: dist.ProcessGroup

    @property
    def rank(self) -> int:
        """The own number in the world."""
        return self.channel.ranks[self.channel.index]

    @property
    def is_local(self) -> bool:
        """Whether the same ranks have both, so that only shards have to be put together."""
        return self.source.ranks == self.target.ranks

    @property
    def dtype(self) -> torch.dtype:
        """What travels: what shrinks is cast before."""
        return min(self.source.dtype, self.target.dtype, key=lambda dtype: dtype.itemsize)


@torch.no_grad()
def send_weights(source: Role | None, target: Role | None, route: Route) -> None:
    """Bring the weights of `source` into `target`. All ranks of both call it, each with what it has of the two.

    Raises ModelError where the two aren't the same model.
    """
    if route.is_local:
        gather_weights(_given(source, route), _given(target, route))
        return
    known, mine = _weights(source or _given(target, route)), _weights(target) if target else {}
    _check_same(known, route)
    holder = source if route.rank in route.source.ranks[: route.source.fsdp] else None
    for names in _bundles(known):
        tensors = [known[name] for name in names]
        flat = torch.empty(sum(t.numel() for t in tensors), dtype=route.dtype, device=tensors[0].device)
        places = [
            p.view(t.shape) for p, t in zip(torch.split(flat, [t.numel() for t in tensors]), tensors, strict=True)
        ]
        if holder is not None:
            for place, tensor in zip(places, tensors, strict=True):
                place.copy_(_whole(holder, tensor, route.dtype))
        dist.broadcast(flat, src=route.source.ranks[0], group=route.group)
        for name, place in zip(names, places, strict=True):
            if name in mine:
                _take(mine[name], place)


@torch.no_grad()
def gather_weights(source: Role, target: Role) -> None:
    """Bring the weights of `source` into a role that the same ranks hold, in whatever layout.

    Raises ModelError where the two aren't the same model.
    """
    theirs, mine = _weights(source), _weights(target)
    if _described(theirs) != _described(mine):
        raise ModelError(f"{target.name} cannot take the weights of {source.name}: they are different models")
    dtype = min(source.dtype, target.dtype, key=lambda dtype: dtype.itemsize)
    for name, parameter in theirs.items():
        _take(mine[name], _whole(source, parameter, dtype))


def whole_twin(role: Role, name: str) -> Role:
    """A frozen role with the same weights that every rank has whole for itself, to generate with."""
    if role.parallel is not None and role.parallel.sharded:
        twin = bare_twin(role, name)
        gather_weights(role, twin)
    else:
        twin = role.clone(name)
        twin.parallel = None
    twin.module.requires_grad_(False)
    return twin


# ---------------------------------------------------------------- tensors


def _weights(role: Role) -> dict[str, Tensor]:
    """Each weight once, by a name that is the same in every layout."""
    return dict(role.module.named_parameters())


def _whole(role: Role, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """All of a role's tensor, on all ranks that share it."""
    part = local(tensor).to(dtype)
    if role.parallel is None or not role.parallel.sharded:
        return part
    # By hand: a DTensor may know another mesh of the same ranks, the first that torch has met. FSDP2 cuts the first dim
    # into equal chunks, of which the last ones are shorter or empty.
    group = role.parallel.mesh.get_group("fsdp")
    padded = part.new_zeros(-(-tensor.shape[0] // role.parallel.degree), *tensor.shape[1:])
    padded[: len(part)] = part
    gathered = part.new_empty(role.parallel.degree * len(padded), *tensor.shape[1:])
    dist.all_gather_single(gathered, padded, group=group)
    return gathered[: tensor.shape[0]]


def _take(target: Tensor, whole: Tensor) -> None:
    local(target).copy_(own_part(whole, target))


def _bundles(tensors: dict[str, Tensor]) -> list[list[str]]:
    """Names in order, in bundles that travel together."""
    names = iter(tensors)
    return [[next(names) for _ in bucket] for bucket in buckets(tensors.values(), _BUCKET_ELEMENTS)]


# ---------------------------------------------------------------- checks


def _given(role: Role | None, route: Route) -> Role:
    if role is None:
        raise RuntimeError(f"rank {route.rank} has neither side of the weights that it takes part in sending")
    return role


def _check_same(tensors: dict[str, Tensor], route: Route) -> None:
    digest = hashlib.sha256(_described(tensors).encode()).digest()
    if len(set(route.channel.collect(digest, "the list of weights"))) > 1:
        raise ModelError("weights can't go from one model to another: their parameters differ in name or shape")


def _described(tensors: dict[str, Tensor]) -> str:
    return repr([(name, tuple(tensor.shape)) for name, tensor in tensors.items()])
