"""A waiting call is granted nothing while the server would refuse its write: too few replicas
(`min-replicas-to-write`), a failed snapshot or AOF, or a cluster that only reads. A caller that has
lost its permission gets `NOPERM`; on Redis 6.2, its lease.

- Before Redis 7.2, the module asks CONFIG whether the server would refuse a write. If CONFIG is
  renamed, it assumes the defaults.
"""

import os
import signal
from collections.abc import Callable

import pytest

from conftest import Pair
from support.clock import Clock
from support.server import Server
from support.waiting import DENIED, GRANTED, Caller, Queue, error_of

Start = Callable[..., Server]
Step = Callable[[Queue], None]


def queue_checks(queue: Queue) -> int:
    """Returns how often the server has checked a queue."""
    checks = queue.info()["looks"]
    assert isinstance(checks, int)
    return checks


# A server that refuses writes


def misses_a_replica(queue: Queue) -> None:
    queue.client.config_set("min-replicas-to-write", 1)


def needs_no_replica(queue: Queue) -> None:
    queue.client.config_set("min-replicas-to-write", 0)


def cannot_save(queue: Queue) -> None:
    (queue.server.directory / "dump.rdb").mkdir()
    queue.client.config_set("save", "3600 1000000")
    queue.client.bgsave()
    queue.until(
        lambda: queue.client.info("persistence")["rdb_last_bgsave_status"] == "err", "it has failed"
    )


def can_save(queue: Queue) -> None:
    (queue.server.directory / "dump.rdb").rmdir()
    queue.client.bgsave()


STATES = [
    ("NOREPLICAS", misses_a_replica, needs_no_replica),
    ("MISCONF", cannot_save, can_save),
]
states = pytest.mark.parametrize(("error", "begins", "ends"), STATES, ids=[s[0] for s in STATES])


@states
def test_no_lease_is_granted_while_the_server_refuses_writes(
    own_queue: Queue, clock: Clock, error: str, begins: Step, ends: Step
) -> None:
    queue = own_queue
    queue.acquire("a")
    b, c, d = queue.join("b"), queue.join("c", block="90s"), queue.join("d")
    before = queue.client.dump("k")
    begins(queue)
    assert error in error_of(lambda: queue.acquire("late"))
    # The lease expires, and the head would be granted one.
    checked = queue_checks(queue)
    clock.advance("60s")
    queue.until(lambda: queue_checks(queue) > checked, "the queue is checked")
    queue.settle()
    assert not b.is_answered
    assert queue.client.dump("k") == before
    # Deadlines end in denials.
    clock.advance("30s")
    assert c.reply() == [0, 1, 1, 1, 0]
    assert queue.client.client_unblock(d.id) == 1
    assert d.reply() == [0, 1, 1, 1, 0]
    assert queue.info()["blocked_clients"] == 1
    ends(queue)
    assert b.reply() == GRANTED
    assert queue.holders() == {b"b": b"1"}


@states
def test_queues_are_not_polled_while_the_server_refuses_writes(
    own_queue: Queue, clock: Clock, error: str, begins: Step, ends: Step
) -> None:
    queue = own_queue
    for key in "jkl":
        queue.acquire("a", key=key)
    waiters = [queue.join("b", key=key) for key in "jkl"]
    queue.acquire("a", key="other", ttl="1h")
    others = [queue.join(name, key="other", ttl="1h", block=block) for name, block in TIMES]
    begins(queue)
    clock.advance("60s")
    assert others[0].reply()[0] == 0
    queue.settle()
    checked = queue_checks(queue)
    # The module asks the server about ten times a second whether it accepts writes. Only due queues
    # are checked.
    clock.advance("100ms")
    assert [others[1].reply()[0], queue_checks(queue)] == [0, checked + 1]
    assert error in error_of(lambda: queue.acquire("late"))
    ends(queue)
    assert [waiter.reply() for waiter in waiters] == [GRANTED] * 3


# Before the keys themselves expire, which would be checked then.
TIMES = [("c", "60s"), ("d", "60100ms")]


