"""With any eviction policy, a flood of keys is answered within `maxmemory`, and limiters that are
not evicted have the exact usage.

- An evicted limiter is forgotten.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
from redis import Connection, OutOfMemoryError, Redis

from conftest import Pair
from support import poll
from support.clock import Clock
from support.pressure_calls import (
    Start,
    cost_of,
    fill_and_deny,
    flood,
    limiter_of,
    quiet_memory,
    remaining,
)
from support.scale import first_on_every_server, scaled
from support.workload import LIMITERS, Limiter, Word, each_limiter_on_one_server, state

pytestmark = [pytest.mark.every_server, pytest.mark.timeout(scaled(180, 3600))]
POLICIES = [
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
]
# With these settings, the server evicts all necessary keys at once, and a small backlog counts
# towards maxmemory.
EVICTING = {"maxmemory_eviction_tenacity": 100, "repl_backlog_size": 16_384}


def counted_memory(client: Redis) -> int:
    """Returns the memory use that the server compares with maxmemory."""
    memory = client.info("memory")
    return memory["used_memory"] - memory["mem_not_counted_for_evict"]


# maxmemory


@pytest.mark.parametrize("policy", first_on_every_server(POLICIES))
def test_with_an_eviction_policy_a_flood_of_keys_is_answered_within_maxmemory(
    policy: str, fresh_server: Start
) -> None:
    server = fresh_server(maxmemory_policy=policy, **EVICTING)
    replica = server.replica()
    client = server.client()
    client.set("no limiter", "has no TTL")
    maxmemory = counted_memory(client) + scaled(1_000_000, 10_000_000)
    client.config_set("maxmemory", maxmemory)

    def watch() -> None:
        # The server evicts keys before a call, but the reply needs memory too.
        assert counted_memory(client) < maxmemory + 20_000

    numbers = range(scaled(8_000, 80_000))
    replies = flood(client, numbers, watch)
    for number, reply in zip(numbers, replies, strict=True):
        # Every call creates a key.
        assert reply[:3] == [1, 10, 10 - cost_of(number)]
    client.config_set("maxmemory", 0)

    evicted = client.info("stats")["evicted_keys"]
    living = set(client.keys("flood:*"))
    assert evicted > len(numbers) // 10
    assert len(living) > len(numbers) // 100
    if policy.startswith("volatile-"):
        assert client.exists("no limiter")
        assert evicted + len(living) == len(numbers)
    found = remaining(client, numbers)
    for number, units in zip(numbers, found, strict=True):
        # An evicted key has no usage.
        is_living = b"flood:%d" % number in living
        assert units == (10 - cost_of(number) if is_living else 10)

    replica.wait_for_sync()
    assert state(replica.client()) == state(client)
    evicted_number = next(number for number in numbers if b"flood:%d" % number not in living)
    assert client.execute_command(*limiter_of(evicted_number).take(f"flood:{evicted_number}", 10))[
        :3
    ] == [
        1,
        10,
        0,
    ]


def test_volatile_ttl_evicts_limiters_that_expire_first(fresh_server: Start, clock: Clock) -> None:
    server = fresh_server(maxmemory_policy="volatile-ttl", **EVICTING)
    client = server.client()
    client.config_set("maxmemory", counted_memory(client) + 1_000_000)

    def charge(name: str, window: str, count: int) -> None:
        # In small batches, as requests and replies need memory too.
        for first in range(0, count, 100):
            pipeline = client.pipeline(transaction=False)
            for number in range(first, first + 100):
                pipeline.execute_command("RL.FIXED", f"{name}:{number}", 10, window)
            pipeline.execute()

    # More short windows than fit, then some windows that last longer.
    charge("short", "10m", 16_000)
    before = client.info("stats")["evicted_keys"]
    charge("long", "1h", 1000)
    assert client.info("stats")["evicted_keys"] > before + 100
    assert len(client.keys("long:*")) == 1000
    clock.advance("10m")
    assert client.execute_command("RL.PEEK", "long:0", "FIXED", 10, "1h")[:3] == [1, 10, 9]


def test_with_noeviction_a_flood_fills_the_memory_and_existing_keys_continue(
    fresh_server: Start,
) -> None:
    client = fresh_server().client()
    maxmemory = counted_memory(client) + scaled(1_000_000, 10_000_000)
    client.config_set("maxmemory", maxmemory)
    numbers = range(scaled(8_000, 80_000))
    replies = flood(client, numbers)
    assert counted_memory(client) < maxmemory + 100_000
    assert client.info("stats")["evicted_keys"] == 0
    created = [
        number for number, reply in zip(numbers, replies, strict=True) if type(reply) is list
    ]
    refused = [reply for reply in replies if type(reply) is not list]
    assert len(refused) > len(numbers) // 10
    assert {type(error) for error in refused} == {OutOfMemoryError}
    assert sorted(client.keys()) == sorted(b"flood:%d" % number for number in created)
    fill_and_deny(client, created)


def test_many_expired_keys_leave_no_memory_allocated(fresh_server: Start, clock: Clock) -> None:
    """Checks that less memory stays allocated than if each key had leaked two bytes, after the
    server has shrunk its tables of keys step by step.
    """
    client = fresh_server().client()
    numbers = range(scaled(40_000, 1_000_000))
    # A few keys make the server allocate memory that it keeps.
    flood(client, range(len(LIMITERS)))
    clock.advance("1d")
    poll.until(lambda: client.dbsize() == 0, "the first keys have expired", timeout=30)
    empty = quiet_memory(client)

    assert {reply[0] for reply in flood(client, numbers)} == {1}
    assert client.dbsize() == len(numbers)
    full = quiet_memory(client)
    assert full > empty + 100 * len(numbers)
    clock.advance("1d")
    # Some keys are removed on access, the others in the background.
    client.exists(*(f"flood:{number}" for number in range(0, len(numbers), 10)))
    poll.until(lambda: client.dbsize() == 0, "all keys have expired", timeout=600)
    bound = empty + 2 * len(numbers)
    poll.until(lambda: quiet_memory(client) < bound, "the memory is free again", timeout=60)


# 1000 clients


CLIENTS = 1000


@pytest.fixture
def connections(pair: Pair) -> Iterator[list[Connection]]:
    """Opens a thousand connections at once."""
    client = pair.primary.client()
    pool = client.connection_pool
    pool.max_connections = CLIENTS + 1
    with ExitStack() as opened:
        connections = []
        for _ in range(CLIENTS):
            connection = pool.get_connection()
            opened.callback(pool.release, connection)
            connections.append(connection)
        assert client.info("clients")["connected_clients"] >= CLIENTS
        yield connections
    pool.disconnect()


def at_once(
    connections: Sequence[Connection], call: Callable[[int], tuple[Word, ...]]
) -> list[list[int]]:
    """Sends every client's call before reading the first reply."""
    for number, connection in enumerate(connections):
        connection.send_command(*call(number))
    return [connection.read_response() for connection in connections]


