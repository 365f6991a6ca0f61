"""What every generation engine is: a typed state machine around "prompts and keys in, tokens out"."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import RunError
from ..models.loading import Role
from ..models.text import stop_ids
from .decoding import Session, decode
from .sampling import Sampler

# Keys and values of one wave of rows; more prompts than fit are decoded wave after wave, with the same tokens.
_CACHE_BYTES = 1 << 30

# Noise of one position, [rows, vocab]: it is float64, with temporaries of as much again.
_NOISE_ELEMENTS = 1 << 26


class EngineError(RunError):
    """An engine was asked for what its state or its model does not allow; one sentence."""


@dataclass(frozen=True)
class Sampling:
    """How to sample, for a batch of prompts.

    n: samples per prompt; None counts as 1. max_new_tokens, temperature: one per prompt; temperature 0 takes the
    likeliest token. min_new_tokens: no end of sequence among so many first tokens. top_k 0 and top_p 1.0 filter
    nothing; both act after the temperature.
    """

    n: int | None
    max_new_tokens: list[int]
    temperature: list[float]
    min_new_tokens: int = 0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        checks = {
            "n": (self.n is None or self.n >= 1, self.n, "at least 1"),
            "max_new_tokens": (
                min(self.max_new_tokens, default=1) >= 1,
                self.max_new_tokens,
                "at least 1 in every row",
            ),
            "temperature": (min(self.temperature, default=0.0) >= 0, self.temperature, "0 or more in every row"),
            "min_new_tokens": (self.min_new_tokens >= 0, self.min_new_tokens, "0 or more"),
            "top_k": (self.top_k >= 0, self.top_k, "0 (off) or more"),
            "top_p": (0 < self.top_p <= 1, self.top_p, "more than 0 and at most 1 (off)"),
        }
        for name, (good, value, allowed) in checks.items():
            if not good:
                raise EngineError(f"{name}={value} cannot be sampled with: it must be {allowed}")

    @property
    def samples(self) -> int:
        return 1 if self.n is None else self.n

    def select(self, rows: range) -> "Sampling":
        part = slice(rows.start, rows.stop)
        return replace(self, max_new_tokens=self.max_new_tokens[part], temperature=self.temperature[part])


@dataclass(frozen=True)
class Generated:
    """Sampled responses, packed; rows are (prompt, sample), samples of a prompt together.

    tokens: int64 [T], the end-of-sequence token included. lengths: int64 [rows * n], they sum to T.
    logprobs: float [T], of each token under the distribution it was drawn from (temperature, top-k, top-p and
    min_new_tokens applied); at temperature 0, log_softmax of the plain logits.
    truncated: bool [rows * n], whether max_new_tokens came before an end of sequence.
    """

    tokens: Tensor
    logprobs: Tensor
    lengths: Tensor
    truncated: Tensor


@dataclass(frozen=True)
class Asleep:
    """No weights are held."""


@dataclass(frozen=True)
class Loaded:
    """Weights of a version are held, nothing was generated with them yet."""

    version: int


@dataclass(frozen=True)
class Serving:
    """Something was generated with the weights of this version."""

    version: int


class Engine(ABC):
    """asleep → weights@v → serving@v.

    `load_weights` is legal in every state and forgets all that came from older weights; `generate` needs weights;
    `sleep` gives them up and is refused where there are none. Engines sample with the noise of the keys, so a token is
    `argmax(logits / T + Gumbel(key, position))` whatever the engine and the company a row is in.

    reason: why this engine was picked where a faster one might have been expected.
    """

    def __init__(self, reason: str = "") -> None:
        self.state: Asleep | Loaded | Serving = Asleep()
        self.reason = reason
        self._stops: set[int] = set()
        self._role: Role | None = None

    def load_weights(self, role: Role, version: int) -> None:
        """Take the weights of `role` as they are now. Changing them afterwards calls for another load."""
        if role.kind != "causal_lm":
            raise EngineError(f"{role.name} is a {role.kind}: only a causal_lm generates")
        vocab = role.config.get_text_config().vocab_size
        self._role, self._stops = role, {i for i in stop_ids(role) if i < vocab}
        self._take_weights(role)
        self.state = Loaded(version)

    def generate(self, prompts: list[list[int]], sampling: Sampling, keys: Tensor) -> Generated:
        """Sample `sampling.samples` responses to each prompt.

        prompts: token ids, at least one per prompt; no prompts give no rows. keys: int64 [rows * n], of
        `noise.row_keys`.
        Raises EngineError: asleep, sizes that do not go together, a prompt with no room for its new tokens.
        """
        version = self._version("generate")
        self._check(prompts, sampling, keys)
        self.state = Serving(version)
        if not prompts:
            return _nothing(keys.device)
        with torch.inference_mode():
            waves = [self._wave(prompts, sampling, keys, rows) for rows in self._waves(prompts, sampling)]
        # Inference tensors may not enter autograd, and results do (as the old log-probs of a ratio): copy them out.
        return Generated(*(torch.cat(column).clone() for column in zip(*waves, strict=True)))

    def sleep(self) -> None:
        """Give up the weights."""
        self._version("sleep")
        self._role = None
        self._drop_weights()
        self.state = Asleep()

    @abstractmethod
    def _take_weights(self, role: Role) -> None: ...

    @abstractmethod
    def _drop_weights(self) -> None: ...

    @abstractmethod
    def _open(self, prompts: list[list[int]], samples: int, new_tokens: int) -> Session:
        """Read the prompts once and give each `samples` rows, with room for `new_tokens` more."""

    @property
    def _loaded_role(self) -> Role:
        if self._role is None:
            raise EngineError("this engine holds no weights: load_weights comes first")
        return self._role

    def _version(self, wish: str) -> int:
        match self.state:
            case Asleep():
                raise EngineError(f"{wish} was asked of an engine that is asleep: load_weights comes first")
            case Loaded(version) | Serving(version):
                return version

    def _wave(
        self, prompts: list[list[int]], sampling: Sampling, keys: Tensor, rows: range
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        part, n = sampling.select(rows), sampling.samples
        session = self._open(prompts[rows.start : rows.stop], n, max(part.max_new_tokens))
        device = self._loaded_role.device
        limits = torch.tensor(part.max_new_tokens, device=device).repeat_interleave(n)
        temperature = torch.tensor(part.temperature, dtype=torch.float64).repeat_interleave(n)
        sampler = Sampler(
            keys=keys[rows.start * n : rows.stop * n].to(device),
            temperature=temperature.to(device),
            stops=sorted(self._stops),
            min_new_tokens=part.min_new_tokens,
            top_k=part.top_k,
            top_p=part.top_p,
        )
        return decode(session, sampler, limits)

    def _waves(self, prompts: list[list[int]], sampling: Sampling) -> list[range]:
        lengths = [len(p) + new for p, new in zip(prompts, sampling.max_new_tokens, strict=True)]
        bytes_per_prompt = max(lengths, default=1) * sampling.samples * self._bytes_per_token()
        noise_per_prompt = sampling.samples * self._loaded_role.config.get_text_config().vocab_size
        size = max(1, min(_CACHE_BYTES // bytes_per_prompt, _NOISE_ELEMENTS // noise_per_prompt))
        return [range(i, min(i + size, len(prompts))) for i in range(0, len(prompts), size)]

    def _bytes_per_token(self) -> int:
        role = self._loaded_role
        config = role.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * config.num_hidden_layers * heads * width * role.dtype.itemsize)

    def _check(self, prompts: list[list[int]], sampling: Sampling, keys: Tensor) -> None:
        rows = len(prompts)
        sizes = {
            "max_new_tokens": (len(sampling.max_new_tokens), rows),
            "temperature": (len(sampling.temperature), rows),
            "keys": (keys.numel(), rows * sampling.samples),
        }
        for name, (found, needed) in sizes.items():
            if found != needed:
                raise EngineError(
                    f"{name} has {found} entries for {rows} prompts x {sampling.samples} samples: {needed} needed"
                )
        room = getattr(self._loaded_role.config.get_text_config(), "max_position_embeddings", None)
        for row, (prompt, new) in enumerate(zip(prompts, sampling.max_new_tokens, strict=True)):
            if not prompt:
                raise EngineError(f"prompt {row} is empty: it needs at least one token")
            if room is not None and len(prompt) + new > room:
                raise EngineError(
                    f"prompt {row} has {len(prompt)} tokens and may get {new} more, but {self._loaded_role.name} reads "
                    f"at most {room} (max_position_embeddings): shorten the prompt or lower max_new_tokens"
                )


def _nothing(device: torch.device) -> Generated:
    ints = torch.zeros(0, dtype=torch.long, device=device)
    return Generated(ints, torch.zeros(0, device=device), ints, torch.zeros(0, dtype=torch.bool, device=device))
