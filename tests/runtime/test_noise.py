"""Keyed noise: a pure function of its key, with the statistics of independent draws."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardflow.runtime import noise


def keys(rows: int, seed: int = 0) -> torch.Tensor:
    return noise.row_keys(seed, "flow", "rollout", 3, torch.arange(rows), torch.zeros(rows, dtype=torch.long))


def test_numbers_are_frozen() -> None:
    # A change here breaks the resume of every run: old noise could not be drawn again.
    assert noise.key(7, "grpo", "rollout") == 7078937139576342810
    assert keys(2).tolist() == [-3285152738167977718, -3564569928796267633]
    assert noise.permutation(6, 7, "shuffle").tolist() == [1, 2, 4, 5, 0, 3]
    assert noise.gumbel(keys(1), 2, 3)[0].tolist() == pytest.approx(
        [0.9294820975586822, 0.8353740988746198, 0.5231629053022085]
    )


def test_keys_do_not_depend_on_the_process() -> None:
    code = "from shardflow.runtime import noise; print(noise.key(1, 'a', 'b'), noise.key(1, 'ab', ''))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.split() == [str(noise.key(1, "a", "b")), str(noise.key(1, "ab", ""))]


def test_every_part_of_the_key_counts() -> None:
    zero = torch.zeros(1, dtype=torch.long)
    base = noise.row_keys(0, "f", "v", 0, zero, zero)
    others = [
        noise.row_keys(1, "f", "v", 0, zero, zero),
        noise.row_keys(0, "g", "v", 0, zero, zero),
        noise.row_keys(0, "f", "w", 0, zero, zero),
        noise.row_keys(0, "f", "v", 1, zero, zero),
        noise.row_keys(0, "f", "v", 0, zero + 1, zero),
        noise.row_keys(0, "f", "v", 0, zero, zero + 1),
    ]
    assert len({int(k) for k in [base, *others]}) == 7
    similar: list[tuple[int | str, ...]] = [("ab", "c"), ("a", "bc"), ("1",), (1,), ("1", ""), ("", "1")]
    assert len({noise.key(*parts) for parts in similar}) == 6


def test_draw_and_sample_numbers_do_not_collide() -> None:
    draws, samples = torch.arange(1000).repeat_interleave(64), torch.arange(64).repeat(1000)
    assert len(set(noise.row_keys(0, "f", "v", 0, draws, samples).tolist())) == 64_000


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 40), st.integers(0, 30))
def test_positions_rows_and_vocabulary_shards_are_slices(rows: int, positions: int, vocab: int, offset: int) -> None:
    row_keys, where = keys(rows), torch.arange(positions) + 5
    whole = noise.gumbel(row_keys, where, vocab + offset)
    assert torch.equal(noise.gumbel(row_keys, where, vocab, offset), whole[..., offset:])
    assert torch.equal(noise.gumbel(row_keys[-1:], int(where[-1]), vocab + offset), whole[-1, -1:])


def test_thread_count_changes_nothing() -> None:
    threads, drawn = torch.get_num_threads(), noise.gumbel(keys(64), torch.arange(8), 300)
    try:
        torch.set_num_threads(2)
        assert torch.equal(noise.gumbel(keys(64), torch.arange(8), 300), drawn)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_draws_the_same() -> None:
    on_gpu = keys(64).cuda()
    assert torch.equal(noise.uniform(on_gpu, 300).cpu(), noise.uniform(keys(64), 300))
    assert torch.allclose(noise.gumbel(on_gpu, 3, 300).cpu(), noise.gumbel(keys(64), 3, 300), rtol=1e-14, atol=1e-14)


def test_uniform_is_uniform_and_open() -> None:
    u = noise.uniform(keys(200), 5000).flatten()
    assert float(u.min()) > 0 and float(u.max()) < 1
    counts = torch.histc(u, bins=1000, min=0, max=1)
    chi2 = float(((counts - 1000) ** 2 / 1000).sum())
    assert abs(chi2 - 999) < 5 * math.sqrt(2 * 999)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_neighbours_are_independent_along_every_axis(dim: int) -> None:
    u = noise.uniform(keys(64), 64, torch.arange(64)) - 0.5
    for lag in (1, 2, 16):
        pair = (u.narrow(dim, 0, 64 - lag) * u.narrow(dim, lag, 64 - lag)).flatten()
        assert abs(float(pair.mean())) < 5 / 12 / math.sqrt(pair.numel())


def test_every_bit_is_fair() -> None:
    bits = (noise.uniform(keys(100), 1000).flatten() * 2.0**52).to(torch.int64)
    for bit in range(52):
        assert abs(float((bits >> bit & 1).double().mean()) - 0.5) < 5 * 0.5 / math.sqrt(bits.numel())


def test_gumbel_moments() -> None:
    g = noise.gumbel(keys(500), 0, 2000)
    assert float(g.mean()) == pytest.approx(0.5772156649, abs=0.01)
    assert float(g.var()) == pytest.approx(math.pi**2 / 6, abs=0.02)


def test_argmax_samples_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0], dtype=torch.float64)
    drawn = (logits + noise.gumbel(keys(200_000), 0, 5)).argmax(-1)
    share = torch.bincount(drawn, minlength=5) / 200_000
    p = logits.softmax(-1)
    assert ((share - p).abs() < 5 * (p * (1 - p) / 200_000).sqrt()).all()


def test_permutations() -> None:
    assert sorted(noise.permutation(100, 3, "a").tolist()) == list(range(100))
    assert noise.permutation(100, 3, "a").tolist() != noise.permutation(100, 3, "b").tolist()
    assert noise.permutation(0, 1).tolist() == []
    first = torch.stack([noise.permutation(5, i) for i in range(4000)])[:, 0]
    assert (torch.bincount(first) / 4000 - 0.2).abs().max() < 5 * math.sqrt(0.16 / 4000)