def test_a_cluster_that_only_reads_grants_no_lease(fresh_server: Start, clock: Clock) -> None:
    server = fresh_server(cluster_enabled="yes", cluster_allow_reads_when_down="yes")
    with Queue(server) as queue:

        def state(expected: bytes) -> bool:
            clock.advance("1s")
            return b"cluster_state:" + expected in queue.client.execute_command("CLUSTER", "INFO")

        queue.client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        queue.until(lambda: state(b"ok"), "the cluster is up")
        queue.acquire("a", ttl="1h")
        b = queue.join("b")
        other = 1 + queue.client.execute_command("CLUSTER", "KEYSLOT", "k")
        queue.client.execute_command("CLUSTER", "DELSLOTS", other)
        queue.until(lambda: state(b"fail"), "the cluster is down")
        assert "cluster is down" in error_of(lambda: queue.acquire("late"))
        clock.advance("1h")
        if server.is_valkey or server.version >= (7, 2):
            # The caller gets this error, as a new call would.
            assert "cluster is down" in error_of(b.reply)
        else:
            queue.settle()
            assert not b.is_answered
        queue.client.execute_command("CLUSTER", "ADDSLOTS", other)
        queue.until(lambda: state(b"ok"), "the cluster is up again")
        if server.version < (7, 2) and not server.is_valkey:
            assert b.reply() == GRANTED


# Users that lose their permission


def worker(queue: Queue, holder: str) -> Caller:
    caller = queue.caller()
    caller.call("AUTH", "worker", "")
    return queue.join(holder, by=caller)


TAKEN_AWAY = {
    "the command": ("-rl.acquire",),
    "the key": ("resetkeys", "~other"),
    "everything": ("reset", "on", "nopass", "+ping", "+echo"),
}


@pytest.fixture
def with_worker(own_queue: Queue) -> Queue:
    own_queue.client.execute_command("ACL", "SETUSER", "worker", "on", "nopass", "~*", "+@all")
    own_queue.acquire("a")
    return own_queue


@pytest.mark.parametrize("rules", TAKEN_AWAY.values(), ids=TAKEN_AWAY)
def test_a_user_that_lost_its_permission_is_granted_nothing(
    with_worker: Queue, rules: tuple[str, ...]
) -> None:
    queue = with_worker
    b, c = worker(queue, "b"), queue.join("c")
    queue.client.execute_command("ACL", "SETUSER", "worker", *rules)
    queue.release("a")
    if queue.server.version < (7,) and not queue.server.is_valkey:
        # Redis 6.2 does not tell a module which user made a call.
        assert b.reply() == GRANTED
        queue.release("b")
    else:
        assert error_of(b.reply) == NO_PERMISSION
    assert c.reply() == GRANTED
    assert queue.holders() == {b"c": b"1"}
    assert b.call("ECHO", "in step") == b"in step"


NO_PERMISSION = (
    "this user has lost the permission to run RL.ACQUIRE on this key while the call waited"
)


def test_a_disabled_user_that_waits_is_granted_its_lease(with_worker: Queue) -> None:
    """The server, too, keeps existing connections of such a user."""
    b = worker(with_worker, "b")
    with_worker.client.execute_command("ACL", "SETUSER", "worker", "off", "resetpass")
    with_worker.release("a")
    assert b.reply() == GRANTED


def test_a_user_without_permission_is_denied_at_the_deadline(
    with_worker: Queue, clock: Clock
) -> None:
    caller = with_worker.caller()
    caller.call("AUTH", "worker", "")
    b = with_worker.join("b", by=caller, block="10s")
    with_worker.client.execute_command("ACL", "SETUSER", "worker", "-rl.acquire")
    clock.advance("10s")
    assert b.reply() == [0, 1, 0, 50_000, 50_000]


# WAIT


def test_wait_counts_replicas_that_have_a_lease_granted_in_turn(pair: Pair, clock: Clock) -> None:
    with Queue(pair.primary) as queue:
        queue.acquire("a")
        b = queue.join("b")
        pair.replica.wait_for_sync()
        os.kill(pair.replica.pid, signal.SIGSTOP)
        try:
            queue.release("a")
            assert b.reply() == GRANTED
            if queue.server.version < (7,) and not queue.server.is_valkey:
                # WAIT uses the offset of the connection's last call, and does not count a grant as
                # a call.
                b.call("PING")
            b.send("WAIT", 1, 1000)
            queue.settle()
            assert not b.is_answered
            clock.advance("2s")
            assert b.reply() == 0
        finally:
            os.kill(pair.replica.pid, signal.SIGCONT)
        b.send("WAIT", 1, 0)
        assert b.reply() == 1
        queue.release("b")


# CLIENT UNBLOCK with I/O threads


def test_unblocked_calls_get_a_reply_with_io_threads(fresh_server: Start) -> None:
    server = fresh_server(io_threads=2, io_threads_do_reads="yes")
    with Queue(server) as queue:
        queue.acquire("a")
        b = queue.join("b")
        passes_over = server.is_valkey or server.version >= (7, 4)
        assert queue.client.client_unblock(b.id) == passes_over
        if passes_over:
            assert b.reply() == DENIED
        else:
            queue.release("a")
            assert b.reply() == GRANTED
