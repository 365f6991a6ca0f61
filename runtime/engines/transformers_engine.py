"""Generation by the Hugging Face forward pass with its key-value cache: any causal language model."""

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..models.layers import eager_layers
from ..models.loading import Role
from .decoding import Session
from .engine import Engine, EngineError


class TransformersEngine(Engine):
    """Reads the role's own module, without a copy of its weights unless `snapshot` is set.

    Without a snapshot the weights must not change between `load_weights` and `generate`; it is noticed and refused.
    """

    def __init__(self, reason: str = "", snapshot: bool = False) -> None:
        super().__init__(reason)
        self._snapshot = snapshot
        self._module: nn.Module | None = None
        self._edits = 0

    def _take_weights(self, role: Role) -> None:
        source = role.clone() if self._snapshot else role
        self._module, self._edits = source.module, _edits(source.parameters())

    def _drop_weights(self) -> None:
        self._module = None

    def _open(self, prompts: list[list[int]], samples: int, new_tokens: int) -> Session:
        module = self._module
        if module is None or _edits(module.parameters()) != self._edits:
            raise EngineError(
                f"the weights of {self._loaded_role.name} were changed after load_weights: load them again, with their "
                "version"
            )
        self._loaded_role.train(False)
        return _CachedForward(module, prompts, samples)


def _edits(parameters: Iterable[Tensor]) -> int:
    """A number that grows with every in-place change of the weights."""
    return sum(parameter._version for parameter in parameters)


class _CachedForward(Session):
    """Prompts are padded on the left, so that all rows write their next token into the same column."""

    def __init__(self, module: nn.Module, prompts: list[list[int]], samples: int) -> None:
        self.module = module
        weight = next(module.parameters())
        self.device = weight.device
        self.dtype = torch.promote_types(weight.dtype, torch.float32)
        self.accepted = inspect.signature(module.forward).parameters
        # The argument was renamed between transformers 5.19 and 5.24.
        self.cache_name = "cache" if "cache" in self.accepted else "past_key_values"
        self.cache: Any = None
        self.mask: Tensor | None = None
        self.positions = torch.tensor([len(prompt) - 1 for prompt in prompts], device=self.device)
        self._read(prompts)
        self._repeat(samples)

    def logits(self, out: Tensor) -> None:
        out.copy_(self.next_logits)

    def advance(self, tokens: Tensor) -> None:
        self.positions += 1
        if self.mask is not None:
            self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], dim=1)
        self._forward(tokens[:, None], self.positions[:, None])

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.rows = len(rows)
        self.positions = self.positions[rows]
        self.mask = None if self.mask is None else self.mask[rows]

    def _read(self, prompts: list[list[int]]) -> None:
        lengths = self.positions + 1
        width = int(lengths.max())
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=self.device)
        columns = torch.arange(width, device=self.device)
        padding = width - lengths[:, None]
        if bool((lengths < width).any()):
            self.mask = (columns >= padding).long()
        self._forward(ids, (columns - padding).clamp(min=0))

    def _forward(self, ids: Tensor, positions: Tensor) -> None:
        arguments: dict[str, Any] = {"attention_mask": self.mask, "position_ids": positions, "logits_to_keep": 1}
        arguments = {name: value for name, value in arguments.items() if name in self.accepted}
        if self.cache is not None:
            arguments[self.cache_name] = self.cache
        # Compiled layers are compiled anew for each shape, and here every step has its own.
        with eager_layers(self.module):
            output = self.module(ids, use_cache=True, **arguments)
        self.cache = getattr(output, self.cache_name)
        self.next_logits: Tensor = output.logits[:, -1]
        self.rows, self.vocab = self.next_logits.shape

    def _repeat(self, samples: int) -> None:
        if samples == 1:
            return
        self.cache.batch_repeat_interleave(samples)
        self.next_logits = self.next_logits.repeat_interleave(samples, 0)
        self.positions = self.positions.repeat_interleave(samples)
        self.mask = None if self.mask is None else self.mask.repeat_interleave(samples, 0)
        self.rows *= samples
