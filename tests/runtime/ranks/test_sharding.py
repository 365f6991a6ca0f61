"""Models on several ranks: the numbers of one process, whatever the layout and whoever has how many rows."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from shardflow.runtime.engines import Sampling, make_engine
from shardflow.runtime.errors import RunError
from shardflow.runtime.execution.optimizer import Trainer
from shardflow.runtime.models import (
    ModelError,
    Role,
    Sequences,
    count_passes,
    enable_checkpointing,
    evaluate,
    forward,
    idle,
    load_role,
    micro_batches,
    save_role,
    tie,
    touch,
)
from shardflow.runtime.models.loading import local
from shardflow.runtime.models.sharding import device_group, lay_out, open_mesh
from shardflow.runtime.models.weights import Holding, Route, gather_weights, send_weights, whole_twin
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


def digest(tensors: dict[str, Tensor]) -> bytes:
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors.values())).digest()


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
        weights = whole_weights(role)
        assert_close(weights, whole_weights(alone), share)
        assert len(set(world.channel("world").collect(digest(weights), "weights"))) == 1


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


def learns_from_pairs(world: World, path: str, fsdp: int) -> None:
    """A loss of two forward passes, such as DPO's; the ranks' losses have them in different orders."""
    alone, role = checkpointed(path), placed(world, fsdp, checkpointed(path))
    ours, theirs = Trainer(role, OPTIMIZER), Trainer(alone, OPTIMIZER)
    for model, ranks in ((role, [world.rank]), (alone, range(world.size))):
        for rank in ranks:
            pairs = [rows_of(rank, step) for step in (0, 1)]
            if not len(pairs[0]):
                idle(model, ("logprobs",), ("entropy",))
                continue
            first, second = forward(model, pairs[0], ("logprobs",)), forward(model, pairs[1], ("entropy",))
            x, y = tie([first["logprobs"], second["entropy"]])
            loss = (y.sum() * x.sum() if rank % 2 else x.sum() * y.sum()) / 40
            torch.autograd.backward(loss + touch([x, y]))
    assert abs(ours.step() / theirs.step() - 1) < 1e-12
    assert_close(whole_weights(role), whole_weights(alone))


def test_a_loss_of_two_passes(pool: Pool, tiny_dirs: dict[str, str]) -> None:
    for fsdp in (1, 2, 4):
        pool.run(learns_from_pairs, tiny_dirs["llama_varied"], fsdp)


def learns_in_bfloat16(world: World, path: str, fsdp: int) -> None:
    alone, role = load(path, dtype=torch.bfloat16), placed(world, fsdp, load(path, dtype=torch.bfloat16))
    ours, theirs = Trainer(role, OPTIMIZER), Trainer(alone, OPTIMIZER)
    mine = rows_of(world.rank)
    learn(role, mine, ("logprobs",), None, agreed(world, count_passes(mine, BUDGET)))
    learn(alone, all_rows(world.size), ("logprobs",), None, 0)
    assert abs(ours.step() / theirs.step() - 1) < 0.05
    assert_close(whole_weights(role), whole_weights(alone), 0.05)
    masters = [m for name, m in ours.tensors().items() if name.startswith("master")]
    assert all(m.dtype == torch.float32 and isinstance(m, DTensor) == (fsdp > 1) for m in masters)


def test_bfloat16_weights_have_masters_in_shards(pool: Pool, tiny_dirs: dict[str, str]) -> None:
    for fsdp in (1, 2, 4):
        pool.run(learns_in_bfloat16, tiny_dirs["llama_varied"], fsdp)


# ---------------------------------------------------------------- passes without rows


def takes_part(world: World, path: str) -> None:
    role = placed(world, 2, load(path))
    empty = Sequences([], [])
    out = forward(role, empty, ("logprobs", "entropy"))
    assert all(len(value) == 0 and value.requires_grad for value in out.values())
    zero = touch(out.values())
    assert zero.item() == 0 and zero.dtype == torch.float64
    torch.autograd.backward(zero)
    idle(role, ("logprobs",))
    assert all(p.grad is not None and not local(p.grad).any() for p in role.parameters())
    assert not len(evaluate(role, empty, ("entropy",), passes=2)["entropy"])


def test_a_pass_without_rows_has_a_gradient_of_zeros(pool: Pool, tiny_dirs: dict[str, str]) -> None:
    pool.run(takes_part, tiny_dirs["llama"], ranks=2)


def test_a_touch_of_what_is_not_finite_is_a_zero() -> None:
    x = torch.tensor([float("-inf"), float("nan"), 1.0], requires_grad=True)
    zero = touch([x.log(), x * 2])
    torch.autograd.backward(zero)
    assert zero.item() == 0 and x.grad is not None
    assert torch.equal(touch([x]), torch.zeros(()))
    assert x.grad[2] == 0


def test_one_process_needs_no_passes_without_rows(tiny_dirs: dict[str, str]) -> None:
    role = load(tiny_dirs["llama"])
    idle(role, ("logprobs",))
    assert all(p.grad is None for p in role.parameters())
    assert count_passes(rows_of(0), BUDGET) == len(micro_batches(rows_of(0).lengths, BUDGET)) > 1


# ---------------------------------------------------------------- copies


def disturbed(role: Role, seed: int) -> Role:
    """The role with other weights, the same on all ranks."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in role.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return role


