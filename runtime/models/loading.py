"""Roles: the models of a flow, loaded from Hugging Face directories and written back to them."""

import copy
import hashlib
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
import transformers
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from .. import noise
from ..errors import RunError
from ..ranks.together import on_first
from .layers import compile_layers, eager_layers, is_compiled, replace_norms, set_dropout

if TYPE_CHECKING:
    from .sharding import Parallel

T = TypeVar("T")

Kind = Literal["causal_lm", "value_model", "reward_model"]

_LOADERS: dict[str, Any] = {
    "causal_lm": transformers.AutoModelForCausalLM,
    "value_model": transformers.AutoModelForSequenceClassification,
    "reward_model": transformers.AutoModelForSequenceClassification,
}

_DIGEST_BYTES = 1 << 20

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


class ModelError(RunError):
    """A model cannot be loaded, saved or used as asked; one sentence."""


@dataclass(eq=False)
class Role:
    """A stateful model of a flow.

    module: the Hugging Face model; a value or reward model is a backbone with a scalar head `score`.
    tokenizer: None where the directory carries none; its padding is never used.
    direct: whether `head(backbone(x))` equals the module's own logits; found out at the first forward.
    packs: whether the layers attend over packed rows; found out at the first forward.
    fresh_head: whether the files held no scalar head, so that it was drawn at random.
    parallel: how it lies on the ranks of a mesh; None where this process alone has it.
    """

    kind: Kind
    name: str
    module: nn.Module
    tokenizer: Any
    config: Any
    path: str
    dropout: float = 0.0
    checkpointing: bool = False
    direct: bool | None = field(default=None, repr=False)
    packs: bool | None = field(default=None, repr=False)
    fresh_head: bool = field(default=False, repr=False)
    parallel: "Parallel | None" = field(default=None, repr=False)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Each parameter once (tied ones too)."""
        return self.module.parameters()

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def is_sharded(self) -> bool:
        """Whether this rank holds a part of each weight only, so that every pass is a collective."""
        return self.parallel is not None and self.parallel.sharded

    def train(self, mode: bool) -> None:
        """Training mode only where it makes a difference: dropout and checkpointing; switching costs a walk."""
        mode = mode and (self.dropout > 0 or self.checkpointing)
        if self.module.training != mode:
            self.module.train(mode)

    def run(self, work: Callable[[], T]) -> T:
        """What uses the module, called so that sharded parameters are there for it."""
        return work() if self.parallel is None else self.parallel.run(work)

    def whole(self) -> AbstractContextManager[None]:
        """With the module's parameters whole on this rank, to be read; all ranks of the role's mesh enter it."""
        return nullcontext() if self.parallel is None else self.parallel.whole()

    def clone(self, name: str | None = None) -> "Role":
        """A role of the same layout with its own copy of the weights (no gradients); the tokenizer is shared."""
        if self.parallel is not None and self.parallel.sharded:
            return self.parallel.clone(self, name or self.name)
        with eager_layers(self.module):
            module = copy.deepcopy(self.module)
        module.zero_grad(set_to_none=True)
        twin = replace(self, name=name or self.name, module=module, config=module.config)
        if is_compiled(self.module):
            compile_layers(twin)
        return twin

    @torch.no_grad()
    def copy_from(self, other: "Role") -> None:
        """Take over the weights of `other`, of the same layout, cast to this role's dtype.

        Raises ModelError where the shapes differ.
        """
        mine, theirs = self._pairs(other)
        torch._foreach_copy_(mine, theirs)

    @torch.no_grad()
    def lerp_from(self, other: "Role", decay: float) -> None:
        """Exponential moving average: self = decay * self + (1 - decay) * other."""
        mine, theirs = self._pairs(other)
        torch._foreach_mul_(mine, decay)
        torch._foreach_add_(mine, [t.to(m.dtype) for m, t in zip(mine, theirs, strict=True)], alpha=1 - decay)

    def _pairs(self, other: "Role") -> tuple[list[Tensor], list[Tensor]]:
        """This rank's parts of the weights of both."""
        mine, theirs = dict(self.module.named_parameters()), dict(other.module.named_parameters())
        for name in [*mine, *theirs]:
            if name not in mine or name not in theirs or mine[name].shape != theirs[name].shape:
                raise ModelError(f"{self.name} cannot take the weights of {other.name}: {name} differs or is missing")
        pairs = [(local(mine[name]), local(theirs[name])) for name in mine]
        if any(m.shape != t.shape for m, t in pairs):
            raise ModelError(f"{self.name} cannot copy the weights of {other.name}: they lie on the ranks otherwise")
        return [m for m, _ in pairs], [t for _, t in pairs]


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, sharing its memory."""
    held = tensor.detach()
    return held.to_local() if isinstance(held, DTensor) else held


def load_role(
    kind: Kind,
    path: str,
    *,
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
    seed: int = 0,
    name: str = "policy",
    base_dir: str | Path | None = None,
    dropout: float = 0.0,
) -> Role:
    """Load a model from a Hugging Face directory, relative to `base_dir` if it exists there, or a hub id.

    Weights are cast to `dtype` (float64, float32 or bfloat16), whatever the files hold. All dropout is `dropout`.
    A scalar head that the files lack is drawn from (seed, name), see `fresh_head`.
    Raises ModelError: unknown kind or dtype, nothing found at `path`, not a model of that kind.
    """
    if kind not in _LOADERS:
        raise ModelError(f"unknown kind of model {kind!r}: it is one of {', '.join(_LOADERS)}")
    if dtype not in DTYPES:
        raise ModelError(f"model {path!r}: dtype {dtype} is not supported, only float64, float32 and bfloat16")
    found = find(path, base_dir)
    with _quiet(), _one_sentence(path, found):
        config = transformers.AutoConfig.from_pretrained(found)
        set_dropout(config, dropout)
        module, fresh = _load_module(kind, found, config, dtype, noise.key(seed, name))
        tokenizer = _load_tokenizer(found)
    set_dropout(module, dropout)
    if dtype != torch.bfloat16:  # there the library's rounding to float32 is what keeps the norm right
        replace_norms(module)
    _own_memory(module)
    module.to(device).eval()
    return Role(kind, name, module, tokenizer, module.config, str(path), dropout, fresh_head=fresh)


def save_role(role: Role, directory: str | Path) -> None:
    """Write a Hugging Face directory (safetensors, config, generation config, tokenizer) that loads as the same model.

    The directory appears whole or not at all: it is written beside its place and renamed. An older one is replaced.
    All ranks of the role's mesh call it; the first one writes.
    """
    with role.whole():
        if role.parallel is None:
            _save(role, Path(directory))
        else:
            on_first(role.parallel.channel, f"the saving of {role.name}", lambda: _save(role, Path(directory)))


def _save(role: Role, target: Path) -> bytes:
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        with _quiet():
            # Not the module's own state_dict(): FSDP2 would hand out shards.
            state = {**dict(role.module.named_parameters(remove_duplicate=False)), **_kept_buffers(role.module)}
            role.module.save_pretrained(staging / "new", state_dict=state)  # type: ignore[operator]
            if role.tokenizer is not None:
                role.tokenizer.save_pretrained(staging / "new")
        _put_in_place(staging / "new", target, staging / "old")
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return b""


def _kept_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that belong into a file."""
    return {
        f"{path}.{name}".removeprefix("."): buffer
        for path, part in module.named_modules()
        for name, buffer in part._buffers.items()
        if buffer is not None and name not in part._non_persistent_buffers_set
    }


