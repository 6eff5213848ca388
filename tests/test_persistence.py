"""Restarts, DUMP and RESTORE, COPY, RENAME, MOVE, SWAPDB and MIGRATE keep usage, TTL and digest. A
later replay of an AOF charges nothing twice and forgets nothing.
"""

from collections.abc import Callable

import pytest
from redis import Redis

from support import poll
from support.clock import Clock
from support.saving import (
    load_aof,
    reload,
    restart_from_aof,
    restart_from_rdb,
    restart_from_rewritten_aof,
    rewrite_aof,
    wait_until_saved,
)
from support.server import Server
from support.workload import (
    HOLDERS,
    LIMITERS,
    Limiter,
    digests,
    each_limiter,
    play,
    state,
    steps,
    written_commands,
)

pytestmark = pytest.mark.every_server

AOF = {"appendonly": "yes", "appendfsync": "always"}


WITH_PREAMBLE = AOF | {"aof_use_rdb_preamble": "yes"}
WITHOUT_PREAMBLE = AOF | {"aof_use_rdb_preamble": "no"}
INTERRUPTIONS = {
    "restart from RDB": (restart_from_rdb, {}),
    "restart from AOF": (restart_from_aof, AOF),
    "restart from rewritten AOF": (restart_from_rewritten_aof, WITHOUT_PREAMBLE),
    "restart from rewritten AOF with RDB preamble": (restart_from_rewritten_aof, WITH_PREAMBLE),
    "DEBUG LOADAOF": (load_aof, WITHOUT_PREAMBLE),
    "DEBUG LOADAOF with RDB preamble": (load_aof, WITH_PREAMBLE),
    "DEBUG RELOAD": (reload, {}),
}


@pytest.fixture
def limiters(redis: Redis, clock: Clock) -> Redis:
    """Creates limiters of every kind in many states, and returns a client of their server."""
    play(steps(seed=1, count=600), clock, redis)
    found = {stored.type for stored in state(redis).values()}
    assert found == {limiter.type for limiter in LIMITERS}
    return redis


@pytest.mark.parametrize(
    ("interrupt", "settings"), INTERRUPTIONS.values(), ids=INTERRUPTIONS.keys()
)
def test_an_interruption_changes_no_state_no_expiry_and_no_later_reply(
    interrupt: Callable[[Server], None],
    settings: dict[str, str],
    fresh_server: Callable[..., Server],
    clock: Clock,
) -> None:
    interrupted, other = fresh_server(**settings), fresh_server()
    clients = interrupted.client(), other.client()
    for seed in range(3):
        replies, expected = play(steps(seed, 250), clock, *clients)
        assert replies == expected
        before = state(clients[0])
        assert len(before) > 5
        before_digests = digests(clients[0], before)
        interrupt(interrupted)
        assert state(clients[0]) == before == state(clients[1])
        assert digests(clients[0], before) == before_digests


