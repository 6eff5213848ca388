"""RL.TOP with more keys than fit, with other sizes, on replicas and after a restart."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from redis import Redis, ResponseError

from conftest import Pair
from support.heavy_hitters import deny, exact, set_top_keys, top, used_memory
from support.server import Server

Start = Callable[..., Server]


@pytest.fixture
def start(fresh_server: Start) -> Callable[..., Redis]:
    """Returns a function that starts a server with the given setting top-keys."""

    def start_with_top_keys(count: int, **arguments: object) -> Redis:
        server = fresh_server(module_args=f"top-keys {count}", **arguments)
        return server.client()

    return start_with_top_keys


def test_key_that_replaces_another_counts_from_0_for_since(start: Callable[..., Redis]) -> None:
    redis = start(1)
    deny(redis, *"aaab")
    assert top(redis) == [(b"b", 4, 3)]
    assert top(redis, "SINCE", "1h") == exact(b=1)
    deny(redis, "a")
    assert top(redis, "SINCE", "1h") == exact(a=1)


# More keys than there is room for


def test_heavy_keys_are_found_among_noise(start: Callable[..., Redis]) -> None:
    redis, room, draw = start(64), 64, Random(7)
    heavy = [f"heavy:{number}" for number in range(10)]
    names = [name for number, name in enumerate(heavy) for _ in range(300 + 30 * number)]
    names += [f"noise:{number}" for number in range(6_000)]
    draw.shuffle(names)
    deny(redis, *names)
    truth = Counter(name.encode() for name in names)
    counted = {name: (denied, error) for name, denied, error in top(redis, "COUNT", room)}
    assert len(counted) == room
    assert sum(denied for denied, _ in counted.values()) == len(names)
    for name, count in truth.items():
        assert count <= len(names) // room or name in counted
    for name, (denied, error) in counted.items():
        assert denied - error <= truth[name] <= denied
    certain = sorted(counted, key=lambda name: counted[name][0] - counted[name][1], reverse=True)
    assert {name.decode() for name in certain[:10]} == set(heavy)


def test_a_new_key_continues_from_the_count_of_the_removed_one(start: Callable[..., Redis]) -> None:
    redis = start(2)
    deny(redis, *"aaabb", "c")
    assert top(redis) == [(b"a", 3, 0), (b"c", 3, 2)]


@pytest.mark.parametrize("length", [12, 512])
def test_noise_does_not_exceed_the_memory_bound(start: Callable[..., Redis], length: int) -> None:
    redis, room = start(256), 256

    def memory_after_denials(first: int, count: int) -> int:
        for batch in range(first, first + count, 1000):
            deny(redis, *(str(number).rjust(length, "x") for number in range(batch, batch + 1000)))
        redis.execute_command("RL.TOP COUNT 1")
        return used_memory(redis)

    before = used_memory(redis)
    full = memory_after_denials(0, 2000)
    # For each key an entry, and a block for its name.
    assert full - before < room * (420 + 2 * length) + 100_000
    assert abs(memory_after_denials(2000, 20_000) - full) < 50_000
    redis.execute_command("RL.TOP RESET")
    assert used_memory(redis) < full - room * (370 + length) + 50_000


# The setting


def test_size_0_records_no_denied_keys(start: Callable[..., Redis]) -> None:
    redis = start(0)
    deny(redis, *"aab")
    assert top(redis) == []
    assert top(redis, "RESET") == []


def test_default_size_is_1024_keys(fresh_server: Start) -> None:
    redis = fresh_server().client()
    deny(redis, *map(str, range(1500)))
    assert len(top(redis, "COUNT", 65_536)) == 1024


def test_a_changed_size_keeps_the_keys_denied_most(fresh_server: Start) -> None:
    server = fresh_server()
    with server.client() as redis:
        deny(redis, *"aaaabbbccd")
        set_top_keys(redis, server, 2)
        assert top(redis) == exact(a=4, b=3)
        deny(redis, "c")
        assert top(redis) == [(b"a", 4, 0), (b"c", 4, 3)]
        set_top_keys(redis, server, 3)
        # A new key may have been denied as often as the removed ones.
        deny(redis, "e")
        assert top(redis) == [(b"a", 4, 0), (b"c", 4, 3), (b"e", 4, 3)]
        set_top_keys(redis, server, 65_536)
        assert len(top(redis)) == 3


def test_size_0_frees_the_table(fresh_server: Start) -> None:
    server = fresh_server()
    with server.client() as redis:
        set_top_keys(redis, server, 4096)
        for batch in range(0, 4000, 1000):
            deny(redis, *(f"k:{number}" for number in range(batch, batch + 1000)))
        full = used_memory(redis)
        set_top_keys(redis, server, 0)
        deny(redis, "k:1")
        assert used_memory(redis) < full - 4000 * 80
        set_top_keys(redis, server, 4096)
        assert top(redis) == []
        deny(redis, "k:1")
        # Denials while it was turned off are not counted.
        assert [name for name, *_ in top(redis)] == [b"k:1"]


# Replicas, persistence


def replication_offset(server: Server) -> int:
    return server.client().info("replication")["master_repl_offset"]


def test_each_server_counts_its_own_denials(pair: Pair) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    for redis in (primary, replica):
        redis.execute_command("RL.TOP RESET")
    primary.execute_command("RL.FIXED k 1 1h")
    deny(primary, "k")
    pair.replica.wait_for_sync()
    assert (top(primary), top(replica)) == (exact(k=1), [])
    before = replication_offset(pair.primary)
    assert top(replica, "RESET") == []
    assert top(primary, "RESET") == exact(k=1)
    assert replication_offset(pair.primary) == before, "RL.TOP RESET propagates nothing"


def test_replica_that_serves_no_stale_data_replies_to_top(fresh_server: Start) -> None:
    primary = fresh_server()
    replica = primary.replica()
    with replica.client() as redis:
        redis.config_set("replica-serve-stale-data", "no")
        primary.stop()
        redis.execute_command("REPLICAOF", "127.0.0.1", 1)
        with pytest.raises(ResponseError, match="MASTER is down"):
            redis.execute_command("RL.INFO k")
        assert top(redis, "RESET") == []
        redis.execute_command("REPLICAOF NO ONE")
        primary.start()


def test_restart_forgets_denied_keys(fresh_server: Start) -> None:
    server = fresh_server(appendonly="yes")
    with server.client() as redis:
        redis.execute_command("RL.FIXED k 1 1h")
        deny(redis, "k")
        server.restart()
        assert redis.exists("k") == 1
        assert top(redis) == []
