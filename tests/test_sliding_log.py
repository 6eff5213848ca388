"""RL.SLIDINGLOG by the server's clock, its maximum length and its memory. core/ tests the
arithmetic.
"""

import random
import socket
from collections.abc import Callable

import pytest
from redis import Redis, ResponseError

from support import poll
from support.clock import UNITS_US, Clock
from support.server import Server
from support.units import UNIT, decimal

MINUTE = UNITS_US["m"]


def sliding_log(redis: Redis, limit: int, window: int, cost: int, option: str = "") -> list[int]:
    """Calls RL.SLIDINGLOG. The limit and the cost are millionths, the window is microseconds."""
    words = ["COST", str(cost // UNIT) if option == "UPTO" else decimal(cost), option]
    return redis.execute_command(
        "RL.SLIDINGLOG", "k", decimal(limit), f"{window}us", *(word for word in words if word)
    )


def test_a_cost_passes_from_the_microsecond_in_which_enough_entries_expire(
    redis: Redis, clock: Clock
) -> None:
    begin = clock.now
    for cost in (3, 3, 4):
        assert sliding_log(redis, 10 * UNIT, MINUTE, cost * UNIT)[0] == 1
        clock.advance("1.000001s")
    for cost, offset in ((1, 0), (3, 0), (4, 1_000_001), (6, 1_000_001), (7, 2_000_002)):
        clock.set(begin + MINUTE + offset - 1)
        peek = ("RL.PEEK", "k", "SLIDINGLOG", 10, "60s", "COST", cost)
        denied, _, _, wait_ms, _ = redis.execute_command(*peek)
        assert (denied, wait_ms) == (0, 1)
        clock.advance(1)
        assert redis.execute_command(*peek)[0] == 1


def info(redis: Redis) -> dict[bytes, object]:
    flat = redis.execute_command("RL.INFO", "k")
    return dict(zip(flat[::2], flat[1::2], strict=True))


@pytest.fixture
def short_log_redis(fresh_server: Callable[..., Server]) -> Redis:
    """Returns a client of a server whose logs have at most 5 entries."""
    return fresh_server(module_args="max-log-entries 5").client()


def test_above_max_log_entries_a_call_is_an_error_and_writes_nothing(
    short_log_redis: Redis, clock: Clock
) -> None:
    for _ in range(5):
        assert sliding_log(short_log_redis, 100 * UNIT, MINUTE, UNIT)[0] == 1
        clock.advance("1s")
    before = (short_log_redis.dump("k"), short_log_redis.pttl("k"))
    for option in ("", "FORCE", "UPTO"):
        with pytest.raises(ResponseError, match=r"5.*ratelimit\.max-log-entries"):
            sliding_log(short_log_redis, 100 * UNIT, MINUTE, UNIT, option)
    with pytest.raises(ResponseError, match="max-log-entries"):
        short_log_redis.execute_command("RL.MTAKE", 2, "j", "k", *("SLIDINGLOG", 100, 60) * 2)
    assert (short_log_redis.dump("k"), short_log_redis.pttl("k")) == before
    assert short_log_redis.exists("j") == 0


def test_a_full_log_answers_calls_that_add_no_entry(short_log_redis: Redis, clock: Clock) -> None:
    for seconds in range(5):
        clock.advance(seconds * UNIT)
        sliding_log(short_log_redis, 6 * UNIT, MINUTE, UNIT)
    # A charge of the same microsecond is added to the existing entry.
    assert sliding_log(short_log_redis, 6 * UNIT, MINUTE, UNIT) == [1, 6, 0, 0, 60_000]
    clock.advance("1s")
    assert sliding_log(short_log_redis, 6 * UNIT, MINUTE, UNIT) == [0, 6, 0, 49_000, 59_000]
    assert sliding_log(short_log_redis, 6 * UNIT, MINUTE, 0)[0] == 1
    assert sliding_log(short_log_redis, 6 * UNIT, MINUTE, -UNIT) == [1, 6, 1, 0, 59_000]
    # The give-back has made room.
    assert sliding_log(short_log_redis, 6 * UNIT, MINUTE, UNIT) == [1, 6, 0, 0, 60_000]


def test_full_log_grants_calls_once_its_oldest_entry_expires(
    short_log_redis: Redis, clock: Clock
) -> None:
    for _ in range(5):
        sliding_log(short_log_redis, 100 * UNIT, MINUTE, UNIT)
        clock.advance("1s")
    clock.advance(MINUTE - 5 * UNIT - 1)
    with pytest.raises(ResponseError, match="max-log-entries"):
        sliding_log(short_log_redis, 100 * UNIT, MINUTE, UNIT)
    clock.advance(1)
    assert sliding_log(short_log_redis, 100 * UNIT, MINUTE, UNIT)[2] == 95
    clock.advance(1)
    with pytest.raises(ResponseError, match="max-log-entries"):
        sliding_log(short_log_redis, 100 * UNIT, MINUTE, UNIT)
    # A shorter window counts fewer entries.
    assert sliding_log(short_log_redis, 100 * UNIT, 30 * UNIT, UNIT)[2] == 98


def test_the_size_of_an_effect_does_not_grow_with_the_log(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(appendonly="yes", appendfsync="no", auto_aof_rewrite_percentage=0)
    redis = server.client()
    bytes_per_call = []
    for entries in (10, 5000):
        for _ in range(entries - (info(redis)[b"entries"] if redis.exists("k") else 0)):
            clock.advance(1)
            sliding_log(redis, 10**6 * UNIT, MINUTE, UNIT)
        before = size_of_aof(server)
        for cost in (UNIT, UNIT, -UNIT, UNIT, -UNIT):
            clock.advance(1)
            sliding_log(redis, 10**6 * UNIT, MINUTE, cost)
        bytes_per_call.append((size_of_aof(server) - before) / 5)
    with_few_entries, with_many_entries = bytes_per_call
    assert with_many_entries <= with_few_entries + 20


def test_the_effect_of_expired_entries_is_short(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(appendonly="yes", appendfsync="no", auto_aof_rewrite_percentage=0)
    redis = server.client()
    for _ in range(1000):
        clock.advance(1)
        sliding_log(redis, 10**6 * UNIT, MINUTE, UNIT)
    clock.advance(MINUTE)
    before = size_of_aof(server)
    assert sliding_log(redis, 10**6 * UNIT, MINUTE, UNIT)[2] == 10**6 - 1
    assert size_of_aof(server) - before < 400


def size_of_aof(server: Server) -> int:
    return sum(file.stat().st_size for file in server.aof_files())


def test_an_entry_takes_16_bytes_and_a_log_reserves_an_eighth(redis: Redis, clock: Clock) -> None:
    sliding_log(redis, 10**6 * UNIT, MINUTE, UNIT)
    overhead = redis.memory_usage("k") - 16
    for entries in range(2, 3000):
        clock.advance(1)
        sliding_log(redis, 10**6 * UNIT, MINUTE, UNIT)
        if entries % 10 == 0:
            assert redis.memory_usage("k") <= 16 * (entries + entries // 8 + 4) + overhead
    # A minute later only one entry counts, and the memory of the others is freed.
    clock.advance("1m")
    sliding_log(redis, 10**6 * UNIT, MINUTE, UNIT)
    assert redis.memory_usage("k") <= 16 * 8 + overhead


LARGE_LOG_ENTRIES = 100_000


@pytest.fixture
def large_log_server(fresh_server: Callable[..., Server]) -> Server:
    """Starts a server with a log of 100000 entries in `k`. It uses the real clock: the faked one
    stands still, so that all calls would share an entry.
    """
    server = fresh_server(clock=None)
    redis = server.client()
    missing = LARGE_LOG_ENTRIES
    while missing:
        flood(server, b"RL.SLIDINGLOG k 1000000 1d", missing)
        missing = LARGE_LOG_ENTRIES - info(redis)[b"entries"]
    return server


def flood(server: Server, command: bytes, times: int) -> None:
    """Sends `times` calls at once. The reply to each must be five integers, which take 6 lines."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall((command + b"\r\n") * times)
        lines = 0
        while lines < 6 * times:
            lines += connection.recv(1 << 20).count(b"\n")


def test_a_log_of_100000_entries_still_answers(large_log_server: Server) -> None:
    redis = large_log_server.client()
    used = (
        1_000_000
        - redis.execute_command("RL.PEEK", "k", "SLIDINGLOG", 1_000_000, "1d", "COST", 0)[2]
    )
    assert used >= LARGE_LOG_ENTRIES
    spec = ("SLIDINGLOG", used, "1d")
    denied = redis.execute_command("RL.TAKE", "k", *spec)
    assert denied[:3] == [0, used, 0]
    assert 0 < denied[3] < denied[4] <= 86_400_000
    with pytest.raises(ResponseError, match="max-log-entries"):
        redis.execute_command("RL.SLIDINGLOG", "k", 1_000_000, "1d")
    given_back = redis.execute_command("RL.TAKE", "k", *spec, "COST", -used + 5)
    assert given_back[:4] == [1, used, used - 5, 0]
    assert redis.execute_command("RL.TAKE", "k", *spec)[2] == used - 6


def test_a_log_of_100000_entries_survives_snapshots_aof_rewrites_and_syncs(
    large_log_server: Server,
) -> None:
    redis = large_log_server.client()
    dump = redis.dump("k")
    replica = large_log_server.replica().client()
    assert replica.dump("k") == dump
    # The replica also receives the calls that arrive during the sync.
    redis.execute_command("RL.SLIDINGLOG", "k", 1_000_000, "1d", "COST", -3)
    redis.execute_command("RL.SLIDINGLOG", "k", 1_000_000, "1d", "COST", 3)
    dump, digest = redis.dump("k"), debug_digest(redis)
    poll.until(lambda: replica.dump("k") == dump, "the replica has the same log")
    large_log_server.restart("save")
    assert (redis.dump("k"), debug_digest(redis)) == (dump, digest)
    for preamble in ("yes", "no"):
        redis.config_set("aof-use-rdb-preamble", preamble)
        if preamble == "yes":
            redis.config_set("appendonly", "yes")
        else:
            redis.bgrewriteaof()
        poll.until(lambda: is_rewritten(redis), "the AOF is rewritten")
        redis.execute_command("DEBUG", "LOADAOF")
        assert (redis.dump("k"), debug_digest(redis)) == (dump, digest)


def is_rewritten(redis: Redis) -> bool:
    persistence = redis.info("persistence")
    return (
        not persistence["aof_rewrite_in_progress"] and not persistence["aof_rewrite_scheduled"]
    ) and persistence["aof_last_bgrewrite_status"] == "ok"


def debug_digest(redis: Redis) -> bytes:
    return redis.execute_command("DEBUG", "DIGEST-VALUE", "k")[0]


def test_a_replica_holds_the_same_bytes(pair: tuple[Server, Server], clock: Clock) -> None:
    chance = random.Random(3)
    primary_server, replica_server = pair
    with primary_server.client() as primary, replica_server.client() as replica:
        keys = [f"k{n}" for n in range(6)]
        for _ in range(600):
            clock.advance(chance.choice([0, 1, 999_999, 10_000_000, 61_000_000, -700_000]))
            window = chance.choice(["1s", "60s", "60s"])
            cost = chance.choice([1, 2.5, 7, -1.5, -4, 0])
            words = ("COST", cost, *(["FORCE"] if cost > 0 and chance.random() < 0.2 else []))
            primary.execute_command("RL.SLIDINGLOG", chance.choice(keys), 10, window, *words)
        replica_server.wait_for_sync()
        dumps = [primary.dump(key) for key in keys]
        assert any(dumps)
        assert [replica.dump(key) for key in keys] == dumps