@each_limiter_on_one_server
def test_of_a_thousand_clients_exactly_the_limit_is_admitted(
    limiter: Limiter, connections: list[Connection], pair: Pair, clock: Clock
) -> None:
    # Each call takes a fiftieth of a unit, so that 500 fit.
    replies = at_once(connections, lambda n: limiter.for_holder(f"{n}").take("k", "0.02"))
    assert [allowed for allowed, *_ in replies].count(1) == 500
    replies = at_once(connections, lambda n: limiter.for_holder(f"new {n}").take("k", "0.02"))
    assert {(allowed, remaining) for allowed, _, remaining, _, _ in replies} == {(0, 0)}
    # With several keys in a call, the lowest limit decides.
    several = at_once(
        connections,
        lambda n: (
            *("RL.MTAKE", 3, "a", "b", "c"),
            *limiter.for_holder(f"{n}").words("0.05"),
            *("FIXED", 123, "1h", "SLIDINGLOG", 456, "1h"),
        ),
    )
    assert [allowed for allowed, *_ in several].count(1) == 123
    client = pair.primary.client()
    assert client.execute_command("RL.PEEK", "c", "SLIDINGLOG", 456, "1h")[2] == 456 - 123
    pair.replica.wait_for_sync()
    assert state(pair.replica.client()) == state(client)
    # After recovery, as many are admitted again.
    clock.advance(limiter.recovery)
    replies = at_once(connections, lambda n: limiter.for_holder(f"later {n}").take("k", "0.02"))
    assert [allowed for allowed, *_ in replies].count(1) == 500


@pytest.mark.one_server
def test_a_thousand_clients_do_not_disturb_each_others_keys(
    connections: list[Connection], pair: Pair
) -> None:
    def take_three(holder: str) -> set[tuple[int, ...]]:
        replies = at_once(
            connections, lambda n: limiter_of(n).for_holder(holder).take(f"of client {n}", 3)
        )
        return {tuple(reply[:3]) for reply in replies}

    assert take_three("a") == {(1, 10, 7)}
    assert take_three("b") == {(1, 10, 4)}
    assert take_three("c") == {(1, 10, 1)}
    assert take_three("d") == {(0, 10, 1)}
    assert pair.primary.client().dbsize() == CLIENTS
