"""Active defragmentation does not change a limiter. It moves all blocks except those with pages of
their own and tables of more than 512 KB.
"""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from support import modules
from support.clock import Clock
from support.server import MODULE, Server
from support.workload import LIMITERS, Limiter, Word, digests, each_limiter, play, state, steps

pytestmark = pytest.mark.every_server

Start = Callable[..., Server]

# Kinds whose values are a single block.
PLAIN = {b"rl-bucket", b"rl-window", b"rl-slider", b"rl-strict"}


@pytest.fixture
def mover(tmp_path: Path, fresh_server: Start) -> Redis:
    """Starts a server that moves a key's value on request."""
    shim = modules.build("mover", tmp_path)
    return fresh_server(module=shim, module_args=str(MODULE)).client()


def move(redis: Redis, key: Word, steps: int = 0) -> tuple[int, int]:
    """Moves a value without changing it. Returns the number of calls and of moved blocks."""
    before = (digests(redis, [key]), redis.dump(key), redis.pttl(key), redis.memory_usage(key))
    calls, blocks = redis.execute_command("MOVE.VALUE", key, steps)
    digest, dump, ttl, memory = before
    assert (digests(redis, [key]), redis.dump(key), redis.pttl(key)) == (digest, dump, ttl)
    # Spare capacity may be dropped; a table's size is an estimate.
    assert redis.memory_usage(key) <= memory + memory // 4
    return calls, blocks


def sketch(redis: Redis, key: str, items: int, size: str) -> None:
    pipeline = redis.pipeline(transaction=False)
    for number in range(items):
        pipeline.execute_command(
            "RL.SKETCH", key, struct.pack(">I", number), 5, 5, "1m", "SIZE", size
        )
    assert all(allowed == 1 for allowed, *_ in pipeline.execute())


@each_limiter
def test_limiter_continues_after_a_move(limiter: Limiter, mover: Redis) -> None:
    mover.execute_command(*limiter.take("k", 3))
    calls, blocks = move(mover, "k")
    assert calls == 1
    assert blocks == 1 if limiter.type in PLAIN else blocks > 1
    assert mover.execute_command(*limiter.for_holder("other").take("k", 8))[:3] == [0, 10, 7]
    assert mover.execute_command(*limiter.for_holder("other").take("k", 7))[:3] == [1, 10, 0]


def leases(count: int) -> list[tuple[Word, ...]]:
    return [("RL.ACQUIRE", "k", 99, "1h", f"holder {n}", "FENCE") for n in range(count)]


def beside_a_window(count: int) -> list[tuple[Word, ...]]:
    words = ("RL.TAKE", "k", "FIXED", 99, "1h", "CONCURRENCY", 99, "1h")
    return [(*words, f"holder {n}") for n in range(count)]


def with_ids(count: int) -> list[tuple[Word, ...]]:
    words = ("1h", "FIXED", 99, "1h", "SLIDINGLOG", 99, "1h")
    return [("RL.TAKE", "k", "ONCE", n, *words) for n in range(count)]


NAMED: tuple[Word, ...] = ("FIXED", 9, "1h", "AS", "a-name-of-many-letters")


@pytest.mark.parametrize(
    ("calls", "min_blocks"),
    [
        pytest.param([("RL.TAKE", "k", *NAMED, "BAN", 3, "1h", "1h")], 4, id="a name and a ban"),
        pytest.param(with_ids(1), 5, id="ids in a block"),
        pytest.param(with_ids(40), 50, id="ids in tables"),
        pytest.param(leases(5), 10, id="few leases with tokens"),
        pytest.param(leases(90), 100, id="many leases with tokens"),
        pytest.param(beside_a_window(60), 70, id="leases and a window"),
    ],
)
def test_every_allocation_of_a_key_is_moved(
    calls: list[tuple[Word, ...]], min_blocks: int, mover: Redis
) -> None:
    for call in calls:
        mover.execute_command(*call)
    assert move(mover, "k")[1] >= min_blocks
    command = {"RL.ACQUIRE": "RL.ACQUIRE", "RL.TAKE": "RL.PEEK"}[calls[-1][0]]
    assert mover.execute_command(command, *calls[-1][1:])[0] == 1


def test_server_that_moves_values_during_a_workload_replies_like_another(
    mover: Redis, fresh_server: Start, clock: Clock
) -> None:
    other = fresh_server().client()
    workload = steps(seed=17, count=1500)
    moved = 0
    for start in range(0, len(workload), 25):
        replies = play(workload[start : start + 25], clock, mover, other)
        assert replies[0] == replies[1]
        for key in state(mover):
            moved += move(mover, key)[1]
    assert moved > 3000
    assert state(mover) == state(other)
    assert len(state(mover)) > len(LIMITERS)


def test_a_large_sketch_is_moved_in_pieces(mover: Redis) -> None:
    sketch(mover, "k", 2000, "2mb")
    blocks = mover.memory_usage("k") // 4096
    assert blocks > 500
    calls, moved = move(mover, "k", steps=100)
    assert blocks // 100 <= calls <= blocks // 100 + 2
    assert moved > blocks
    assert mover.execute_command("RL.SKETCH", "k", struct.pack(">I", 7), 5, 5, "1m")[:3] == [
        1,
        5,
        3,
    ]


def test_pieces_that_a_copy_shares_are_not_moved(mover: Redis) -> None:
    sketch(mover, "k", 100, "64kb")
    blocks = move(mover, "k")[1]
    mover.copy("k", "copy")
    assert move(mover, "k")[1] <= 3
    mover.delete("copy")
    assert move(mover, "k")[1] == blocks


def test_a_table_of_more_than_512_kb_is_not_moved(mover: Redis) -> None:
    pipeline = mover.pipeline(transaction=False)
    for number in range(20_000):
        pipeline.execute_command("RL.ACQUIRE", "k", 20_000, "1h", f"holder {number}")
    pipeline.execute()
    # The block of the value itself is moved.
    assert move(mover, "k") == (1, 1)
    removed = (f"holder {number}" for number in range(19_500))
    mover.execute_command("RL.RELEASE", "k", *removed)
    assert move(mover, "k")[1] > 100
