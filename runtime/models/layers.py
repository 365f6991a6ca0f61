"""What is done to the layers of a Hugging Face model: dropout, true float64, checkpointing, compilation."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from .loading import Role

# One compiled kernel per (rows, length) bucket and grad mode; dynamo's default of 8 would give up without a word.
_KERNEL_LIMIT = 256


def set_dropout(target: Any, p: float) -> None:
    """Set every dropout of a config or a module to `p`."""
    if isinstance(target, nn.Module):
        for module in target.modules():
            if isinstance(module, nn.Dropout):
                module.p = p
        return
    for name, value in vars(target).items():
        if ("dropout" in name or name.endswith("pdrop")) and isinstance(value, int | float):
            setattr(target, name, p)


def decoder_layers(module: nn.Module) -> list[nn.Module]:
    """The transformer blocks of a Hugging Face model, first to last; [] where they are not found."""
    base = getattr(module, "base_model", module)
    for name in ("layers", "h"):
        layers = getattr(base, name, None)
        if isinstance(layers, nn.ModuleList):
            return list(layers)
    return []


class PlainRMSNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019) in the dtype of its input, with its gradient by hand: half the time.

    Hugging Face's rounds to float32 inside, and its gradient is composed of some ten small operations.
    """

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return F.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)
        normed: Tensor = _RMSNorm.apply(hidden_states, self.weight, self.variance_epsilon)  # type: ignore[no-untyped-call]
        return normed


class _RMSNorm(torch.autograd.Function):
    """With n = x / rms(x) and y = n * w: dw = sum(dy * n), dx = (dy * w - n * mean(dy * w * n)) / rms(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, weight, scale)
        result: Tensor = normed * weight
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, weight, scale = ctx.saved_tensors
        product = outer * normed
        shared = (product @ weight).unsqueeze(-1).div_(-normed.shape[-1])
        d_x = torch.addcmul(outer * weight, normed, shared).mul_(scale)
        return d_x, product.flatten(0, -2).sum(0), None


def replace_norms(module: nn.Module) -> None:
    """Put `PlainRMSNorm` where a model has the plain formula; names and weights stay.

    In float64 this also makes the model compute in float64 throughout: a rounding to float32 would turn a difference
    of 1e-16 between two layouts into 6e-8.
    """
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if _is_plain_rms_norm(child):
                setattr(parent, name, PlainRMSNorm(child.weight, child.variance_epsilon))  # type: ignore[arg-type]


def _is_plain_rms_norm(module: nn.Module) -> bool:
    if not (type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")):
        return False
    # Some families scale by (1 + weight): only replace what computes the plain formula.
    weight: Tensor = module.weight  # type: ignore[assignment]
    x = torch.linspace(-1, 2, weight.numel(), dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        plain = F.rms_norm(x, weight.shape, weight, module.variance_epsilon)  # type: ignore[arg-type]
        return torch.allclose(module(x), plain, rtol=1e-4, atol=1e-5)


def enable_checkpointing(role: "Role") -> None:
    """Recompute activations in the backward pass instead of keeping them: about a third more time, far less memory."""
    module: Any = role.module
    # The method was renamed between transformers 5.19 and 5.24.
    new = getattr(module, "activation_checkpointing_enable", None)
    (new or module.gradient_checkpointing_enable)({"use_reentrant": False})
    role.checkpointing = True


def compile_layers(role: "Role") -> None:
    """Compile each decoder layer for fixed shapes (`scoring` then pads to a few of them).

    Never with dynamic shapes: kernels would depend on the order in which shapes were seen, and a resumed run would not
    be bit-equal. Raises RuntimeError, one sentence, where there is no C++ compiler.
    """
    _require_compiler()
    limits: Any = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _KERNEL_LIMIT)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, 4 * _KERNEL_LIMIT)
    for layer in decoder_layers(role.module):
        layer.forward = torch.compile(layer.forward, dynamic=False)


def is_compiled(module: nn.Module) -> bool:
    """Whether `compile_layers` was applied."""
    return any("forward" in vars(layer) for layer in decoder_layers(module)[:1])


@contextmanager
def eager_layers(module: nn.Module) -> Iterator[None]:
    """Without the compiled kernels, for calls whose shapes change at every step, and for copying."""
    compiled = [(layer, vars(layer).pop("forward")) for layer in decoder_layers(module) if "forward" in vars(layer)]
    try:
        yield
    finally:
        for layer, forward in compiled:
            layer.forward = forward


def _require_compiler() -> None:
    names = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++"]
    if not any(shutil.which(name) for name in names):
        raise RuntimeError(
            f"compiling layers needs a C++ compiler and found no {' or '.join(names)}; install one or drop the option"
        )
