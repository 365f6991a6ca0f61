"""Keyed noise: every random number is a pure function of what it is for, never of when or where it is drawn.

A number is an integer counter hash of (seed, flow, value, step, draw number, sample, token position, vocabulary id), so
it does not depend on ranks, threads or the composition of a batch. The hash is splitmix64 (Steele, Lea, Flood: "Fast
splittable pseudorandom number generators", OOPSLA 2014) in wrapped int64 arithmetic: the integers are the same on every
device, and the float64 made from them differs by no more than the last bit of `log`.
"""

import hashlib

import torch
from torch import Tensor

# The constants of splitmix64 as signed 64-bit numbers: torch has no unsigned multiplication.
_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)

# 52 and not 53: then (bits + 1/2) * 2^-52 is exact, hence never 0 or 1, and a Gumbel is always finite.
_BITS = 52


def key(*parts: int | str) -> int:
    """A signed 64-bit hash of `parts`, the same in every process (Python's own `hash` of a string is not)."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = str(part).encode()
        # Kind and length go in too, so that ("ab", "c") and ("a", "bc"), or 1 and "1", get different keys.
        digest.update(f"{type(part).__name__}:{len(text)}:".encode() + text)
    return int.from_bytes(digest.digest(), "little", signed=True)


def row_keys(seed: int, flow: str, value: str, step: int, draws: Tensor, samples: Tensor) -> Tensor:
    """Keys of the rows of one draw.

    draws, samples: int64 [rows], the row's draw number (rows handed out since step 0) and its sample number.
    Returns int64 [rows], on the device of `draws`.
    """
    return _absorb(_absorb(_absorb(torch.zeros_like(draws), key(seed, flow, value, step)), draws), samples)


def gumbel(keys: Tensor, position: int | Tensor, vocab: int, offset: int = 0) -> Tensor:
    """Standard Gumbel noise for tokens; `argmax(logits / T + noise)` samples softmax(logits / T) (Gumbel, 1954).

    keys: int64 [rows]. position: the token's number in its response, or int64 [positions] of them.
    vocab: how many vocabulary ids, from `offset` on: a shard of the vocabulary draws exactly its slice.
    Returns float64 [rows, vocab], or [positions, rows, vocab] where `position` is a tensor.
    """
    return _uniform(_token_keys(keys, position), vocab, offset).log_().neg_().log_().neg_()


def uniform(keys: Tensor, count: int, position: int | Tensor = 0, offset: int = 0) -> Tensor:
    """Uniform noise in the open interval (0, 1), shaped and keyed as in `gumbel`."""
    return _uniform(_token_keys(keys, position), count, offset)


def permutation(n: int, *parts: int | str) -> Tensor:
    """A permutation of range(n), int64 [n], that depends on `parts` alone: the order of n hashes."""
    counters = torch.arange(n)
    return torch.argsort(_absorb(torch.full_like(counters, key(*parts)), counters), stable=True)


def _token_keys(keys: Tensor, position: int | Tensor) -> Tensor:
    if isinstance(position, Tensor):
        return _absorb(keys[None, :], position[:, None])
    return _absorb(keys, position)


def _uniform(keys: Tensor, count: int, offset: int) -> Tensor:
    counters = torch.arange(offset + 1, offset + count + 1, device=keys.device).mul_(_GAMMA)
    mixed = _mix(keys[..., None] + counters)
    # The high bits of the last product depend on every bit below, so splitmix64's closing shift is not needed.
    bits = mixed.bitwise_right_shift_(64 - _BITS).bitwise_and_((1 << _BITS) - 1)
    return bits.to(torch.float64).add_(0.5).mul_(2.0**-_BITS)


def _absorb(state: Tensor, part: int | Tensor) -> Tensor:
    """`state` hashed together with one more part; broadcasts, and for a given state loses nothing of `part`."""
    if isinstance(part, int):
        part = torch.tensor(part, device=state.device)
    mixed = _mix(state + (part + 1) * _GAMMA)
    return mixed.bitwise_xor_(_logical_shift(mixed, 31))


def _mix(z: Tensor) -> Tensor:
    """The two multiplying rounds of splitmix64, in place."""
    z.bitwise_xor_(_logical_shift(z, 30)).mul_(_FIRST)
    return z.bitwise_xor_(_logical_shift(z, 27)).mul_(_SECOND)


def _logical_shift(z: Tensor, by: int) -> Tensor:
    # torch shifts int64 arithmetically: clear the copies of the sign bit.
    return torch.bitwise_right_shift(z, by).bitwise_and_((1 << (64 - by)) - 1)