def _put_in_place(new: Path, target: Path, old: Path) -> None:
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise


def find(path: str, base_dir: str | Path | None = None) -> str:
    """The directory that `path` means, or `path` itself as a hub id. Raises ModelError where it can be neither."""
    places = [Path(path).expanduser()]
    if base_dir is not None:
        places.insert(0, Path(base_dir) / places[0])
    for place in places:
        if place.is_dir():
            return str(place)
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        looked = " or ".join(str(place.absolute()) for place in places)
        raise ModelError(
            f"model {path!r} not found: there is no directory {looked}; give an existing directory or a hub id"
        )
    return path


def directory_digest(path: str, base_dir: str | Path | None = None) -> str:
    """A digest of a model directory that changes when its weights do: names, sizes and both ends of its files."""
    folder = Path(find(path, base_dir))
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*")) if folder.is_dir() else ():
        if file.is_file():
            digest.update(f"{file.name}:{file.stat().st_size}:".encode())
            with file.open("rb") as data:
                digest.update(data.read(_DIGEST_BYTES))
                data.seek(max(0, file.stat().st_size - _DIGEST_BYTES))
                digest.update(data.read(_DIGEST_BYTES))
    return digest.hexdigest()


def fresh_head(shape: torch.Size, key: int) -> Tensor:
    """Weights of a new scalar head, float64 [1, hidden]: normal with standard deviation 0.02 / sqrt(hidden).

    Hidden states leave the backbone normalised to about 1 per element, so first values are about 0.02: near 0, yet not
    exactly 0, which would keep the first update from reaching the backbone. A function of `key` alone.
    """
    keys = torch.full((1,), key)
    drawn: Tensor = torch.erfinv(2 * noise.uniform(keys, shape.numel()) - 1) * (2**0.5 * 0.02 / shape[-1] ** 0.5)
    return drawn.view(shape)


