"""One role's optimizer: AdamW with clipping and a learning-rate schedule that counts its own optimizer steps."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..errors import RunError
from ..models.loading import Role, local
from ..models.sharding import own_part


class Trainer:
    """Turns gradients into weights. bfloat16 weights have a float32 master copy, which takes the steps.

    Of a sharded role each rank has the shards' state and takes their steps; all ranks agree on the gradient's norm. The
    state goes by the numbers of the parameters, which are the same for every layout.

    options: of `adamw(…)` in the flow. horizon: optimizer steps of the whole run, the default end of a decay.
    """

    def __init__(self, role: Role, options: Mapping[str, Any]) -> None:
        self.role, self.options = role, options
        self.horizon = 0
        self.count = 0
        self._params: list[nn.Parameter] = [p for p in role.parameters() if p.requires_grad]
        self._master = self._masters()
        self._weights: list[Tensor] = self._master or list(self._params)
        self._optimizer = torch.optim.AdamW(
            self._weights,
            lr=options["lr"],
            betas=(options["beta1"], options["beta2"]),
            eps=options["eps"],
            weight_decay=options["weight_decay"],
            fused=True,
        )

    def _masters(self) -> list[Tensor]:
        if self.role.dtype != torch.bfloat16:
            return []
        return [p.detach().float().requires_grad_() for p in self._params]

    @property
    def lr(self) -> float:
        """The learning rate of the next optimizer step."""
        return float(self.options["lr"]) * schedule(self.options, self.count, self.horizon)

    def step(self) -> float:
        """Clip the gathered gradients, take one step and clear them. Returns the gradient's norm before clipping.

        All ranks of the role's mesh call it. Of a replicated role the gradients are summed over them first.
        """
        if self.role.parallel is not None:
            self.role.parallel.add_gradients(self._params)
        norm = self._clip()
        if not math.isfinite(norm):
            raise RunError(
                f"the gradient of `{self.role.name}` is {norm} at its optimizer step {self.count}: lower the learning "
                "rate, or look for a division by zero or a logarithm of zero in the loss"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = self.lr
        self._apply()
        self.count += 1
        return norm

    def _clip(self) -> float:
        gradients = [local(p.grad) for p in self._params if p.grad is not None]
        squared = _squared_norm(gradients)
        if self.role.parallel is not None:
            squared = self.role.parallel.add_shards(squared)
        norm, limit = math.sqrt(squared), float(self.options["clip_norm"])
        if limit > 0 and math.isfinite(norm) and gradients:
            torch._foreach_mul_(gradients, min(1.0, limit / (norm + 1e-6)))
        return norm

    def _apply(self) -> None:
        for master, param in zip(self._master, self._params, strict=False):
            master.grad = param.grad.float() if param.grad is not None else None
        self._optimizer.step()
        with torch.no_grad():
            for master, param in zip(self._master, self._params, strict=False):
                param.copy_(master)
        for weight in (*self._params, *self._master):
            weight.grad = None

    # ------------------------------------------------------------ commits

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer's state by flat names; what is sharded like its parameter is a DTensor."""
        found: dict[str, Tensor] = {f"master.{i}": m.detach() for i, m in enumerate(self._master)}
        for index, state in self._optimizer.state_dict()["state"].items():
            found |= {f"{index}.{name}": value for name, value in state.items()}
        return found

    def targets(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Tensors of this role's layout to read a state into, given the names that `tensors` gave when it was saved."""
        found: dict[str, Tensor] = {}
        for name in names:
            index, _, key = name.rpartition(".")
            weight = self._weights[int(key if index == "master" else index)]
            found[name] = torch.zeros((), dtype=_STEP) if key == "step" else torch.empty_like(weight.detach())
        return found

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], count: int) -> None:
        """Take over a state that `tensors` and `count` gave: all of each tensor, or this rank's shards of it."""
        self.count = count
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            index, _, key = name.rpartition(".")
            if index == "master":
                _fill(self._master[int(key)], value)
            elif key == "step":
                state.setdefault(int(index), {})[key] = value
            else:
                target = torch.empty_like(self._weights[int(index)].detach())
                _fill(target, value)
                state.setdefault(int(index), {})[key] = target
        if state:
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})


_STEP = torch.float32
"""What torch counts an optimizer's steps in."""


def _fill(target: Tensor, value: Tensor) -> None:
    if isinstance(target, DTensor) and not isinstance(value, DTensor):
        value = own_part(value, target)
    local(target).copy_(local(value))


def _squared_norm(tensors: list[Tensor]) -> float:
    if not tensors:
        return 0.0
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    norms = torch.stack(torch._foreach_norm(tensors, 2, dtype=dtype))
    return float(norms.double().square().sum())


def schedule(options: Mapping[str, Any], count: int, horizon: int) -> float:
    """The factor on the learning rate at optimizer step `count` (from 0)."""
    warmup = int(options["warmup"])
    if count < warmup:
        return (count + 1) / warmup
    end = int(options["decay"] or horizon)
    if options["schedule"] == "constant" or end <= warmup:
        return 1.0
    done = min(1.0, (count - warmup) / (end - warmup))
    shape = 1 - done if options["schedule"] == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    floor = float(options["floor"])
    return floor + (1 - floor) * shape
