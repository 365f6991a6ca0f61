"""One role's optimizer: AdamW with clipping and a learning-rate schedule that counts its own optimizer steps."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import RunError
from ..models.loading import Role


class Trainer:
    """Turns gradients into weights. bfloat16 weights have a float32 master copy, which takes the steps.

    options: of `adamw(…)` in the flow. horizon: optimizer steps of the whole run, the default end of a decay.
    """

    def __init__(self, role: Role, options: Mapping[str, Any]) -> None:
        self.role, self.options = role, options
        self.horizon = 0
        self.count = 0
        self._params: list[Tensor] = [p for p in role.parameters() if p.requires_grad]
        self._master = self._masters()
        self._optimizer = torch.optim.AdamW(
            self._master or self._params,
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
        """Clip the gathered gradients, take one step and clear them. Returns the gradient's norm before clipping."""
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
        limit = float(self.options["clip_norm"])
        norm = torch.nn.utils.clip_grad_norm_(self._params, limit if limit > 0 else math.inf, foreach=True)
        return float(norm)

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
        """The optimizer's state by flat names."""
        found = {f"master.{i}": m.detach() for i, m in enumerate(self._master)}
        for index, state in self._optimizer.state_dict()["state"].items():
            found |= {f"{index}.{name}": value for name, value in state.items()}
        return found

    def load(self, tensors: Mapping[str, Tensor], count: int) -> None:
        """Take over a state that `tensors` and `count` gave."""
        self.count = count
        with torch.no_grad():
            for i, master in enumerate(self._master):
                master.copy_(tensors[f"master.{i}"])
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            index, _, key = name.partition(".")
            if index != "master":
                state.setdefault(int(index), {})[key] = value
        if state:
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})


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
