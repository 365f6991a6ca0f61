"""Channels: what each operation gives on two and four ranks, and what a wait says that ends without an answer."""

import time
from datetime import timedelta

import pytest
import torch

from shardflow.runtime.errors import RunError
from shardflow.runtime.ranks import Alone, Channel, PeerError, World
from shardflow.runtime.ranks.order import Ordered

from .pool import Pool, PoolError

SIZES = pytest.mark.parametrize("ranks", [2, 4])


def gathered(world: World) -> tuple[list[list[float]], str]:
    numbers = world.channel("world").gather(torch.tensor([world.rank, 0.5], dtype=torch.float64), "counts")
    return numbers.tolist(), str(numbers.dtype)


@SIZES
def test_gather_gives_all_numbers_by_rank(pool: Pool, ranks: int) -> None:
    assert pool.run(gathered, ranks=ranks) == [([[r, 0.5] for r in range(ranks)], "torch.float64")] * ranks


def shared(world: World) -> list[bytes]:
    channel = world.channel("world")
    own = f"of rank {world.rank}".encode()
    return [channel.share(own, "state"), channel.share(own, "state", source=1), channel.share(b"", "nothing")]


@SIZES
def test_share_gives_what_the_source_has(pool: Pool, ranks: int) -> None:
    assert pool.run(shared, ranks=ranks) == [[b"of rank 0", b"of rank 1", b""]] * ranks


def collected(world: World) -> list[list[bytes]]:
    channel = world.channel("world")
    return [channel.collect(bytes([65 + world.rank]) * world.rank, "texts"), channel.collect(b"", "nothing")]


@SIZES
def test_collect_gives_bytes_of_any_length_by_rank(pool: Pool, ranks: int) -> None:
    texts = [b"", b"B", b"CC", b"DDD"][:ranks]
    assert pool.run(collected, ranks=ranks) == [[texts, [b""] * ranks]] * ranks


def exchanged(world: World) -> dict[int, list[int]]:
    outgoing = {i: torch.full((world.rank * i,), world.rank, dtype=torch.uint8) for i in range(world.size)}
    incoming = {i: world.rank * i for i in range(world.size)}
    return {i: x.tolist() for i, x in world.channel("world").exchange(outgoing, incoming, "rows").items()}


@SIZES
def test_exchange_sends_each_rank_its_bytes(pool: Pool, ranks: int) -> None:
    assert pool.run(exchanged, ranks=ranks) == [{i: [i] * (i * r) for i in range(ranks)} for r in range(ranks)]


def one_way(world: World) -> dict[int, list[int]]:
    channel = world.channel("world")
    if world.rank == 0:
        channel.exchange({3: torch.tensor([7, 8], dtype=torch.uint8)}, {}, "rows")
        return {}
    return {i: x.tolist() for i, x in channel.exchange({}, {0: 2} if world.rank == 3 else {}, "rows").items()}


def test_only_those_named_take_part_in_an_exchange(pool: Pool) -> None:
    assert pool.run(one_way) == [{}, {}, {}, {0: [7, 8]}]


def added(world: World, dtype: torch.dtype) -> list[list[float]]:
    tensor = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=dtype).T * (world.rank + 1)
    world.channel("world").add(tensor, "gradient")
    return tensor.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_add_sums_in_place_in_every_dtype_and_stride(pool: Pool, dtype: torch.dtype) -> None:
    assert pool.run(added, dtype) == [[[10.0, 40.0], [20.0, 50.0], [30.0, 60.0]]] * 4


def in_groups(world: World) -> dict[str, list[float]]:
    world.open({"actor": (0, 1), "reward": (2, 3), "critic": (3,), "both": range(4), "again": (1, 0)})
    names = ["actor", "again"] if world.rank < 2 else ["reward"]
    names += ["critic"] if world.rank == 3 else []
    own = torch.tensor([float(world.rank)])
    found = {name: world.channel(name).gather(own, name).flatten().tolist() for name in [*names, "both"]}
    world.channel("both").barrier("the end")
    return found


def test_groups_are_told_apart_and_may_have_one_rank(pool: Pool) -> None:
    first, both = {"actor": [0.0, 1.0], "again": [0.0, 1.0]}, {"both": [0.0, 1.0, 2.0, 3.0]}
    second = {"reward": [2.0, 3.0]}
    assert pool.run(in_groups) == [first | both] * 2 + [second | both, second | {"critic": [3.0]} | both]


def test_a_channel_of_one_gives_back_what_it_is_given() -> None:
    channel: Channel = Alone()
    tensor = torch.tensor([1.0, 2.0])
    channel.add(tensor, "sum")
    channel.barrier("end")
    assert channel.gather(tensor, "counts").tolist() == [[1.0, 2.0]]
    assert channel.share(b"x", "state") == b"x" and channel.collect(b"x", "texts") == [b"x"]
    assert channel.exchange({0: torch.tensor([1], dtype=torch.uint8)}, {0: 1}, "rows")[0].tolist() == [1]


