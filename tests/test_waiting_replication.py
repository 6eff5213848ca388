"""When a server becomes a replica, waiting calls get `UNBLOCKED` and their connections are closed,
as for BLPOP. A replica grants nothing.
"""

from collections.abc import Callable

import pytest
from redis import ConnectionError as RedisConnectionError
from redis import ReadOnlyError, Redis

from conftest import Pair
from support import poll
from support.clock import Clock
from support.server import Server
from support.waiting import GRANTED, Caller, Queue, answered, error_of, leases_of
from support.workload import state

pytestmark = pytest.mark.every_server

Start = Callable[..., Server]


def assert_cut_off(waiters: list[Caller]) -> None:
    """Checks that the server ended the calls as it ends BLPOP."""
    for waiter in waiters:
        assert error_of(waiter.reply).startswith("UNBLOCKED")
        with pytest.raises(RedisConnectionError):
            waiter.reply()


def role(client: Redis) -> str:
    return client.info("replication")["role"]


def start_with_replica(start: Start) -> tuple[Server, Server]:
    """Starts a primary that can fail over to its replica."""
    primary = start()
    replica = primary.replica()
    with primary.client() as client:
        poll.until(
            lambda: client.info("replication")["slave0"]["state"] == "online",
            "the replica is online",
        )
    return primary, replica


def test_waiting_calls_on_a_server_that_becomes_a_replica_get_unblocked(
    fresh_server: Start, clock: Clock
) -> None:
    server, other = fresh_server(), fresh_server()
    with Queue(server) as queue:
        queue.acquire("a")
        waiters = [*queue.join_all("b", "c"), queue.join("d", block="30s")]
        server.follow(other)
        assert_cut_off(waiters)
        assert queue.is_empty
        server.wait_for_sync()
        # A replica does not grant the leases that are due.
        clock.advance("2m")
        assert state(queue.client) == {}
        server.follow(None)
        queue.see_clock(clock)
        assert queue.holders() == {}
        assert queue.info()["served"] == 0


def test_expired_lease_is_not_granted_on_a_replica(fresh_server: Start, clock: Clock) -> None:
    """The replica accepts writes at first, so that calls can wait on it."""
    replica = fresh_server().replica(replica_read_only="no")
    with Queue(replica) as queue:
        queue.acquire("a")
        b, c = queue.join("b"), queue.join("c", block="60s")
        queue.client.config_set("replica-read-only", "yes")
        clock.advance("60s")
        assert c.reply()[0] == 0
        queue.settle()
        assert not b.is_answered
        replica.follow(None)
        assert b.reply() == GRANTED


def test_no_call_waits_on_a_replica(pair: Pair) -> None:
    with Queue(pair.primary) as queue, pair.replica.client() as replica:
        queue.acquire("a")
        queue.join("b")
        pair.replica.wait_for_sync()
        for holder in ("b", "c"):
            with pytest.raises(ReadOnlyError):
                replica.execute_command("RL.ACQUIRE", "k", 1, "60s", holder, "BLOCK", 0)
        # A replica has leases, but no queues.
        peek = ("RL.PEEK", "k", "CONCURRENCY", 2, "60s", "c")
        assert replica.execute_command(*peek) == [1, 2, 1, 0, 60_000]
        assert queue.client.execute_command(*peek) == [0, 2, 1, 1, 60_000]


def test_after_a_failover_callers_wait_on_the_new_primary(
    fresh_server: Start, clock: Clock
) -> None:
    old, new = start_with_replica(fresh_server)
    with Queue(old) as old_queue, Queue(new) as new_queue:
        old_queue.acquire("a")
        waiters = old_queue.join_all("b", "c")
        clock.advance("10s")
        old_queue.client.execute_command("FAILOVER", "TO", "127.0.0.1", new.port)
        assert_cut_off(waiters)
        poll.until(lambda: role(new_queue.client) == "master", "the replica has taken over")
        # The lease is still held for its remaining time.
        assert new_queue.acquire("b") == [0, 1, 0, 50_000, 50_000]
        b, c = new_queue.join_all("b", "c")
        clock.advance("50s")
        assert b.reply() == GRANTED
        new_queue.release("b")
        assert c.reply() == GRANTED
        poll.until(
            lambda: state(old_queue.client) == state(new_queue.client),
            "the old primary has the same keys",
        )
        assert leases_of(old_queue.client) == {b"c": b"1"}


def test_no_lease_is_granted_while_a_failover_waits_for_its_replica(
    fresh_server: Start, clock: Clock
) -> None:
    primary, replica = start_with_replica(fresh_server)
    with Queue(primary) as queue:
        queue.acquire("a")
        b, c, d = queue.join("b"), queue.join("c", block="30s"), queue.join("d")
        last = queue.join("last", block="60s")
        with replica.suspended():
            queue.client.set("unknown to", "the replica")
            queue.client.execute_command("FAILOVER")
            clock.advance("30s")
            assert c.reply() == [0, 1, 0, 30_000, 30_000]
            clock.advance("30s")
            assert last.reply()[0] == 0
            queue.settle()
            assert answered([b, d]) == [False, False]
            assert queue.client.info("replication")["master_failover_state"] != "no-failover"
            queue.client.execute_command("FAILOVER", "ABORT")
            assert b.reply() == GRANTED
        replica.wait_for_sync()
        with replica.client() as client:
            assert state(client) == state(queue.client)


def test_workers_continue_on_a_promoted_replica(fresh_server: Start, clock: Clock) -> None:
    primary = fresh_server()
    replica = primary.replica()
    with Queue(primary) as queue:
        queue.acquire("a")
        b, _ = queue.join_all("b", "c")
        queue.release("a")
        assert b.reply() == GRANTED
        replica.wait_for_sync()
        primary.stop("kill")
    replica.follow(None)
    with Queue(replica) as queue:
        assert queue.holders() == {b"b": b"1"}
        c = queue.join("c")
        # The holder keeps its lease by its name, on any server.
        assert queue.acquire("b", "BLOCK", 0) == GRANTED
        clock.advance("60s")
        assert c.reply() == GRANTED


def test_a_replica_of_a_replica_receives_grants(fresh_server: Start, clock: Clock) -> None:
    primary = fresh_server()
    middle = primary.replica()
    last = middle.replica()
    with Queue(primary) as queue:
        queue.acquire("a", "AS", "pool")
        waiters = [queue.join(name, "AS", "pool") for name in "bc"]
        clock.advance("60s")
        assert waiters[0].reply() == GRANTED
        queue.release("b")
        assert waiters[1].reply() == GRANTED
        for server in (middle, last):
            server.wait_for_sync()
            with server.client() as client:
                assert state(client) == state(queue.client)
