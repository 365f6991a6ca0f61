"""Models on several ranks: the numbers of one process, whatever the layout and whoever has how many rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from shardflow.runtime.execution.optimizer import Trainer
from shardflow.runtime.models import (
    Role,
    Sequences,
    count_passes,
    enable_checkpointing,
    evaluate,
    forward,
    idle,
    load_role,
    micro_batches,
    touch,
)
from shardflow.runtime.models.sharding import lay_out, open_mesh
from shardflow.runtime.ranks import World

from .pool import Pool

LAYOUTS = pytest.mark.parametrize(("ranks", "fsdp"), [(2, 1), (2, 2), (4, 1), (4, 2), (4, 4)])

OPTIMIZER: dict[str, Any] = {
    "lr": 1e-2,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "clip_norm": 0.05,
    "warmup": 2,
    "schedule": "constant",
    "decay": None,
    "floor": 0.0,
}

# Micro-batches of so many tokens, and how many rows each rank has: one has none.
BUDGET = 24
ROWS = (5, 0, 3, 1)


def load(path: str, kind: Any = "causal_lm", dtype: torch.dtype = torch.float64, **options: Any) -> Role:
    return load_role(kind, path, dtype=dtype, **options)


def placed(world: World, fsdp: int, role: Role) -> Role:
    """The role laid out over all ranks."""
    mesh = open_mesh("cpu", range(world.size), fsdp, world.timeout)
    assert mesh is not None
    lay_out(role, mesh, world.channel("world"))
    return role


def rows_of(rank: int, step: int = 0) -> Sequences:
    g = torch.Generator().manual_seed(100 * step + rank)

    def some(most: int, least: int) -> list[list[int]]:
        counts = torch.randint(least, most, (ROWS[rank],), generator=g).tolist()
        return [torch.randint(0, 258, (n,), generator=g).tolist() for n in counts]

    return Sequences(some(9, 1), some(9, 0))


def all_rows(ranks: int, step: int = 0) -> Sequences:
    parts = [rows_of(rank, step) for rank in range(ranks)]
    return Sequences([c for p in parts for c in p.context], [r for p in parts for r in p.response])


def agreed(world: World, count: int) -> int:
    return int(world.channel("world").gather(torch.tensor([count]), "passes").max())


def whole_weights(role: Role) -> dict[str, Tensor]:
    with role.whole():
        return {name: p.detach().clone() for name, p in role.module.named_parameters()}


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], share: float = 1e-12) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].shape == tensor.shape and ours[name].dtype == tensor.dtype, name
        assert (ours[name] - tensor).norm() <= share * tensor.norm(), name


# ---------------------------------------------------------------- what a model says


def says(world: World, path: str, kind: str, want: tuple[str, ...], fsdp: int) -> None:
    alone, role = load(path, kind), placed(world, fsdp, load(path, kind))
    role.module.requires_grad_(False)
    seqs = rows_of(world.rank)
    passes = agreed(world, count_passes(seqs, BUDGET))
    for _ in range(2):
        ours = evaluate(role, seqs, want, 0.7, BUDGET, passes)
        assert_close(ours, evaluate(alone, seqs, want, 0.7, BUDGET))
    assert all(isinstance(p, DTensor) == (fsdp > 1) for p in role.parameters())


@LAYOUTS
def test_a_role_says_what_it_says_in_one_process(pool: Pool, tiny_dirs: dict[str, str], ranks: int, fsdp: int) -> None:
    pool.run(says, tiny_dirs["llama_varied"], "causal_lm", ("logprobs", "entropy"), fsdp, ranks=ranks)
    pool.run(says, tiny_dirs["qwen2"], "value_model", ("values",), fsdp, ranks=ranks)


@pytest.mark.parametrize("family", ["gpt2", "qwen3", "mistral"])
def test_every_family_can_be_sharded(pool: Pool, tiny_dirs: dict[str, str], family: str) -> None:
    pool.run(says, tiny_dirs[family], "causal_lm", ("logprobs",), 4)
    pool.run(says, tiny_dirs[family], "reward_model", ("score",), 4)


# ---------------------------------------------------------------- what it learns


def part_of_loss(role: Role, seqs: Sequences, want: tuple[str, ...], chunk: int | None) -> Tensor:
    """A part of a loss whose denominators are those of all rows together."""
    out = forward(role, seqs, want, 0.7, chunk)
    terms = [out[name].square() if name == "values" else out[name] * (0.1 + out[name].detach()) for name in want]
    return sum((t.sum() for t in terms), touch(out.values())) / 40


def learn(role: Role, seqs: Sequences, want: tuple[str, ...], chunk: int | None, passes: int) -> None:
    groups = micro_batches(seqs.lengths, BUDGET)
    for group in groups:
        torch.autograd.backward(part_of_loss(role, seqs.select(group), want, chunk))
    for _ in range(len(groups), passes):
        idle(role, want)


def learns(
    world: World, make: Callable[[], Role], want: tuple[str, ...], chunk: int | None, fsdp: int, share: float = 1e-12
) -> None:
    alone, role = make(), placed(world, fsdp, make())
    ours, theirs = Trainer(role, OPTIMIZER), Trainer(alone, OPTIMIZER)
    for step in range(3):
        mine = rows_of(world.rank, step)
        learn(role, mine, want, chunk, agreed(world, count_passes(mine, BUDGET)))
        learn(alone, all_rows(world.size, step), want, chunk, 0)
        norm, expected = ours.step(), theirs.step()
        assert abs(norm - expected) <= 1e-12 * expected
        assert len(set(world.channel("world").gather(torch.tensor([norm]).double(), "norms")[:, 0].tolist())) == 1
        assert_close(whole_weights(role), whole_weights(alone), share)


@LAYOUTS
def test_three_steps_are_those_of_one_process(pool: Pool, tiny_dirs: dict[str, str], ranks: int, fsdp: int) -> None:
    make = partial(load, tiny_dirs["llama_varied"])  # a tied head
    pool.run(learns, make, ("logprobs", "entropy"), None, fsdp, ranks=ranks)


@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_every_family_learns_in_shards(pool: Pool, tiny_dirs: dict[str, str], family: str) -> None:
    # The bias of a key without rotation changes nothing, so its gradient is noise, which Adam divides by noise.
    pool.run(learns, partial(load, tiny_dirs[family]), ("logprobs",), None, 2, 1e-9 if family == "gpt2" else 1e-12)
    pool.run(learns, partial(load, tiny_dirs[family], "value_model"), ("values",), None, 4)


def test_a_head_in_chunks_learns_in_shards(pool: Pool, tiny_dirs: dict[str, str]) -> None:
    pool.run(learns, partial(load, tiny_dirs["qwen2"]), ("logprobs", "entropy"), 4, 4)
    pool.run(learns, partial(load, tiny_dirs["llama_varied"]), ("logprobs",), 4, 2)


def checkpointed(path: str) -> Role:
    role = load(path)
    enable_checkpointing(role)
    return role


def test_layers_are_recomputed_in_shards(pool: Pool, tiny_dirs: dict[str, str]) -> None:
    pool.run(learns, partial(checkpointed, tiny_dirs["llama_varied"]), ("logprobs",), None, 4)