# ---------------------------------------------------------------- deadlines


def late(world: World, call: str) -> str:
    """Rank 1 comes only when rank 0 has given up."""
    assert world.store is not None
    world.timeout = timedelta(seconds=1)
    world.open({"short": (0, 1, 2)})
    if world.rank == 3:
        return ""
    channel = world.channel("short")
    if world.rank:
        world.store.set("at/1", "step 2: `rollout`")
        world.store.wait(["given up"], timedelta(seconds=20))
        return ""
    world.store.wait(["at/1"], timedelta(seconds=20))
    with pytest.raises(PeerError) as caught:
        match call:
            case "exchange":
                channel.exchange({}, {1: 8}, "step 3: move `reward`")
            case "share":
                channel.share(b"", "step 3: move `reward`", source=1)
            case "gather":
                channel.gather(torch.zeros(1), "step 3: move `reward`")
    world.store.set("given up", "")
    return str(caught.value)


@pytest.mark.parametrize("call", ["exchange", "share", "gather"])
def test_a_wait_ends_at_its_deadline_and_says_for_whom_and_what(pool: Pool, call: str) -> None:
    said = pool.run(late, call)[0]
    head = "rank 1 is still at step 2: `rollout` after 1 s"
    assert said == f"{head}; rank 0 waits for it at step 3: move `reward` (--timeout)"


def lost(world: World) -> str:
    """Rank 1 leaves."""
    channel = world.channel("world")
    channel.barrier("start")
    if world.rank == 1:
        return ""
    with pytest.raises(PeerError) as caught:
        channel.exchange({}, {1: 8}, "step 3: move `reward`")
    return str(caught.value)


def test_a_rank_that_is_gone_ends_the_wait_for_it_at_once(pool: Pool) -> None:
    said = pool.run(lost, ranks=2)[0]
    assert said.startswith("step 3: move `reward`: rank 0 lost the connection to rank 1 (")


# ---------------------------------------------------------------- the order of calls


def disordered(world: World, case: str) -> str:
    channel = Ordered(world.channel("world"))
    channel.barrier("step 0: `a`")
    with pytest.raises(RunError) as caught:
        if case == "sizes":
            sent = torch.zeros(3 + world.rank, dtype=torch.uint8)
            channel.exchange({1 - world.rank: sent}, {1 - world.rank: 3}, "step 0: move `b`")
        elif world.rank == 0:
            channel.gather(torch.zeros(2), "step 0: `b`")
        else:
            channel.add(torch.zeros(2), "step 0: `c`")
    return str(caught.value)


def test_ranks_that_do_different_things_are_told_apart(pool: Pool) -> None:
    said = pool.run(disordered, "calls", ranks=2)
    first = "rank 0 is at call 2 (step 0: `b`: gather of [2] torch.float32)"
    second = "rank 1 is at call 2 (step 0: `c`: sum of [2] torch.float32)"
    assert said == [f"the ranks of `world` don't do the same: {first}; {second}"] * 2


def test_a_message_of_another_size_than_is_expected_is_told_before_it_is_sent(pool: Pool) -> None:
    said = pool.run(disordered, "sizes", ranks=2)
    assert said == ["step 0: move `b`: rank 1 sends 4 bytes to rank 0, which expects 3"] * 2


def ordered(world: World) -> dict[int, list[int]]:
    channel = Ordered(world.channel("world"))
    assert channel.share(b"x", "state") == b"x" and channel.collect(b"y", "texts") == [b"y"] * world.size
    sent = {i: torch.full((world.rank,), i, dtype=torch.uint8) for i in range(world.size)}
    return {i: x.tolist() for i, x in channel.exchange(sent, dict(enumerate(range(world.size))), "rows").items()}


def test_ranks_that_do_the_same_get_the_same_with_the_check(pool: Pool) -> None:
    assert pool.run(ordered) == [{i: [r] * i for i in range(4)} for r in range(4)]


# ---------------------------------------------------------------- the pool itself


def wrong(world: World) -> None:
    if world.rank == 1:
        raise ValueError("of rank 1")


def test_an_exception_on_a_rank_fails_the_job_and_the_pool_lives_on(pool: Pool) -> None:
    with pytest.raises(PoolError, match=r"rank 1 of `wrong`:\n(?s:.*)ValueError: of rank 1"):
        pool.run(wrong, ranks=2)
    assert pool.run(gathered, ranks=2)


def endless(world: World) -> None:
    if world.rank == 1:
        time.sleep(60)


def test_a_job_that_does_not_end_is_killed_and_the_next_one_runs(pool: Pool) -> None:
    with pytest.raises(PoolError, match=r"`endless` didn't end within 1 s on ranks \[1\]"):
        pool.run(endless, ranks=2, timeout=1)
    assert pool.run(gathered, ranks=2)