@pytest.mark.parametrize("settings", [WITH_PREAMBLE, WITHOUT_PREAMBLE], ids=["RDB", "AOF"])
def test_a_rewritten_aof_has_a_ttl_for_every_key(
    settings: dict[str, str], fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(**settings)
    client = server.client()
    play(steps(seed=2, count=600), clock, client)
    rewrite_aof(client)
    server.restart("kill")
    expiries = [stored.expires_at for stored in state(client).values()]
    assert expiries
    assert all(expiry > 0 for expiry in expiries)


def test_changes_during_a_rewrite_are_in_the_rewritten_aof(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(**AOF)
    client = server.client()
    play(steps(seed=3, count=300), clock, client)
    client.bgrewriteaof()
    # The clock stands still, as Redis 6.2 gives up a rewrite if its last message takes 5 s of wall
    # time.
    play([step._replace(move=0) for step in steps(seed=4, count=300)], clock, client)
    wait_until_saved(client)
    before = state(client)
    server.restart("kill")
    assert state(client) == before


@pytest.mark.parametrize(
    ("is_rewritten", "settings"),
    [(False, AOF), (True, WITH_PREAMBLE), (True, WITHOUT_PREAMBLE)],
    ids=["as written", "rewritten as RDB", "rewritten as AOF"],
)
def test_an_aof_that_is_replayed_an_hour_later_charges_nothing_twice_and_forgets_nothing(
    is_rewritten: bool,
    settings: dict[str, str],
    fresh_server: Callable[..., Server],
    clock: Clock,
) -> None:
    replayed = fresh_server(**settings)
    clients = replayed.client(), fresh_server().client()
    for client in clients:
        for limiter in LIMITERS:
            client.execute_command(*limiter.take(limiter.name, 4))
            client.execute_command(*limiter.for_holder("other").take(limiter.name, 3))
    clock.advance("50m")
    for client in clients:
        for limiter in LIMITERS:
            client.execute_command(*limiter.for_holder("third").take(limiter.name, 2))
    if is_rewritten:
        rewrite_aof(clients[0])
    replayed.stop("kill")
    clock.advance("30m")
    replayed.start()
    assert state(clients[0]) == state(clients[1])
    for limiter in LIMITERS:
        replies, expected = (
            client.execute_command(*limiter.for_holder("fourth").take(limiter.name, 9))
            for client in clients
        )
        assert replies == expected
        # 7 units were used 80 minutes ago and 2 half an hour ago. The bucket has refilled and the
        # fixed window has ended. These units still count:
        used = {
            "TOKENBUCKET": 0,
            "LEAKYBUCKET": 0,
            "FIXED": 0,
            "FIXED ALIGNED": 2,
            "SLIDING": 6,
            "SLIDING STRICT": 2,
            "SLIDINGLOG": 2,
            "TOKENBUCKET AS": 0,
            "CONCURRENCY": 2,
        }[limiter.name]
        assert replies[0] == (used == 0)
        assert replies[2] == (10 - used if used else 1)
    assert state(clients[0]) == state(clients[1])


def test_an_aof_that_is_replayed_after_the_recovery_creates_no_keys(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(**AOF)
    client = server.client()
    for limiter in LIMITERS:
        client.execute_command(*limiter.take(limiter.name, 7))
    server.stop("kill")
    clock.advance("30d")
    server.start()
    assert state(client) == {}
    for limiter in LIMITERS:
        assert client.execute_command(*limiter.take(limiter.name, 7))[:3] == [1, 10, 3]


def test_a_key_restored_from_its_dump_is_unchanged(limiters: Redis) -> None:
    before = state(limiters)
    before_digests = digests(limiters, before)
    limiters.flushall()
    for name, stored in before.items():
        limiters.restore(name, stored.expires_at, stored.dump, absttl=True)
    assert state(limiters) == before
    assert digests(limiters, before) == before_digests


def test_a_key_that_is_restored_in_place_of_another_limiter_takes_its_kind(limiters: Redis) -> None:
    before = list(state(limiters).items())
    before_digests = digests(limiters, [name for name, _ in before])
    for number, (name, _) in enumerate(before):
        _, other = before[number - 1]
        limiters.restore(name, other.expires_at, other.dump, replace=True, absttl=True)
        assert state(limiters)[name] == other
        assert digests(limiters, [name]) == [before_digests[number - 1]]


@each_limiter
def test_a_copy_is_a_limiter_of_its_own(limiter: Limiter, redis: Redis) -> None:
    for holder in HOLDERS:
        redis.execute_command(*limiter.for_holder(holder).take("original", 1))
    assert redis.copy("original", "copy")
    original, copied = state(redis)[b"original"], state(redis)[b"copy"]
    assert copied == original
    assert len(set(digests(redis, [b"original", b"copy"]))) == 1
    redis.execute_command(*limiter.for_holder("other").take("copy", 1))
    assert state(redis)[b"original"] == original
    redis.execute_command(*limiter.give_back("original"))
    assert redis.execute_command(*limiter.peek("copy"))[2] == 10 - len(HOLDERS) - 1


@pytest.mark.parametrize("database", [0, 1])
def test_a_copy_in_place_of_another_limiter_takes_its_kind(
    database: int, limiters: Redis, server: Server
) -> None:
    before = state(limiters)
    with server.client(database=database) as client:
        for name, stored in before.items():
            assert limiters.copy(name, "copy", destination_db=database, replace=True)
            assert state(client)[b"copy"] == stored
            assert digests(client, [b"copy"]) == digests(limiters, [name])


def test_a_key_that_is_renamed_and_renamed_back_is_unchanged(limiters: Redis) -> None:
    before = state(limiters)
    before_digests = digests(limiters, before)
    for (name, stored), digest in zip(before.items(), before_digests, strict=True):
        limiters.rename(name, b"renamed")
        assert state(limiters)[b"renamed"] == stored
        assert digests(limiters, [b"renamed"]) == [digest]
        limiters.rename(b"renamed", name)
    assert state(limiters) == before
    assert digests(limiters, before) == before_digests


def test_a_key_that_is_renamed_over_another_limiter_takes_its_kind(limiters: Redis) -> None:
    names = list(state(limiters))
    for name, other in zip(names[::2], names[1::2], strict=False):
        stored, digest = state(limiters)[name], digests(limiters, [name])
        assert state(limiters)[other] != stored
        limiters.rename(name, other)
        assert state(limiters)[other] == stored
        assert digests(limiters, [other]) == digest
        assert name not in state(limiters)


def test_keys_that_are_moved_to_another_database_are_unchanged(
    limiters: Redis, server: Server
) -> None:
    before = state(limiters)
    before_digests = digests(limiters, before)
    for name in before:
        assert limiters.move(name, 1)
    assert state(limiters) == {}
    with server.client(database=1) as client:
        assert state(client) == before
        assert digests(client, before) == before_digests


def test_swapdb_exchanges_limiters(limiters: Redis, server: Server, clock: Clock) -> None:
    with server.client(database=1) as other:
        play(steps(seed=6, count=300), clock, other)
        first, second = state(limiters), state(other)
        expected = digests(limiters, first), digests(other, second)
        assert len(second) > 5
        assert first != second
        limiters.swapdb(0, 1)
        assert (state(limiters), state(other)) == (second, first)
        assert (digests(limiters, second), digests(other, first)) == expected[::-1]
        for limiter in LIMITERS:
            # Later charges go to the key's current database.
            limiters.execute_command(*limiter.take(f"new {limiter.name}"))
        assert state(other) == first


@pytest.mark.parametrize("copy", [False, True], ids=["moved", "copied"])
@pytest.mark.parametrize("replace", [False, True], ids=["to no keys", "in place of other keys"])
def test_keys_that_migrate_to_another_server_are_unchanged(
    copy: bool, replace: bool, limiters: Redis, fresh_server: Callable[..., Server]
) -> None:
    before = state(limiters)
    before_digests = digests(limiters, before)
    other_server = fresh_server()
    target = other_server.client()
    if replace:
        for (name, _), (_, other) in zip(before.items(), [*before.items()][::-1], strict=True):
            target.restore(name, other.expires_at, other.dump, absttl=True)
        assert state(target) != before
    limiters.migrate(
        "127.0.0.1", other_server.port, list(before), 0, 10_000, copy=copy, replace=replace
    )
    assert state(limiters) == (before if copy else {})
    assert state(target) == before
    assert digests(target, before) == before_digests


@each_limiter
def test_different_states_have_different_digests(
    limiter: Limiter, redis: Redis, clock: Clock
) -> None:
    redis.execute_command(*limiter.take("a", 2))
    redis.execute_command(*limiter.take("same", 2))
    redis.execute_command(*limiter.take("more", 3))
    clock.advance("5m")
    redis.execute_command(*limiter.take("later", 2))
    first, same, more, later = digests(redis, [b"a", b"same", b"more", b"later"])
    assert first == same
    assert len({first, more, later}) == 3


@pytest.mark.parametrize(
    "remove",
    [
        pytest.param(lambda client: client.unlink("log", "leases"), id="UNLINK"),
        pytest.param(lambda client: client.flushall(asynchronous=True), id="FLUSHALL ASYNC"),
        pytest.param(lambda client: client.delete("log", "leases"), id="DEL"),
    ],
)
def test_a_big_log_and_lease_table_are_removed(
    remove: Callable[[Redis], object], fresh_server: Callable[..., Server], clock: Clock
) -> None:
    client = fresh_server().client()

    def used_memory() -> int:
        return client.info("memory")["used_memory"]

    # The first call of each command allocates its latency histogram of 24 KB for good.
    for first_call in (lambda: remove(client), client.dbsize, used_memory):
        first_call()
    for number in range(5000):
        clock.advance(1)
        client.execute_command("RL.SLIDINGLOG", "log", 100_000, "1h")
        client.execute_command("RL.ACQUIRE", "leases", 100_000, "1h", f"holder {number}")
    log, leases = (client.memory_usage(name) for name in ("log", "leases"))
    full = used_memory()
    remove(client)
    assert client.dbsize() == 0
    # Half of the smaller key is more than the buffers of two clients, which vary by 15 KB each.
    assert min(log, leases) > 80_000
    expected = log + leases - 40_000
    poll.until(lambda: full - used_memory() > expected, "the memory is free again")


def test_holders_of_any_bytes_are_kept(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server(**AOF)
    client = server.client()
    holders = [*HOLDERS, b"\r\n$3\r\n", b"12:34", b" ", bytes(256)]
    for holder in holders:
        client.execute_command("RL.ACQUIRE", "k", 100, "1h", holder)
    before = state(client)
    assert len(written_commands(server)) == len(holders)
    server.restart("kill")
    rewrite_aof(client)
    server.restart("kill")
    assert state(client) == before
    assert client.execute_command("RL.RELEASE", "k", *holders) == len(holders)
