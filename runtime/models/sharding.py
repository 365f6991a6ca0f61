"""How a role lies on the ranks of a mesh: whole on each, in shards (FSDP2), or in shards with replicas (HSDP).

A mesh has two dims, `dp` and `fsdp`. The parts of a loss that its ranks compute have global denominators already, so
gradients are summed over all of them, never averaged. Sharded parameters are gathered layer by layer, forward and
backward, and their gradients leave at the end of every backward pass, so that no rank ever holds all of either; each of
these is a collective, which is why all ranks have to make the same passes (`scoring.count_passes`, `scoring.idle`).
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from .batches import packs
from .layers import compile_layers, decoder_layers, eager_layers, is_compiled
from .loading import Role

if TYPE_CHECKING:
    from ..ranks.channel import Channel

T = TypeVar("T")

DIMS = ("dp", "fsdp")

# Gradients of a replicated role are summed in pieces of so many elements (64 MiB in float32).
_BUCKET_ELEMENTS = 1 << 24


class Unit(nn.Module):
    """What FSDP2 takes for the whole model, so that its hooks go around everything that uses the model.

    We call a backbone and a head, not the model's own forward; and wrapping leaves the names of parameters as they are.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, work: Callable[[], T]) -> T:
        return work()


@dataclass(frozen=True, eq=False)
class Parallel:
    """A role's layout.

    mesh: its ranks, with dims `dp` and `fsdp`. channel: the same ranks, ascending, on the CPU.
    unit, skeleton: of a sharded role FSDP2's root, and the model without its weights; None of a replicated one.
    """

    mesh: DeviceMesh
    channel: "Channel"
    unit: Unit | None = None
    skeleton: nn.Module | None = None

    @property
    def sharded(self) -> bool:
        return self.unit is not None

    @property
    def degree(self) -> int:
        """Over how many ranks a parameter is spread; the first so many ranks of the mesh hold all of it."""
        return self.mesh["fsdp"].size()

    def run(self, work: Callable[[], T]) -> T:
        """What uses the model's parameters, with the parameters there; its results' gradients find their way back."""
        if self.unit is None:
            return work()
        result: T = self.unit(work)
        if not torch.is_grad_enabled():
            _units(self.unit)[0].reshard()  # FSDP2 leaves it to a backward pass that won't come
        return result

    @contextmanager
    def whole(self) -> Iterator[None]:
        """With all parameters whole on every rank, to be read; all ranks of the mesh enter it."""
        units = _units(self.unit)
        for unit in units:
            unit.unshard()
        try:
            yield
        finally:
            for unit in units:
                unit.reshard()

    def clone(self, role: Role, name: str) -> Role:
        """Another role of the same layout with a copy of the weights; no rank holds more than a layer of it whole."""
        twin = _bare(role, name, self.skeleton)
        _set_trainable(twin, role)
        unit = _shard(twin.module, self.mesh, role.device)
        twin.parallel = replace(self, unit=unit)
        twin.copy_from(role)
        return twin

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum a replicated role's gradients over the ranks. FSDP2 has done so for a sharded one.

        A parameter that no rank's loss reached keeps none, and the optimizer passes over it.
        """
        if self.unit is not None:
            _units(self.unit)[0].reshard()  # where the last pass had no backward one, FSDP2 still has old weights
            return
        every = list(parameters)
        has = torch.tensor([p.grad is not None for p in every], dtype=torch.uint8)
        anywhere = self.channel.gather(has, "the sum of gradients").any(0).tolist()
        used = [p for p, is_used in zip(every, anywhere, strict=True) if is_used]
        for parameter in used:
            if parameter.grad is None:  # this rank had no rows
                parameter.grad = torch.zeros_like(parameter)
        for bucket in buckets([p.grad for p in used if p.grad is not None], _BUCKET_ELEMENTS):
            _add(bucket, self.mesh["dp"].get_group())

    def add_shards(self, number: float) -> float:
        """The sum of a number over the ranks that share the parameters; the same bits on all ranks of the mesh."""
        rows = self.channel.gather(torch.tensor([number], dtype=torch.float64), "the norm of the gradient")
        return float(rows[: self.degree].sum())


def lay_out(role: Role, mesh: DeviceMesh, channel: "Channel") -> None:
    """Lay out a role that is whole, and the same, on every rank of the mesh. All of them call it, once per module.

    What is found out by running the whole model is found out here. Which parameters are trained is settled before, and
    optimizers are made afterwards. On GPUs, the mesh's device is torch's current one.
    """
    packs(role)
    if mesh["fsdp"].size() == 1:
        role.parallel = Parallel(mesh, channel)
        return
    skeleton = _skeleton(role.module)
    role.parallel = Parallel(mesh, channel, _shard(role.module, mesh, role.device), skeleton)


def open_mesh(device: str, ranks: Sequence[int], fsdp: int, timeout: timedelta) -> DeviceMesh | None:
    """The mesh of these ranks, ascending, `fsdp` neighbours to a set of shards; None on ranks that aren't in it.

    All ranks of the world call it, for the same meshes in the same order: its groups are made here.
    device: `cpu` or `cuda`. timeout: the deadline of its collectives.
    """
    grid = torch.tensor(list(ranks)).view(-1, fsdp)
    lines = [*grid.t().tolist(), *grid.tolist()]  # along dp, then along fsdp
    own = [group for line in lines if (group := device_group(line, timeout)) is not None]
    return DeviceMesh.from_group(own, device, grid, mesh_dim_names=DIMS) if own else None


def device_group(ranks: Sequence[int], timeout: timedelta) -> dist.ProcessGroup | None:
    """The process group of these ranks for tensors on any device; None on other ranks. All of the world call it.

    There is one for the same ranks: DTensor takes meshes of the same ranks for equal, and goes on with the first one.
    """
    if _groups.world is not dist.group.WORLD:
        _groups.world, _groups.made = dist.group.WORLD, {}
    line = tuple(ranks)
    if line not in _groups.made:
        made = dist.new_group(list(line), timeout=timeout)
        _groups.made[line] = made if isinstance(made, dist.ProcessGroup) else None  # elsewhere it is a mark
    return _groups.made[line]


@dataclass
class _Groups:
    """The groups of one world, which is known by its default group."""

    world: dist.ProcessGroup | None = None
    made: dict[tuple[int, ...], dist.ProcessGroup | None] = field(default_factory=dict)


_groups = _Groups()


def bare_twin(role: Role, name: str) -> Role:
    """A role like a sharded one that is whole on this rank, its weights not yet given (see `weights.whole_twin`)."""
    twin = _bare(role, name, role.parallel.skeleton if role.parallel else None)
    _fill(twin.module, role.device)
    return twin


def own_part(whole: Tensor, like: Tensor) -> Tensor:
    """A view of what this rank holds of a tensor that is laid out as `like`."""
    if not isinstance(like, DTensor):
        return whole
    shape, offset = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    return whole[tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))]


# ---------------------------------------------------------------- FSDP2


def _shard(module: nn.Module, mesh: DeviceMesh, device: torch.device) -> Unit:
    """Shard each layer, and the rest together. Weights that are still missing are made room for as they are sharded."""
    unit = Unit(module)
    dtype = next(module.parameters()).dtype
    options: dict[str, Any] = {
        "mesh": mesh["fsdp"] if mesh["dp"].size() == 1 else mesh,
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.promote_types(dtype, torch.float32)),
    }
    for part in (*decoder_layers(module), unit):
        _fill(part, device)
        fully_shard(part, **options)
    for sharded in _units(unit):
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    # Experts that only some ranks' tokens reached: without this the ranks would reduce different things together.
    _units(unit)[0].set_reduce_scatter_unused_params(True)
    return unit


def _units(unit: Unit | None) -> list[FSDPModule]:
    """The modules that FSDP2 gathers, the root first."""
    return [m for m in unit.modules() if isinstance(m, FSDPModule)] if unit is not None else []


# ---------------------------------------------------------------- models without weights


def _skeleton(module: nn.Module) -> nn.Module:
    """A copy of a model that has everything but weights: FSDP2's modules can't be copied."""
    memo: dict[int, Any] = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in module.parameters()
    }
    with eager_layers(module):
        return copy.deepcopy(module, memo)


def _bare(role: Role, name: str, skeleton: nn.Module | None) -> Role:
    """A role around a copy of the skeleton, to which weights have to be given."""
    if skeleton is None:
        raise RuntimeError(f"{role.name} is whole on every rank: clone it")
    module = copy.deepcopy(skeleton)
    bare = replace(role, name=name, module=module, config=module.config, parallel=None)
    if is_compiled(role.module):
        compile_layers(bare)
    return bare


def _fill(module: nn.Module, device: torch.device) -> None:
    """Give memory to parameters that have none; tied ones stay tied."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.is_meta:
                if parameter not in made:
                    empty = torch.empty_like(parameter, device=device)
                    made[parameter] = nn.Parameter(empty, parameter.requires_grad)
                part._parameters[name] = made[parameter]


def _set_trainable(role: Role, like: Role) -> None:
    for mine, theirs in zip(role.parameters(), like.parameters(), strict=True):
        mine.requires_grad_(theirs.requires_grad)


# ---------------------------------------------------------------- gradients of replicated roles


def buckets(tensors: Iterable[Tensor], elements: int) -> Iterator[list[Tensor]]:
    """Tensors in order, together up to so many elements."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(t.numel() for t in bucket) + tensor.numel() > elements:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _add(bucket: list[Tensor], group: dist.ProcessGroup) -> None:
    """Sum tensors over a group, in place and in float32 at least."""
    dtype = torch.promote_types(bucket[0].dtype, torch.float32)
    flat = torch.cat([t.flatten().to(dtype) for t in bucket])
    dist.all_reduce(flat, group=group)
    for tensor, summed in zip(bucket, torch.split(flat, [t.numel() for t in bucket]), strict=True):
        tensor.copy_(summed.view_as(tensor))
