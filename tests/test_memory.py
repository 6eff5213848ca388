"""With full memory and `noeviction`, only calls that would create a key or make one larger are
refused. Limiters that have recovered leave no memory behind.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import OutOfMemoryError, Redis, ResponseError

from support import poll
from support.clock import Clock
from support.scale import first_on_every_server
from support.server import Server
from support.workload import LIMITERS, Limiter, Word, each_limiter, state

pytestmark = pytest.mark.every_server

# Bytes of one key with a short name and a TTL, as MEMORY USAGE has them, by the kind.
MOST_BYTES = {
    b"rl-bucket": 150,
    b"rl-window": 150,
    b"rl-slider": 170,
    b"rl-strict": 600,
    b"rl-reqlog": 300,
    b"rl-leases": 1000,
    b"rl-limits": 550,
}


@pytest.fixture
def client(fresh_server: Callable[..., Server]) -> Redis:
    return fresh_server().client()


def fill_memory(client: Redis) -> None:
    client.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        client.set("string", "x")


@each_limiter
def test_with_memory_full_a_call_that_would_make_a_key_answers_oom(
    limiter: Limiter, client: Redis
) -> None:
    fill_memory(client)
    calls: list[tuple[Word, ...]] = [
        limiter.take("k"),
        ("RL.TAKE", "k", *limiter.full()),
        ("RL.MTAKE", 1, "k", *limiter.full()),
    ]
    if not limiter.leases:
        calls += [limiter.take("k", 11, "FORCE"), limiter.take("k", 3, "UPTO")]
    for call in calls:
        with pytest.raises(OutOfMemoryError):
            client.execute_command(*call)
    assert client.dbsize() == 0


def test_with_memory_full_throttle_answers_oom_too(client: Redis) -> None:
    fill_memory(client)
    with pytest.raises(OutOfMemoryError):
        client.execute_command("RL.THROTTLE", "k", 5, 1, 1)
    assert client.dbsize() == 0


@each_limiter
def test_with_memory_full_what_makes_no_key_is_answered(limiter: Limiter, client: Redis) -> None:
    fill_memory(client)
    missing: list[tuple[Word, ...]] = [
        limiter.take("k", 11),
        limiter.peek("k"),
        limiter.give_back("k"),
        ("RL.MTAKE", 2, "k", "n", *limiter.full(1), "FIXED", 0, "1h"),
        ("RL.MPEEK", 1, "k", *limiter.full()),
        ("RL.INFO", "k"),
    ]
    if not limiter.leases:
        missing += [limiter.take("k", 0), limiter.take("k", 0, "FORCE")]
    for call in missing:
        client.execute_command(*call)
    assert client.dbsize() == 0


@each_limiter
def test_with_memory_full_what_exists_goes_on(limiter: Limiter, client: Redis) -> None:
    client.execute_command(*limiter.take("k", 3))
    client.execute_command(*limiter.by("other").take("k", 1))
    fill_memory(client)
    # A log adds to the entry of the same instant, a holder's lease is replaced.
    assert client.execute_command(*limiter.peek("k"))[:3] == [1, 10, 6]
    assert client.execute_command(*limiter.by("third").take("k", 7))[:3] == [0, 10, 6]
    units = 5 if limiter.leases else 2
    assert client.execute_command(*limiter.take("k", units))[:3] == [1, 10, 4]
    assert client.execute_command("RL.TAKE", "k", *limiter.full(units))[0] == 1
    assert client.execute_command("RL.MTAKE", 1, "k", *limiter.full(units))[0] == 1
    client.execute_command(*limiter.give_back("k"))
    client.execute_command(*limiter.by("other").give_back("k"))
    assert client.dbsize() == 0


def test_with_memory_full_a_log_does_not_grow(client: Redis, clock: Clock) -> None:
    for _ in range(8):
        client.execute_command("RL.SLIDINGLOG", "k", 10, "1h")
        clock.advance("1s")
    held = state(client)
    fill_memory(client)
    for call in [
        ("RL.SLIDINGLOG", "k", 10, "1h"),
        ("RL.SLIDINGLOG", "k", 10, "1h", "COST", 50, "FORCE"),
        ("RL.SLIDINGLOG", "k", 10, "1h", "COST", 5, "UPTO"),
        ("RL.MTAKE", 2, "other", "k", "FIXED", 1, "1h", "SLIDINGLOG", 10, "1h"),
    ]:
        with pytest.raises(OutOfMemoryError):
            client.execute_command(*call)
    assert state(client) == held
    assert client.execute_command("RL.SLIDINGLOG", "k", 10, "1h", "COST", 3)[:3] == [0, 10, 2]
    assert client.execute_command("RL.PEEK", "k", "SLIDINGLOG", 10, "1h")[:3] == [1, 10, 2]
    assert client.execute_command("RL.SLIDINGLOG", "k", 10, "1h", "COST", -3)[:3] == [1, 10, 5]


def test_with_memory_full_a_log_goes_on_in_the_place_of_what_has_left(
    client: Redis, clock: Clock
) -> None:
    for _ in range(8):
        client.execute_command("RL.SLIDINGLOG", "k", 10, "1h")
        clock.advance("10m")
    # Three have left the window, for which one comes. The next would be one more.
    fill_memory(client)
    assert client.execute_command("RL.SLIDINGLOG", "k", 10, "1h")[:3] == [1, 10, 4]
    clock.advance(1)
    with pytest.raises(OutOfMemoryError):
        client.execute_command("RL.SLIDINGLOG", "k", 10, "1h")


def test_with_memory_full_a_lease_table_does_not_grow(client: Redis) -> None:
    client.execute_command("RL.ACQUIRE", "k", 10, "1h", "a")
    client.execute_command("RL.ACQUIRE", "k", 10, "1s", "b")
    held = state(client)
    fill_memory(client)
    for call in [
        ("RL.ACQUIRE", "k", 10, "1h", "c"),
        ("RL.TAKE", "k", "CONCURRENCY", 10, "1h", "c"),
        ("RL.MTAKE", 1, "k", "CONCURRENCY", 10, "1h", "c"),
    ]:
        with pytest.raises(OutOfMemoryError):
            client.execute_command(*call)
    assert state(client) == held
    assert client.execute_command("RL.ACQUIRE", "k", 10, "1h", "a", "COST", 8)[:3] == [1, 10, 1]
    assert client.execute_command("RL.ACQUIRE", "k", 10, "1h", "c", "COST", 2)[0] == 0
    assert client.execute_command("RL.RELEASE", "k", "b", "c") == 1


def test_with_memory_full_a_lease_table_goes_on_in_the_place_of_what_has_expired(
    client: Redis, clock: Clock
) -> None:
    for holder in ("a", "b", "c"):
        client.execute_command("RL.ACQUIRE", "k", 10, "1m", holder)
    client.execute_command("RL.ACQUIRE", "k", 10, "1h", "d")
    clock.advance("1m")
    fill_memory(client)
    assert client.execute_command("RL.ACQUIRE", "k", 10, "1h", "e")[:3] == [1, 10, 8]


def test_with_memory_full_a_key_with_parts_gets_no_more_parts_and_ids(client: Redis) -> None:
    spec = ("FIXED", 10, "1h")
    client.execute_command("RL.TAKE", "k", *spec, "AS", "a", "ONCE", "id", "1h")
    client.execute_command("RL.TAKE", "plain", *spec)
    held = state(client)
    fill_memory(client)
    for call in [
        ("RL.TAKE", "k", *spec, "AS", "b"),
        ("RL.TAKE", "k", *spec, "AS", "a", "SLIDING", 10, "1h"),
        ("RL.TAKE", "k", *spec, "AS", "a", "ONCE", "other", "1h"),
        ("RL.ACQUIRE", "k", 10, "1h", "holder"),
        ("RL.MTAKE", 2, "plain", "k", *spec, *spec, "AS", "b"),
        ("RL.TAKE", "plain", *spec, "SLIDING", 10, "1h"),
        ("RL.TAKE", "plain", *spec, "ONCE", "id", "1h"),
        ("RL.BAN", "plain", "1m"),
        ("RL.BAN", "missing", "1m"),
        ("RL.TAKE", "missing", *spec, *spec, "AS", "a"),
    ]:
        with pytest.raises(OutOfMemoryError):
            client.execute_command(*call)
    assert state(client) == held


def test_with_memory_full_what_a_key_with_parts_has_goes_on(client: Redis) -> None:
    named = ("FIXED", 10, "1h", "AS", "a")
    client.execute_command("RL.TAKE", "k", *named, "COST", 4, "ONCE", "id", "1h")
    fill_memory(client)
    for call, left in [
        # An id that is known charges nothing; a denied call would make nothing.
        (("RL.TAKE", "k", *named, "COST", 4, "ONCE", "id", "1h"), 6),
        (("RL.TAKE", "k", *named, "COST", 1), 5),
        (("RL.TAKE", "k", *named, "SETTLE", "id", 1), 8),
        (("RL.PEEK", "k", *named, "SLIDING", 10, "1h"), 8),
        (("RL.TAKE", "k", *named, "COST", -1), 9),
    ]:
        reply = client.execute_command(*call)
        assert (reply[0], reply[2]) == (1, left), call
    denied = ("RL.TAKE", "k", "COST", 20, *named, "SLIDING", 10, "1h", "BAN", 1, "1m", "1h")
    assert client.execute_command(*denied)[0] == 0
    assert client.execute_command("RL.BAN", "k", "1m") == 60_000
    assert client.execute_command("RL.BAN", "k", 0) == 0
    assert client.execute_command("RL.BAN", "missing", 0) == 0


def test_with_memory_full_mtake_charges_all_or_nothing(client: Redis) -> None:
    client.execute_command("RL.FIXED", "k", 10, "1h")
    held = state(client)
    fill_memory(client)
    both = ("RL.MTAKE", 2, "k", "new", "FIXED", 10, "1h", "FIXED", 10, "1h")
    with pytest.raises(OutOfMemoryError):
        client.execute_command(*both)
    assert state(client) == held
    # Whatever it costs the second key: that of 0 makes none.
    assert client.execute_command(*both, "COST", 0)[0] == 1
    assert client.dbsize() == 1


def test_with_memory_full_a_script_is_told_the_same(client: Redis) -> None:
    client.execute_command("RL.FIXED", "k", 10, "1h")
    fill_memory(client)
    script = "return redis.call('RL.FIXED', KEYS[1], 10, '1h')"
    assert client.eval(script, 1, "k")[:3] == [1, 10, 8]
    with pytest.raises(ResponseError, match="maxmemory"):
        client.eval(script, 1, "new")
    assert client.dbsize() == 1


def test_once_there_is_memory_again_keys_are_made_again(client: Redis) -> None:
    fill_memory(client)
    with pytest.raises(OutOfMemoryError):
        client.execute_command("RL.FIXED", "k", 10, "1h")
    client.config_set("maxmemory", 0)
    assert client.execute_command("RL.FIXED", "k", 10, "1h")[:3] == [1, 10, 9]


@each_limiter
def test_memory_usage_of_a_key_is_plausible(limiter: Limiter, redis: Redis) -> None:
    redis.execute_command(*limiter.take("k"))
    # The state of a bucket is 16 bytes; Valkey 8.1 counts that alone, others the key with it.
    assert 16 <= redis.memory_usage("k") <= MOST_BYTES[limiter.type]


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
    # An eighth of it may be room for more, and the allocator rounds up.
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
    assert 50_000 < full < 400_000
    redis.execute_command("RL.RELEASE", "k", *(f"holder {number:04}" for number in range(990)))
    assert redis.memory_usage("k") < full / 20


def use_much(client: Redis, clock: Clock) -> None:
    """Keys of all kinds, some thousands, and some of them big."""
    pipeline = client.pipeline(transaction=False)
    for limiter in LIMITERS:
        for number in range(1000):
            pipeline.execute_command(*limiter.take(f"{limiter.name} {number}", 3))
            pipeline.execute_command(*limiter.by("other").take(f"{limiter.name} {number}", 2))
        for number in range(1000):
            pipeline.execute_command(*limiter.by(f"{number}").take("big " + limiter.name, "0.01"))
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
    # Of a connection that was used for much the server keeps the buffers for a while.
    client.connection_pool.disconnect()
    return client.info("memory")["used_memory"]


@pytest.mark.parametrize("how", first_on_every_server(REMOVALS))
def test_all_memory_is_given_back(how: str, client: Redis, clock: Clock) -> None:
    # A first round, after which the server has made itself the room that it keeps.
    use_much(client, clock)
    client.execute_command("FLUSHALL", "SYNC")
    empty = used_memory(client)
    use_much(client, clock)
    full = used_memory(client)
    assert full > empty + 1_000_000
    REMOVALS[how](client, clock)
    poll.until(lambda: client.dbsize() == 0, "all keys are gone", timeout=30)
    poll.until(
        lambda: used_memory(client) - empty < (full - empty) / 10, "the memory is free again"
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

    # From 7.4 on Redis frees what is flushed on a thread of its own, whatever the call says.
    is_asked = remove != "FLUSHALL SYNC" or server.is_valkey or server.version < (7, 4)
    fill(100)
    client.execute_command(*remove.split())
    assert "rl-lazy-free" not in threads(server), "a small one is freed at once"
    empty = used_memory(client)
    for _ in range(3):
        client.delete("k")
        fill(5000)
        assert used_memory(client) > empty + 500_000
        client.execute_command(*remove.split())
        poll.until(lambda: used_memory(client) < empty + 250_000, "the memory is free again")
        assert threads(server).count("rl-lazy-free") == is_asked
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
        # Few enough that each sample has all.
        pipeline.execute_command("RL.FIXED", f"small {number % 50}", 10000, "1h")
    pipeline.execute()
    client.config_set("maxmemory", used_memory(client) - 100_000)
    client.execute_command("RL.FIXED", "small 0", 10000, "1h")
    assert not client.exists("large")
    assert client.dbsize() == 50, "no other key had to go"


def test_memory_does_not_grow_however_long_a_limiter_is_used(client: Redis, clock: Clock) -> None:
    def use(calls: int) -> dict[str, int]:
        for number in range(calls):
            clock.advance("20s")
            pipeline = client.pipeline(transaction=False)
            for limiter in LIMITERS:
                pipeline.execute_command(*limiter.by(f"{number}").take(limiter.name, "0.1"))
            pipeline.execute()
        return {limiter.name: client.memory_usage(limiter.name) for limiter in LIMITERS}

    # The window is 180 calls long.
    after_some_windows = use(400)
    for name, used in use(1600).items():
        # A hash table that is always added to and taken from doubles once, whenever that is, to be
        # rid of the marks of what is gone: here from 224 places of 41 bytes.
        doubled = 224 * 8 // 7 * 41 if name == "CONCURRENCY" else 0
        assert used <= after_some_windows[name] * 9 / 8 + doubled, name


def test_of_a_crowd_that_has_left_a_pool_keeps_no_room(client: Redis) -> None:
    holders = [f"holder {number}" for number in range(20_000)]
    empty = used_memory(client)
    pipeline = client.pipeline(transaction=False)
    for holder in holders:
        pipeline.execute_command("RL.ACQUIRE", "pool", 100_000, "1h", holder)
    assert all(reply[0] == 1 for reply in pipeline.execute())
    assert used_memory(client) - empty > 2_000_000
    assert client.execute_command("RL.RELEASE", "pool", *holders[1:]) == len(holders) - 1
    assert used_memory(client) - empty < 200_000
    assert client.memory_usage("pool") < 2_000