def copies(world: World, path: str, fsdp: int) -> None:
    role, alone = placed(world, fsdp, disturbed(load(path), 1)), disturbed(load(path), 1)
    enable_checkpointing(role)
    before = role.clone("before")
    assert before.name == "before" and not any(
        a is b for a, b in zip(before.parameters(), role.parameters(), strict=True)
    )
    other = placed(world, fsdp, disturbed(load(path), 2))
    role.lerp_from(other, 0.75)
    alone.lerp_from(disturbed(load(path), 2), 0.75)
    assert_equal(whole_weights(role), whole_weights(alone))
    assert_equal(whole_weights(before), whole_weights(disturbed(load(path), 1)))
    before.copy_from(role)
    assert_equal(whole_weights(before), whole_weights(alone))
    seqs = rows_of(0)
    assert_close(evaluate(before, seqs, ("logprobs",)), evaluate(alone, seqs, ("logprobs",)))
    learn(before, seqs, ("logprobs",), None, 0)
    assert all(p.grad is not None for p in before.parameters())


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and torch.equal(ours[name], tensor), name


@LAYOUTS
def test_a_copy_has_the_layout_and_weights_of_its_own(
    pool: Pool, tiny_dirs: dict[str, str], ranks: int, fsdp: int
) -> None:
    pool.run(copies, tiny_dirs["llama_varied"], fsdp, ranks=ranks)


def other_layout(world: World, path: str) -> str:
    sharded, replicated = placed(world, 2, load(path)), placed(world, 1, load(path))
    try:
        sharded.copy_from(replicated)
    except ModelError as error:
        return str(error)
    return ""


def test_a_copy_from_another_layout_is_refused(pool: Pool, tiny_dirs: dict[str, str]) -> None:
    told = pool.run(other_layout, tiny_dirs["llama"], ranks=2)
    assert told == ["policy cannot copy the weights of policy: they lie on the ranks otherwise"] * 2


def saves(world: World, path: str, out: Path, fsdp: int) -> None:
    role = placed(world, fsdp, disturbed(load(path), 3))
    save_role(role, out)
    assert_equal(whole_weights(load(str(out))), whole_weights(disturbed(load(path), 3)))


@pytest.mark.parametrize("family", ["llama_varied", "gpt2", "qwen3"])
def test_a_saved_role_loads_in_one_process(pool: Pool, tiny_dirs: dict[str, str], tmp_path: Path, family: str) -> None:
    for fsdp in (1, 2, 4):
        pool.run(saves, tiny_dirs[family], tmp_path / "out", fsdp)


