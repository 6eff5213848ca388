"""RL.ACQUIRE and RL.RELEASE limit the number of units that are held at once, and their time."""

import random
import socket
from collections.abc import Callable

import pytest
from redis import Redis, ResponseError

from support.clock import UNITS_US, Clock
from support.server import Server

SECOND = UNITS_US["s"]


def test_a_lease_takes_units_until_it_is_released(redis: Redis) -> None:
    acquire = ("RL.ACQUIRE", "k", 3, "60s")
    assert redis.execute_command(*acquire, "a") == [1, 3, 2, 0, 60_000]
    assert redis.execute_command(*acquire, "b", "COST", 2) == [1, 3, 0, 0, 60_000]
    assert redis.execute_command(*acquire, "c") == [0, 3, 0, 60_000, 60_000]
    assert redis.execute_command("RL.RELEASE", "k", "a") == 1
    assert redis.execute_command(*acquire, "c") == [1, 3, 0, 0, 60_000]
    assert redis.type("k") == b"rl-leases"


def test_a_lease_expires_after_its_ttl_by_the_servers_clock(redis: Redis, clock: Clock) -> None:
    assert redis.execute_command("RL.ACQUIRE", "k", 1, "1500us", "a") == [1, 1, 0, 0, 2]
    clock.advance(1499)
    assert redis.execute_command("RL.ACQUIRE", "k", 1, "1h", "b") == [0, 1, 0, 1, 1]
    clock.advance(1)
    assert redis.execute_command("RL.ACQUIRE", "k", 1, "1h", "b") == [1, 1, 0, 0, 3_600_000]


def units_of(redis: Redis) -> dict[bytes, bytes]:
    flat = redis.execute_command("RL.INFO", "k")
    leases = dict(zip(flat[::2], flat[1::2], strict=True))[b"leases"]
    return {holder: units for holder, units, _ in leases}


@pytest.mark.parametrize(
    ("holders", "released"),
    [
        (["a", "nobody", "b"], 2),
        (["nobody"], 0),
        (["expired", "b", "A"], 1),
    ],
)
def test_a_release_counts_the_leases_that_were_held(
    redis: Redis, clock: Clock, holders: list[str], released: int
) -> None:
    for holder, ttl in (("expired", "1s"), ("a", "60s"), ("b", "60s"), ("c", "60s")):
        redis.execute_command("RL.ACQUIRE", "k", 4, ttl, holder)
    clock.advance("1s")
    before = redis.dump("k")
    assert redis.execute_command("RL.RELEASE", "k", *holders) == released
    assert (redis.dump("k") == before) == (released == 0)
    peek = redis.execute_command("RL.PEEK", "k", "CONCURRENCY", 4, "1s", "d")
    assert peek[2] == 1 + released


def test_a_release_of_a_missing_key_creates_no_key(redis: Redis) -> None:
    assert redis.execute_command("RL.RELEASE", "k", "a") == 0
    assert redis.exists("k") == 0


def test_the_last_lease_released_leaves_no_key(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.ACQUIRE", "k", 3, "1s", "expired")
    redis.execute_command("RL.ACQUIRE", "k", 3, "60s", "a")
    redis.execute_command("RL.ACQUIRE", "k", 3, "60s", "b")
    clock.advance("1s")
    assert redis.execute_command("RL.RELEASE", "k", "a") == 1
    assert redis.exists("k") == 1
    assert redis.execute_command("RL.RELEASE", "k", "b") == 1
    assert redis.exists("k") == 0


@pytest.mark.parametrize("seconds", [1, 80, 3600])
def test_the_last_lease_expired_leaves_no_key(redis: Redis, clock: Clock, seconds: int) -> None:
    redis.execute_command("RL.ACQUIRE", "k", 3, f"{seconds}s", "a")
    clock.advance(seconds * SECOND - 1)
    assert redis.exists("k") == 1
    # The server deletes the key by an eighth of the time and a second later; it stores ms.
    clock.advance(seconds * SECOND // 8 + SECOND + 1001)
    assert redis.exists("k") == 0


@pytest.mark.parametrize(
    "holder",
    [b"h", b"\0", b"\xff\xfe \r\n'\"", b"x" * 256, b"\xf0\x9f\xa6\x80"],
    ids=["one byte", "NUL", "not UTF-8", "256 bytes", "UTF-8"],
)
def test_a_holder_is_any_1_to_256_bytes(
    pair: tuple[Server, Server], clock: Clock, holder: bytes
) -> None:
    primary_server, replica_server = pair
    with primary_server.client() as primary, replica_server.client() as replica:
        acquire = ("RL.ACQUIRE", "k", 2, "60s", holder)
        assert primary.execute_command(*acquire) == [1, 2, 1, 0, 60_000]
        clock.advance("1s")
        assert primary.execute_command(*acquire) == [1, 2, 1, 0, 60_000]
        assert list(units_of(primary)) == [holder]
        replica_server.wait_for_sync()
        assert replica.dump("k") == primary.dump("k")
        assert primary.execute_command("RL.RELEASE", "k", holder) == 1


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("k", 5, "60s", ""), "ERR holder must be"),
        (("k", 5, "60s", "h", "COST", 0), "ERR cost must be"),
        (("k", -1, "60s", "h"), "ERR limit must be"),
        (("k", 5, "0", "h"), "ERR ttl must be"),
        (("k", 5, "60s", "h", "UPTO"), "ERR syntax error, unexpected 'UPTO'"),
        (("k", 5, "60s", "h", "COST"), "ERR cost is missing: COST amount"),
        (("k", 5, "60s"), "ERR wrong number of arguments"),
    ],
)
@pytest.mark.parametrize("exists", [False, True], ids=["no key", "a key"])
def test_invalid_acquire_is_an_error_and_writes_nothing(
    redis: Redis, words: tuple, error: str, exists: bool
) -> None:
    if exists:
        redis.execute_command("RL.ACQUIRE", "k", 5, "60s", "h")
    before = redis.dump("k")
    with pytest.raises(ResponseError) as raised:
        redis.execute_command("RL.ACQUIRE", *words)
    assert f"ERR {raised.value}".replace("ERR ERR", "ERR").startswith(error)
    assert redis.dump("k") == before


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("k",), "wrong number of arguments"),
        (("k", ""), "holder must be"),
        (("k", "h", "x" * 257), "holder must be"),
    ],
)
def test_invalid_release_is_an_error_and_releases_nothing(
    redis: Redis, words: tuple, error: str
) -> None:
    redis.execute_command("RL.ACQUIRE", "k", 5, "60s", "h")
    before = redis.dump("k")
    with pytest.raises(ResponseError, match=error):
        redis.execute_command("RL.RELEASE", *words)
    assert redis.dump("k") == before


