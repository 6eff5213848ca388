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


def require_a_replica(queue: Queue) -> None:
    queue.client.config_set("min-replicas-to-write", 1)


def require_no_replica(queue: Queue) -> None:
    queue.client.config_set("min-replicas-to-write", 0)


def break_saves(queue: Queue) -> None:
    (queue.server.directory / "dump.rdb").mkdir()
    queue.client.config_set("save", "3600 1000000")
    queue.client.bgsave()
    queue.until(
        lambda: queue.client.info("persistence")["rdb_last_bgsave_status"] == "err",
        "the save has failed",
    )


def repair_saves(queue: Queue) -> None:
    (queue.server.directory / "dump.rdb").rmdir()
    queue.client.bgsave()


# The error that the server gives to writes, and functions that cause and end it.
REFUSALS = [
    ("NOREPLICAS", require_a_replica, require_no_replica),
    ("MISCONF", break_saves, repair_saves),
]
each_refusal = pytest.mark.parametrize(
    ("error", "begin", "end"), REFUSALS, ids=[error for error, *_ in REFUSALS]
)


@each_refusal
def test_no_lease_is_granted_while_the_server_refuses_writes(
    own_queue: Queue, clock: Clock, error: str, begin: Step, end: Step
) -> None:
    queue = own_queue
    queue.acquire("a")
    b, c, d = queue.join("b"), queue.join("c", block="90s"), queue.join("d")
    before = queue.client.dump("k")
    begin(queue)
    assert error in error_of(lambda: queue.acquire("late"))
    # The lease expires, so that the head of the queue would be served.
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
    end(queue)
    assert b.reply() == GRANTED
    assert queue.holders() == {b"b": b"1"}


# Deadlines that end before the key expires, which would also check the queue.
DEADLINES = [("c", "60s"), ("d", "60100ms")]


@each_refusal
def test_queues_are_not_polled_while_the_server_refuses_writes(
    own_queue: Queue, clock: Clock, error: str, begin: Step, end: Step
) -> None:
    queue = own_queue
    for key in "jkl":
        queue.acquire("a", key=key)
    waiters = [queue.join("b", key=key) for key in "jkl"]
    queue.acquire("a", key="other", ttl="1h")
    others = [queue.join(name, key="other", ttl="1h", block=block) for name, block in DEADLINES]
    begin(queue)
    clock.advance("60s")
    assert others[0].reply()[0] == 0
    queue.settle()
    checked = queue_checks(queue)
    # The module asks the server about ten times a second whether it accepts writes. Only due queues
    # are checked.
    clock.advance("100ms")
    assert [others[1].reply()[0], queue_checks(queue)] == [0, checked + 1]
    assert error in error_of(lambda: queue.acquire("late"))
    end(queue)
    assert [waiter.reply() for waiter in waiters] == [GRANTED] * 3


def test_a_cluster_that_only_reads_grants_no_lease(fresh_server: Start, clock: Clock) -> None:
    server = fresh_server(cluster_enabled="yes", cluster_allow_reads_when_down="yes")
    with Queue(server) as queue:

        def has_state(state: bytes) -> bool:
            clock.advance("1s")
            return b"cluster_state:" + state in queue.client.execute_command("CLUSTER", "INFO")

        queue.client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        queue.until(lambda: has_state(b"ok"), "the cluster is up")
        queue.acquire("a", ttl="1h")
        b = queue.join("b")
        other_slot = 1 + queue.client.execute_command("CLUSTER", "KEYSLOT", "k")
        queue.client.execute_command("CLUSTER", "DELSLOTS", other_slot)
        queue.until(lambda: has_state(b"fail"), "the cluster is down")
        assert "cluster is down" in error_of(lambda: queue.acquire("late"))
        clock.advance("1h")
        if server.is_valkey or server.version >= (7, 2):
            # The waiting call gets the error of a new call.
            assert "cluster is down" in error_of(b.reply)
        else:
            queue.settle()
            assert not b.is_answered
        queue.client.execute_command("CLUSTER", "ADDSLOTS", other_slot)
        queue.until(lambda: has_state(b"ok"), "the cluster is up again")
        if server.version < (7, 2) and not server.is_valkey:
            assert b.reply() == GRANTED


# Users that lose their permission


def join_as_worker(queue: Queue, holder: str) -> Caller:
    caller = queue.caller()
    caller.call("AUTH", "worker", "")
    return queue.join(holder, caller=caller)


# What the user loses, and the rules of ACL SETUSER.
REVOCATIONS = {
    "the command": ("-rl.acquire",),
    "the key": ("resetkeys", "~other"),
    "everything": ("reset", "on", "nopass", "+ping", "+echo"),
}


@pytest.fixture
def queue_with_worker(own_queue: Queue) -> Queue:
    """Creates the user "worker". "a" holds the only lease."""
    own_queue.client.execute_command("ACL", "SETUSER", "worker", "on", "nopass", "~*", "+@all")
    own_queue.acquire("a")
    return own_queue


@pytest.mark.parametrize("rules", REVOCATIONS.values(), ids=REVOCATIONS)
def test_a_user_that_lost_its_permission_is_granted_nothing(
    queue_with_worker: Queue, rules: tuple[str, ...]
) -> None:
    queue = queue_with_worker
    b, c = join_as_worker(queue, "b"), queue.join("c")
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


def test_a_disabled_user_that_waits_is_granted_its_lease(queue_with_worker: Queue) -> None:
    """The server also keeps the existing connections of a disabled user."""
    b = join_as_worker(queue_with_worker, "b")
    queue_with_worker.client.execute_command("ACL", "SETUSER", "worker", "off", "resetpass")
    queue_with_worker.release("a")
    assert b.reply() == GRANTED


def test_a_user_without_permission_is_denied_at_the_deadline(
    queue_with_worker: Queue, clock: Clock
) -> None:
    caller = queue_with_worker.caller()
    caller.call("AUTH", "worker", "")
    b = queue_with_worker.join("b", caller=caller, block="10s")
    queue_with_worker.client.execute_command("ACL", "SETUSER", "worker", "-rl.acquire")
    clock.advance("10s")
    assert b.reply() == [0, 1, 0, 50_000, 50_000]


# WAIT


def test_wait_counts_replicas_that_have_the_granted_lease(pair: Pair, clock: Clock) -> None:
    with Queue(pair.primary) as queue:
        queue.acquire("a")
        b = queue.join("b")
        pair.replica.wait_for_sync()
        os.kill(pair.replica.pid, signal.SIGSTOP)
        try:
            queue.release("a")
            assert b.reply() == GRANTED
            if queue.server.version < (7,) and not queue.server.is_valkey:
                # WAIT uses the replication offset of the connection's last call, which a grant is
                # not.
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


def test_client_unblock_with_io_threads_loses_no_reply(fresh_server: Start) -> None:
    server = fresh_server(io_threads=2, io_threads_do_reads="yes")
    with Queue(server) as queue:
        queue.acquire("a")
        b = queue.join("b")
        can_unblock = server.is_valkey or server.version >= (7, 4)
        assert queue.client.client_unblock(b.id) == can_unblock
        if can_unblock:
            assert b.reply() == DENIED
        else:
            queue.release("a")
            assert b.reply() == GRANTED