def _load_module(kind: Kind, path: str, config: Any, dtype: torch.dtype, key: int) -> tuple[nn.Module, bool]:
    """The module, and whether its scalar head had to be drawn."""
    options: dict[str, Any] = {"config": config, "dtype": dtype, "output_loading_info": True}
    if kind != "causal_lm":
        config.num_labels = 1
    module, info = _LOADERS[kind].from_pretrained(path, **options)
    missing = set(info["missing_keys"])
    fresh = kind != "causal_lm" and "score.weight" in missing
    if fresh:
        module.score.weight.data.copy_(fresh_head(module.score.weight.shape, key))
        missing.discard("score.weight")
    _refuse_missing(path, missing, info)
    return module, fresh


def _refuse_missing(path: str, missing: set[str], info: Mapping[str, Any]) -> None:
    # Hugging Face fills what a file lacks with random weights and goes on: that is never what a flow means.
    wrong = sorted(missing) or sorted(str(key) for key in info.get("mismatched_keys") or ())
    if wrong:
        raise ModelError(
            f"model {path!r} lacks weights that its config asks for: {', '.join(wrong[:3])} ({len(wrong)} in all)"
        )


def _own_memory(module: nn.Module) -> None:
    """Move the weights out of the mapped file into memory that torch has aligned.

    Where a tensor begins in a file depends on the other tensors' names, and kernels round differently for another
    alignment: without this a run resumed from its own checkpoint would not be bit-equal.
    """
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()


def load_tokenizer(path: str, base_dir: str | Path | None = None) -> Any:
    """The tokenizer of a model directory; None where it has none."""
    with _quiet():
        return _load_tokenizer(find(path, base_dir))


def _load_tokenizer(path: str) -> Any:
    patterns = ("tokenizer*", "vocab*", "*.model", "tekken.json")
    if Path(path).is_dir() and not any(file for pattern in patterns for file in Path(path).glob(pattern)):
        return None  # transformers would make up an empty one
    return transformers.AutoTokenizer.from_pretrained(path)


@contextmanager
def _one_sentence(path: str, found: str) -> Iterator[None]:
    """Turns the pages that transformers prints for a missing or foreign model into one ModelError."""
    try:
        yield
    except (OSError, ValueError) as error:
        if Path(found).is_dir():
            reason = str(error).strip().splitlines()[0]
            raise ModelError(f"the directory {found} does not hold a model that can be loaded: {reason}") from error
        raise ModelError(
            f"model {path!r} not found: no such directory here, and the Hugging Face hub has no such model or cannot "
            f"be reached; give a directory, or run `hf download {path}` where there is a network"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bars and notes; what matters in them is raised as a ModelError."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
