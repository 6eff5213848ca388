"""A failover under load keeps charges that a client has WAITed for. Beyond the limit, all clients
together get at most the charges that were not acknowledged.

- Replication is asynchronous: charges that had not reached the new primary may be granted again.

A failover loses only charges of the old primary that the replica did not receive, and no client has
WAITed for these. So, for each limit, the counts of `Hammering` satisfy:

    kept + after <= limit           charges that a replica had received remain
    kept + unacknowledged + after <= limit + unacknowledged
    after >= limit - kept - unacknowledged - unanswered         nothing is charged twice
"""

from collections.abc import Callable

import pytest
from redis import ConnectionError as RedisConnectionError
from redis import Redis

from support import poll
from support.load import Hammering
from support.scale import scaled
from support.sentinel import TIMEOUT, Sentinels
from support.server import Server
from support.workload import digests, state

pytestmark = [pytest.mark.every_server, pytest.mark.every_kind]


def assert_no_more_than_was_lost(load: Hammering, successor: Redis) -> None:
    kept, unacknowledged, after = load.kept, load.unacknowledged, load.after
    for name in (limiter.name for limiter in load.limiters):
        granted = kept[name] + unacknowledged[name] + after[name]
        assert kept[name] + after[name] <= load.limit, name
        assert granted <= load.limit + unacknowledged[name], name
        assert granted + load.unanswered[name] >= load.limit, name
        assert kept[name] > 0 < after[name], name
    # The load ends once every client is denied.
    assert load.used(successor) == {limiter.name: load.limit for limiter in load.limiters}


def enough_is_kept(load: Hammering) -> bool:
    load.check()
    return all(load.kept[limiter.name] >= load.limit // 10 for limiter in load.limiters)


def same_bytes(one: Redis, other: Redis) -> bool:
    stored = state(one)
    return state(other) == stored and digests(other, stored) == digests(one, stored)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(scaled(2, 20)))
def test_a_replica_promoted_under_load_grants_the_remaining_units(
    seed: int, fresh_server: Callable[..., Server]
) -> None:
    primary = fresh_server()
    replica = primary.replica()
    old, new = primary.client(), replica.client()
    with Hammering(200, primary.client, replica.client, seed=seed) as load:
        poll.until(lambda: enough_is_kept(load), "a tenth of each limit is charged", 60)
        new.replicaof("NO", "ONE")
        # Clients go on charging the old primary until they wait for a replica that has left.
        poll.until(
            lambda: old.info("clients")["blocked_clients"] == load.clients,
            "all clients wait for a replica",
            timeout=30,
        )
        old.replicaof("127.0.0.1", replica.port)
        load.join()
    assert sum(load.unacknowledged.values()) > 0
    assert_no_more_than_was_lost(load, new)
    offset = new.info("replication")["master_repl_offset"]
    poll.until(
        lambda: old.info("replication")["slave_repl_offset"] == offset,
        "the old primary follows the new one",
        timeout=30,
    )
    assert same_bytes(new, old)


@pytest.mark.timeout(5 * TIMEOUT)
@pytest.mark.parametrize("seed", range(scaled(1, 5)))
def test_a_replica_promoted_by_sentinels_under_load_grants_the_remaining_units(
    seed: int, fresh_server: Callable[..., Server]
) -> None:
    # Sentinels and WAITs need the clock to run; the periods are so long that nothing recovers.
    settings = {"clock": None, "repl_timeout": 60, "repl_ping_replica_period": 1}
    primary = fresh_server(**settings)
    replica = primary.replica(**settings)
    new = replica.client()
    with Sentinels(primary) as sentinels:

        def successor() -> Redis:
            client = sentinels.client()

            def answers() -> bool:
                try:
                    return client.role()[0] == b"master"
                except RedisConnectionError:
                    return False

            poll.until(answers, "the sentinels' primary answers", TIMEOUT)
            return client

        with Hammering(200, sentinels.client, successor, seed=seed) as load:
            poll.until(lambda: enough_is_kept(load), "a tenth of each limit is charged", 60)
            primary.stop("kill")
            load.join()
        assert sentinels.primary_port() == replica.port
        assert_no_more_than_was_lost(load, new)

        primary.start()
        old = primary.client()

        def follows() -> bool:
            try:
                return old.info("replication").get("master_link_status") == "up"
            except RedisConnectionError:
                # A server that becomes a replica closes its clients' connections.
                return False

        poll.until(follows, "the old primary is a replica", TIMEOUT)
        assert old.info("replication")["master_port"] == replica.port
        offset = new.info("replication")["master_repl_offset"]
        poll.until(
            lambda: old.info("replication")["slave_repl_offset"] >= offset, "it is in sync", 30
        )
        stored = types_and_dumps(new)
        assert len(stored) == len(load.limiters)
        assert types_and_dumps(old) == stored
        assert digests(old, stored) == digests(new, stored)
        for name in stored:
            (old_earliest, old_latest), (new_earliest, new_latest) = (
                expiry_bounds(client, name) for client in (old, new)
            )
            assert old_earliest <= new_latest
            assert new_earliest <= old_latest


def types_and_dumps(client: Redis) -> dict[bytes, tuple[bytes, bytes]]:
    return {name: (stored.type, stored.dump) for name, stored in state(client).items()}


def expiry_bounds(client: Redis, name: bytes) -> tuple[int, int]:
    """Returns the earliest and latest possible expiry in ms. Older servers return only the TTL."""
    earliest, ttl, latest = client.time(), client.pttl(name), client.time()
    return (
        earliest[0] * 1000 + earliest[1] // 1000 + ttl - 1,
        latest[0] * 1000 + latest[1] // 1000 + ttl + 1,
    )