@pytest.mark.parametrize("command", [("RL.ACQUIRE", "k", 5, "60s", "h"), ("RL.RELEASE", "k", "h")])
def test_key_of_another_algorithm_is_an_error(redis: Redis, command: tuple) -> None:
    redis.execute_command("RL.FIXED", "k", 5, "60s")
    with pytest.raises(ResponseError, match=r"WRONGTYPE.*rl-window.*rl-leases"):
        redis.execute_command(*command)
    redis.set("k", "text")
    with pytest.raises(ResponseError, match=r"WRONGTYPE.*string.*rl-leases"):
        redis.execute_command(*command)


def test_a_key_with_max_leases_grants_only_renewals(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    redis = fresh_server(module_args="max-leases 3").client()
    acquire = ("RL.ACQUIRE", "k", 100, "60s")
    for holder in ("a", "b", "c"):
        assert redis.execute_command(*acquire, holder)[0] == 1
        clock.advance("1s")
    before = redis.dump("k")
    with pytest.raises(ResponseError, match=r"3.*ratelimit\.max-leases"):
        redis.execute_command(*acquire, "d")
    with pytest.raises(ResponseError, match="max-leases"):
        redis.execute_command(
            "RL.MTAKE", 2, "j", "k", "FIXED", 5, 60, "CONCURRENCY", 100, "60s", "d"
        )
    assert redis.dump("k") == before
    assert redis.exists("j") == 0
    assert redis.execute_command(*acquire, "a", "COST", 5) == [1, 100, 93, 0, 60_000]
    # A denied call stays denied, and an expired lease does not count.
    assert redis.execute_command("RL.ACQUIRE", "k", 7, "60s", "d")[0] == 0
    clock.advance("58s")
    assert redis.execute_command(*acquire, "d")[0] == 1
    redis.execute_command("RL.RELEASE", "k", "d")
    assert redis.execute_command(*acquire, "e")[0] == 1


HOLDERS = 100_000


def test_100000_holders_of_one_key_are_still_served(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server()
    redis = server.client()
    flood(server, (b"RL.ACQUIRE k 1000000 60s holder-%d\r\n" % n for n in range(HOLDERS)))
    remaining = 1_000_000 - HOLDERS
    peek = ("RL.PEEK", "k", "CONCURRENCY", 1_000_000, "60s")
    assert redis.execute_command(*peek, "holder-7") == [1, 1_000_000, remaining, 0, 60_000]
    denied = redis.execute_command("RL.ACQUIRE", "k", HOLDERS, "60s", "one-more", "COST", 50_000)
    assert denied == [0, HOLDERS, 0, 60_000, 60_000]
    with pytest.raises(ResponseError, match="max-leases"):
        redis.execute_command("RL.ACQUIRE", "k", 1_000_000, "60s", "one-more")
    assert redis.execute_command("RL.RELEASE", "k", "holder-1", "holder-99999", "nobody") == 2
    renewed = redis.execute_command("RL.ACQUIRE", "k", 1_000_000, "90s", "holder-7", "COST", 2)
    assert renewed == [1, 1_000_000, remaining + 1, 0, 90_000]
    dump = redis.dump("k")
    assert server.replica().client().dump("k") == dump
    server.restart("save")
    assert redis.dump("k") == dump


def flood(server: Server, commands: object) -> None:
    """Sends many calls at once, which must have replies of five integers."""
    calls = list(commands)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"".join(calls))
        lines = 0
        while lines < 6 * len(calls):
            lines += connection.recv(1 << 20).count(b"\n")


def test_leases_of_crashed_holders_are_removed(redis: Redis, clock: Clock) -> None:
    for n in range(2000):
        assert redis.execute_command("RL.ACQUIRE", "k", 10, "1s", f"h{n}")[0] == 1
        clock.advance("100ms")
    assert redis.memory_usage("k") < 5000


def test_take_and_peek_of_concurrency_are_acquire(redis: Redis) -> None:
    spec = ("CONCURRENCY", 3, "60s", "h", "COST", 2)
    assert redis.execute_command("RL.PEEK", "k", *spec) == [1, 3, 3, 0, 0]
    assert redis.exists("k") == 0
    assert redis.execute_command("RL.TAKE", "k", *spec) == [1, 3, 1, 0, 60_000]
    redis.execute_command("RL.ACQUIRE", "twin", *spec[1:])
    assert redis.dump("k") == redis.dump("twin")
    other = ("concurrency", 3, "60s", "other", "COST", 2)
    assert redis.execute_command("RL.PEEK", "k", *other) == [0, 3, 1, 60_000, 60_000]


def test_mtake_leases_all_or_none(redis: Redis) -> None:
    spec = ("CONCURRENCY", 3, "60s")
    redis.execute_command("RL.ACQUIRE", "b", 3, "30s", "other", "COST", 2)
    before = redis.dump("b")
    denied = redis.execute_command("RL.MTAKE", 2, "a", "b", *spec, "h", *spec, "h", "COST", 2)
    assert denied == [0, 30_000, [[1, 3, 3, 0, 0], [0, 3, 1, 30_000, 30_000]]]
    assert (redis.exists("a"), redis.dump("b")) == (0, before)
    granted = redis.execute_command("RL.MTAKE", 2, "a", "b", *spec, "h", *spec, "h")
    assert granted == [1, 0, [[1, 3, 2, 0, 60_000], [1, 3, 0, 0, 60_000]]]
    # Combined with a limit on the rate.
    call = ("RL.MTAKE", 2, "a", "c", *spec, "i", "FIXED", 1, "60s")
    assert redis.execute_command(*call)[0] == 1
    assert redis.execute_command(*call) == [
        0,
        60_000,
        [[1, 3, 1, 0, 60_000], [0, 1, 0, 60_000, 60_000]],
    ]


def test_release_after_the_clock_moved_back_counts(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.ACQUIRE", "k", 2, "60s", "a")
    redis.execute_command("RL.ACQUIRE", "k", 2, "30s", "b")
    clock.advance("-1h")
    assert redis.execute_command("RL.RELEASE", "k", "a") == 1
    peek = ("RL.PEEK", "k", "CONCURRENCY", 2, "60s", "c")
    assert redis.execute_command(*peek) == [1, 2, 1, 0, 30_000]


def test_a_crashed_holders_lease_expires_on_a_promoted_replica(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    primary = fresh_server()
    replica = primary.replica()
    primary.client().execute_command("RL.ACQUIRE", "k", 1, "60s", "crashed")
    replica.wait_for_sync()
    redis = replica.client()
    peek = ("RL.PEEK", "k", "CONCURRENCY", 1, "60s", "next")
    assert redis.execute_command(*peek) == [0, 1, 0, 60_000, 60_000]
    primary.stop("kill")
    redis.replicaof("NO", "ONE")
    acquire = ("RL.ACQUIRE", "k", 1, "60s", "next")
    assert redis.execute_command(*acquire) == [0, 1, 0, 60_000, 60_000]
    clock.advance("60s")
    assert redis.execute_command(*acquire) == [1, 1, 0, 0, 60_000]
    assert list(units_of(redis)) == [b"next"]


def test_a_replica_has_the_same_bytes(pair: tuple[Server, Server], clock: Clock) -> None:
    rng = random.Random(5)
    primary_server, replica_server = pair
    with primary_server.client() as primary, replica_server.client() as replica:
        keys = [f"k{n}" for n in range(6)]
        for _ in range(600):
            clock.advance(rng.choice([0, 1, SECOND, 3 * SECOND, -2 * SECOND]))
            key, holder = rng.choice(keys), f"h{rng.randrange(8)}"
            if rng.random() < 0.4:
                primary.execute_command("RL.RELEASE", key, holder, f"h{rng.randrange(8)}")
            else:
                ttl, cost = rng.choice(["1s", "10s", "60s"]), rng.choice([1, 0.25, 3])
                primary.execute_command("RL.ACQUIRE", key, 6, ttl, holder, "COST", cost)
        replica_server.wait_for_sync()
        dumps = [primary.dump(key) for key in keys]
        assert any(dumps)
        assert [replica.dump(key) for key in keys] == dumps