def fails_to_save(world: World, path: str, out: Path) -> str:
    try:
        save_role(placed(world, 2, load(path)), out)
    except (RunError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_an_error_while_saving_is_one_on_all_ranks(pool: Pool, tiny_dirs: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    first, second = pool.run(fails_to_save, tiny_dirs["llama"], tmp_path / "file" / "out", ranks=2)
    assert first.startswith(("NotADirectoryError", "FileExistsError")) and second == f"RunError: {first}"


# ---------------------------------------------------------------- from holding to holding


def twins(world: World, path: str, fsdp: int) -> None:
    role = placed(world, fsdp, disturbed(load(path), 4))
    twin = whole_twin(role, "generating")
    expected = whole_weights(disturbed(load(path), 4))
    assert twin.parallel is None and not any(isinstance(p, DTensor) or p.requires_grad for p in twin.parameters())
    assert_equal(whole_weights(twin), expected)
    with role.whole():
        assert_equal({name: p.detach() for name, p in role.module.named_parameters()}, expected)
    narrow = load(path, dtype=torch.bfloat16)
    gather_weights(role, narrow)
    assert_equal(whole_weights(narrow), {name: p.bfloat16() for name, p in expected.items()})
    gather_weights(disturbed(load(path), 5), role)
    assert_equal(whole_weights(role), whole_weights(disturbed(load(path), 5)))
    engine = make_engine(load(path))
    with role.whole():
        engine.load_weights(role, 1)
    sampling = Sampling(n=2, max_new_tokens=[5], temperature=[1.0])
    keys = torch.tensor([3, 4])
    ours = engine.generate([[1, 2, 3]], sampling, keys)
    engine.load_weights(disturbed(load(path), 5), 2)
    theirs = engine.generate([[1, 2, 3]], sampling, keys)
    assert torch.equal(ours.tokens, theirs.tokens) and torch.equal(ours.logprobs, theirs.logprobs)


@LAYOUTS
def test_a_twin_and_an_engine_have_the_weights_whole(
    pool: Pool, tiny_dirs: dict[str, str], ranks: int, fsdp: int
) -> None:
    pool.run(twins, tiny_dirs["llama_varied"], fsdp, ranks=ranks)


def sends(
    world: World,
    path: str,
    source: tuple[tuple[int, ...], int],
    target: tuple[tuple[int, ...], int],
    dtype: torch.dtype,
) -> None:
    sides: list[Role | None] = []
    for number, (ranks, fsdp) in enumerate((source, target)):
        name = f"mesh {number}"
        world.open({name: ranks})
        mesh = open_mesh("cpu", ranks, fsdp, world.timeout)
        sides.append(None)
        if mesh is not None:
            role = disturbed(load(path), 6) if number == 0 else load(path, dtype=dtype)
            lay_out(role, mesh, world.channel(name))
            sides[-1] = role
    union = tuple(sorted({*source[0], *target[0]}))
    world.open({"union": union})
    group = device_group(union, world.timeout)
    if group is None:
        return
    route = Route(Holding(*source, torch.float64), Holding(*target, dtype), world.channel("union"), group)
    send_weights(sides[0], sides[1], route)
    if sides[1] is not None:
        expected = {name: p.to(dtype) for name, p in whole_weights(disturbed(load(path), 6)).items()}
        assert_equal(whole_weights(sides[1]), expected)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (((0, 1), 2), ((2, 3), 2)),
        (((0, 1), 1), ((2, 3), 2)),
        (((2, 3), 2), ((0,), 1)),
        (((0, 1, 2, 3), 2), ((2, 3), 1)),
        (((1, 2), 2), ((0, 1, 2, 3), 4)),
        (((0, 1, 2, 3), 4), ((0, 1, 2, 3), 2)),
    ],
)
def test_weights_go_from_mesh_to_mesh(
    pool: Pool, tiny_dirs: dict[str, str], source: tuple[tuple[int, ...], int], target: tuple[tuple[int, ...], int]
) -> None:
    pool.run(sends, tiny_dirs["llama_varied"], source, target, torch.float64)
    pool.run(sends, tiny_dirs["qwen2"], source, target, torch.bfloat16)
