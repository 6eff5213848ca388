"""Limiters that have recovered leave no memory allocated."""

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from support import poll
from support.clock import Clock
from support.scale import first_on_every_server
from support.server import Server
from support.workload import LIMITERS, Limiter, each_limiter

pytestmark = pytest.mark.every_server

# Largest MEMORY USAGE in bytes of a key with a short name and a TTL, by kind.
MAX_BYTES = {
    b"rl-bucket": 150,
    b"rl-window": 150,
    b"rl-slider": 170,
    b"rl-strict": 600,
    b"rl-reqlog": 300,
    b"rl-leases": 1000,
    b"rl-limits": 550,
}


@each_limiter
def test_memory_usage_of_a_key_is_plausible(limiter: Limiter, redis: Redis) -> None:
    redis.execute_command(*limiter.take("k"))
    # A bucket's state is 16 bytes. Valkey 8.1 counts that alone, other servers add the key.
    assert 16 <= redis.memory_usage("k") <= MAX_BYTES[limiter.type]


def test_memory_usage_of_a_strict_window_does_not_grow(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.SLIDING", "k", 1000, "1h", "STRICT")
    before = redis.memory_usage("k")
    assert before <= 600
    for _ in range(100):
        clock.advance("1m")
        redis.execute_command("RL.SLIDING", "k", 1000, "1h", "STRICT")
    assert redis.memory_usage("k") == before


def test_memory_usage_of_a_log_is_sixteen_bytes_an_entry(redis: Redis, clock: Clock) -> None:
    for _ in range(1000):
        clock.advance(1)
        redis.execute_command("RL.SLIDINGLOG", "k", 10_000, "1h")
    # Up to an eighth may be spare capacity, and the allocator rounds up.
    assert 16_000 < redis.memory_usage("k") < 16_000 * 9 // 8 * 5 // 4
    redis.execute_command("RL.SLIDINGLOG", "k", 10_000, "1h", "COST", -990)
    redis.execute_command("RL.SLIDINGLOG", "k", 10_000, "1h")
    assert redis.memory_usage("k") < 1600


def test_memory_usage_of_leases_follows_their_number(redis: Redis) -> None:
    pipeline = redis.pipeline(transaction=False)
    for number in range(1000):
        pipeline.execute_command("RL.ACQUIRE", "k", 10_000, "1h", f"holder {number:04}")
    pipeline.execute()
    full = redis.memory_usage("k")
    assert 30_000 < full < 80_000
    redis.execute_command("RL.RELEASE", "k", *(f"holder {number:04}" for number in range(990)))
    assert redis.memory_usage("k") < 3_000


def use_much(client: Redis, clock: Clock) -> None:
    """Creates thousands of keys of all kinds, some of them large."""
    pipeline = client.pipeline(transaction=False)
    for limiter in LIMITERS:
        for number in range(1000):
            pipeline.execute_command(*limiter.take(f"{limiter.name} {number}", 3))
            pipeline.execute_command(
                *limiter.for_holder("other").take(f"{limiter.name} {number}", 2)
            )
        for number in range(1000):
            pipeline.execute_command(
                *limiter.for_holder(f"{number}").take("big " + limiter.name, "0.01")
            )
    pipeline.execute()
    for _ in range(200):
        clock.advance(1)
        client.execute_command("RL.SLIDINGLOG", "big SLIDINGLOG", 100_000, "1h")


REMOVALS: dict[str, Callable[[Redis, Clock], object]] = {
    "UNLINK": lambda client, _: client.unlink(*client.keys()),
    "FLUSHALL SYNC": lambda client, _: client.execute_command("FLUSHALL", "SYNC"),
    "FLUSHALL ASYNC": lambda client, _: client.execute_command("FLUSHALL", "ASYNC"),
    "DEL": lambda client, _: client.delete(*client.keys()),
    "expired": lambda _, clock: clock.advance("1d"),
}


def used_memory(client: Redis) -> int:
    # Uses a new connection, as the server keeps the buffers of a busy connection for a while.
    client.connection_pool.disconnect()
    return client.info("memory")["used_memory"]


@pytest.mark.parametrize("removal", first_on_every_server(REMOVALS))
def test_all_memory_is_freed(removal: str, fresh_client: Redis, clock: Clock) -> None:
    # The first round makes the server allocate memory that it keeps.
    use_much(fresh_client, clock)
    fresh_client.execute_command("FLUSHALL", "SYNC")
    empty = used_memory(fresh_client)
    use_much(fresh_client, clock)
    full = used_memory(fresh_client)
    assert full > empty + 1_000_000
    REMOVALS[removal](fresh_client, clock)
    poll.until(lambda: fresh_client.dbsize() == 0, "all keys are gone", timeout=30)
    poll.until(
        lambda: used_memory(fresh_client) - empty < (full - empty) / 10, "the memory is free again"
    )


def threads(server: Server) -> list[str]:
    return [name.read_text().strip() for name in Path(f"/proc/{server.pid}/task").glob("*/comm")]


@pytest.mark.parametrize(
    "call",
    first_on_every_server(["RL.ACQUIRE k 100000 1h {}", "RL.TAKE k ONCE {} 1h FIXED 100000 1h"]),
    ids=["leases", "ids"],
)
@pytest.mark.parametrize("remove", ["DEL k", "SET k mine", "FLUSHALL SYNC", "RENAME other k"])
def test_a_large_key_is_freed_on_a_thread_of_its_own(
    call: str, remove: str, fresh_server: Callable[..., Server]
) -> None:
    settings = ("user_del", "user_flush", "server_del", "expire")
    server = fresh_server(**{f"lazyfree_lazy_{name}": "no" for name in settings})
    client = server.client()

    def fill(count: int) -> None:
        pipeline = client.pipeline(transaction=False)
        for number in range(count):
            pipeline.execute_command(*call.format(f"a-name-that-takes-room-{number}").split())
        pipeline.execute()
        client.set("other", "value")

    # Since 7.4 Redis itself frees flushed keys on a background thread, even without ASYNC.
    uses_thread = remove != "FLUSHALL SYNC" or server.is_valkey or server.version < (7, 4)
    fill(100)
    client.execute_command(*remove.split())
    assert "rl-lazy-free" not in threads(server), "a small key is freed on the main thread"
    empty = used_memory(client)
    for _ in range(3):
        client.delete("k")
        fill(5000)
        assert used_memory(client) > empty + 250_000
        client.execute_command(*remove.split())
        poll.until(lambda: used_memory(client) < empty + 125_000, "the memory is free again")
        assert threads(server).count("rl-lazy-free") == uses_thread
    server.check()


def test_a_large_key_that_is_evicted_makes_room_at_once(
    fresh_server: Callable[..., Server],
) -> None:
    client = fresh_server(
        maxmemory_policy="volatile-ttl", lazyfree_lazy_eviction="no", maxmemory_samples=64
    ).client()
    pipeline = client.pipeline(transaction=False)
    for number in range(5000):
        pipeline.execute_command("RL.ACQUIRE", "large", 5000, "1m", f"holder {number}")
        # Few enough keys that each eviction sample contains all of them.
        pipeline.execute_command("RL.FIXED", f"small {number % 50}", 10000, "1h")
    pipeline.execute()
    client.config_set("maxmemory", used_memory(client) - 100_000)
    client.execute_command("RL.FIXED", "small 0", 10000, "1h")
    assert not client.exists("large")
    assert client.dbsize() == 50, "no other key is evicted"


def test_memory_does_not_grow_however_long_a_limiter_is_used(
    fresh_client: Redis, clock: Clock
) -> None:
    def use(calls: int) -> dict[str, int]:
        for number in range(calls):
            clock.advance("20s")
            pipeline = fresh_client.pipeline(transaction=False)
            for limiter in LIMITERS:
                pipeline.execute_command(*limiter.for_holder(f"{number}").take(limiter.name, "0.1"))
            pipeline.execute()
        return {limiter.name: fresh_client.memory_usage(limiter.name) for limiter in LIMITERS}

    # The window is 180 calls long.
    after_some_windows = use(400)
    for name, used in use(1600).items():
        # A hash table with constant insertions and removals doubles once, at some time, to drop its
        # tombstones: here from 224 slots of 41 bytes.
        doubled = 224 * 8 // 7 * 41 if name == "CONCURRENCY" else 0
        assert used <= after_some_windows[name] * 9 / 8 + doubled, name


def test_a_pool_frees_the_space_of_many_removed_keys(fresh_client: Redis) -> None:
    holders = [f"holder {number}" for number in range(20_000)]
    empty = used_memory(fresh_client)
    pipeline = fresh_client.pipeline(transaction=False)
    for holder in holders:
        pipeline.execute_command("RL.ACQUIRE", "pool", 100_000, "1h", holder)
    assert all(reply[0] == 1 for reply in pipeline.execute())
    assert used_memory(fresh_client) - empty > 800_000
    assert fresh_client.execute_command("RL.RELEASE", "pool", *holders[1:]) == len(holders) - 1
    assert used_memory(fresh_client) - empty < 200_000
    assert fresh_client.memory_usage("pool") < 2_000
