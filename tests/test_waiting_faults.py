"""A failure leaves no waiting call without an answer, and no lease to a caller that is gone.

* A client that closes its connection, is killed (`CLIENT KILL`) or whose user is deleted leaves the
  queue. If it goes in the moment of its grant, a new lease is given back, and a renewed one stays.
* `CLIENT UNBLOCK` answers with the denial that a call without BLOCK would get; with `ERROR`, with
  the server's `UNBLOCKED`.
* While writes are paused (`CLIENT PAUSE`, a manual failover), no call is granted a lease, and
  deadlines end in denials.
* With full memory or a full lease table, the first call of the queue gets that error, and the next
  is tried.
* A load of new data (`DEBUG RELOAD`, a full resync) ends no wait. A shutdown or crash closes the
  connections.
* A clock that is set back takes deadlines with it. After one is set forward, calls that are due are
  answered within a tenth of a second.
- After a restart or a failover, callers wait again in an order that the network decides.
- A caller whose machine dies without closing its connection is noticed only after `tcp-keepalive`.
  A lease that it is granted meanwhile expires after its ttl.
"""

import threading
from collections.abc import Callable

import pytest
from redis import ConnectionError as RedisConnectionError

from support import poll
from support.clock import Clock
from support.server import Server
from support.waiting import DENIED, GRANTED, Caller, Queue, answered, error_of, leases_of
from support.waiting_clients import Start, drain

pytestmark = pytest.mark.every_server


# Clients that disconnect


def close(_: Queue, victim: Caller) -> None:
    victim.hang_up()


def kill(queue: Queue, victim: Caller) -> None:
    assert queue.client.client_kill_filter(_id=victim.id) == 1


DISCONNECTIONS = {"the client closes its connection": close, "the client is killed": kill}
each_disconnection = pytest.mark.parametrize(
    "disconnect", DISCONNECTIONS.values(), ids=DISCONNECTIONS
)


@each_disconnection
@pytest.mark.parametrize("victim_name", ["b", "c", "d"])
def test_a_client_that_disconnects_leaves_the_queue(
    queue: Queue, disconnect: Callable[[Queue, Caller], None], victim_name: str
) -> None:
    queue.acquire("a")
    waiters = {name: queue.join(name) for name in "bcd"}
    disconnect(queue, waiters.pop(victim_name))
    poll.until(lambda: len(queue.waiters()) == 2, "the client has left the queue")
    assert queue.waiters() == [name.encode() for name in waiters]
    assert not any(answered(list(waiters.values())))
    drain(queue, waiters)


@each_disconnection
def test_a_large_call_that_disconnects_makes_way_for_small_ones(
    queue: Queue, disconnect: Callable[[Queue, Caller], None]
) -> None:
    queue.acquire("a", "COST", 5, limit=8)
    big = queue.join("big", "COST", 6, limit=8)
    small = [queue.join(f"small {number}", limit=8) for number in range(4)]
    disconnect(queue, big)
    assert [waiter.reply()[2] for waiter in small[:3]] == [2, 1, 0]
    queue.settle()
    assert not small[3].is_answered


@each_disconnection
def test_after_all_clients_have_disconnected_the_queue_is_empty(
    queue: Queue, clock: Clock, disconnect: Callable[[Queue, Caller], None]
) -> None:
    queue.acquire("a")
    for caller in queue.join_all("b", "c", block="1h"):
        disconnect(queue, caller)
    poll.until(lambda: queue.is_empty, "all have left the queue")
    queue.release("a")
    assert not queue.client.exists("k")
    assert queue.acquire("late") == GRANTED
    # The deadlines of their waits have no effect.
    clock.advance("2h")
    queue.see_clock(clock)
    assert not queue.client.exists("k")


def test_a_client_killed_just_before_its_turn_is_passed_over(queue: Queue) -> None:
    """The server reads both the release and the kill before it serves a caller."""
    queue.acquire("a")
    b, c = queue.join_all("b", "c")
    with queue.client.pipeline(transaction=False) as pipeline:
        pipeline.execute_command("RL.RELEASE", "k", "a")
        pipeline.execute_command("CLIENT", "KILL", "ID", b.id)
        assert pipeline.execute() == [1, 1]
    assert c.reply() == GRANTED
    assert queue.holders() == {b"c": b"1"}


def test_a_user_that_is_deleted_leaves_the_queue(queue: Queue) -> None:
    queue.client.execute_command("ACL", "SETUSER", "worker", "on", "nopass", "~*", "+@all")
    queue.acquire("a")
    worker = queue.caller()
    worker.call("AUTH", "worker", "")
    queue.join("b", caller=worker)
    c = queue.join("c")
    assert queue.client.execute_command("ACL", "DELUSER", "worker") == 1
    poll.until(lambda: queue.waiters() == [b"c"], "the client of the user has left the queue")
    drain(queue, {"c": c})


def test_clients_with_reply_off_are_served_too(queue: Queue) -> None:
    queue.acquire("a")
    caller = queue.caller().send("CLIENT", "REPLY", "SKIP")
    caller.send("RL.ACQUIRE", "k", 1, "60s", "b", "BLOCK", 0).send("PING")
    poll.until(lambda: queue.is_blocked(caller), "the caller waits")
    queue.release("a")
    assert caller.reply() == b"PONG"
    assert queue.holders() == {b"b": b"1"}


def test_closed_older_call_keeps_the_later_call_of_its_holder(queue: Queue) -> None:
    queue.acquire("a")
    (older, c), newer = queue.join_all("b", "c"), queue.caller()
    with queue.server.suspended():
        newer.send("RL.ACQUIRE", "k", 1, "60s", "b", "BLOCK", 0)
        older.hang_up()
    queue.until(lambda: queue.is_blocked(newer), "the newer call waits")
    drain(queue, {"b": newer, "c": c})


# CLIENT UNBLOCK


@pytest.mark.parametrize("victim_name", ["b", "c", "d"])
def test_client_unblock_denies_the_call(queue: Queue, clock: Clock, victim_name: str) -> None:
    queue.acquire("a")
    waiters = {name: queue.join(name) for name in "bcd"}
    clock.advance("10s")
    victim = waiters.pop(victim_name)
    assert queue.client.client_unblock(victim.id) == 1
    assert victim.reply() == [0, 1, 0, 50_000, 50_000]
    assert queue.waiters() == [name.encode() for name in waiters]
    assert queue.client.client_unblock(victim.id) == 0
    drain(queue, waiters)
    # The connection may wait again.
    queue.acquire("a")
    queue.join(victim_name, caller=victim)


@pytest.mark.parametrize("victim_name", ["b", "c", "d"])
def test_client_unblock_error_answers_unblocked(queue: Queue, victim_name: str) -> None:
    queue.acquire("a")
    waiters = {name: queue.join(name) for name in "bcd"}
    victim = waiters.pop(victim_name)
    assert queue.client.client_unblock(victim.id, error=True) == 1
    assert error_of(victim.reply).startswith("UNBLOCKED")
    poll.until(lambda: len(queue.waiters()) == 2, "the client has left the queue")
    drain(queue, waiters)
    queue.acquire("a")
    queue.join(victim_name, caller=victim)


@pytest.mark.parametrize("error", [False, True])
def test_a_large_call_that_is_unblocked_makes_way(queue: Queue, error: bool) -> None:
    queue.acquire("a", "COST", 5, limit=8)
    big = queue.join("big", "COST", 6, limit=8)
    small = queue.join("small", limit=8)
    queue.client.client_unblock(big.id, error=error)
    assert small.reply() == [1, 8, 2, 0, 60_000]
    queue.until(lambda: big.is_answered, "the large call is answered")


def test_an_unblocked_call_is_denied_by_the_leases_of_its_database(
    queue: Queue, clock: Clock
) -> None:
    holder, waiter, other = (queue.caller() for _ in range(3))
    for caller in (holder, waiter, other):
        caller.call("SELECT", 1)
    assert holder.call("RL.ACQUIRE", "k", 1, "60s", "a") == GRANTED
    queue.join("b", caller=waiter)
    queue.join("c", caller=other)
    clock.advance("10s")
    queue.client.client_unblock(waiter.id)
    assert waiter.reply() == [0, 1, 0, 50_000, 50_000]
    kill(queue, other)
    assert holder.call("RL.RELEASE", "k", "a") == 1
    assert holder.call("EXISTS", "k") == 0


def test_a_call_unblocked_behind_others_is_told_to_retry(queue: Queue) -> None:
    queue.acquire("a", "COST", 5, limit=8)
    queue.join("big", "COST", 6, limit=8)
    small = queue.join("small", limit=8)
    queue.client.client_unblock(small.id)
    assert small.reply() == [0, 8, 3, 1, 60_000]


# Paused writes


def test_no_lease_is_granted_while_writes_are_paused_and_deadlines_end(
    queue: Queue, clock: Clock
) -> None:
    queue.acquire("a")
    b, c, d = queue.join("b"), queue.join("c", block="30s"), queue.join("d")
    last = queue.join("last", block="60s")
    before = queue.client.dump("k")
    queue.client.execute_command("CLIENT", "PAUSE", 3_600_000, "WRITE")
    clock.advance("30s")
    assert c.reply() == [0, 1, 0, 30_000, 30_000]
    clock.advance("30s")
    assert last.reply() == [0, 1, 1, 1, 0]
    queue.settle()
    assert answered([b, d]) == [False, False]
    assert queue.client.dump("k") == before
    assert queue.waiters() == [b"b", b"d"]
    queue.client.execute_command("CLIENT", "UNPAUSE")
    assert b.reply() == GRANTED
    queue.settle()
    assert not d.is_answered
    drain(queue, {"d": d}, "b")


def test_a_deadline_while_writes_are_paused_is_a_denial(queue: Queue, clock: Clock) -> None:
    queue.acquire("a")
    b = queue.join("b", block="60s")
    queue.client.execute_command("CLIENT", "PAUSE", 3_600_000, "WRITE")
    clock.advance("60s")
    assert b.reply() == [0, 1, 1, 1, 0]
    queue.client.execute_command("CLIENT", "UNPAUSE")
    assert queue.acquire("c") == GRANTED


def test_a_pause_of_all_clients_answers_waiting_calls_as_a_pause_of_writes(
    queue: Queue, clock: Clock
) -> None:
    queue.acquire("a")
    b, c = queue.join("b"), queue.join("c", block="30s")
    queue.client.execute_command("CLIENT", "PAUSE", 90_000, "ALL")
    clock.advance("30s")
    assert c.reply() == [0, 1, 0, 30_000, 30_000]
    # The pause ends by itself. Until then the server reads no commands.
    clock.advance("61s")
    assert b.reply() == GRANTED


def test_waiting_calls_are_granted_when_a_pause_times_out(queue: Queue, clock: Clock) -> None:
    queue.acquire("a")
    b, c = queue.join("b"), queue.join("c", block="60s")
    queue.client.execute_command("CLIENT", "PAUSE", 90_000, "WRITE")
    clock.advance("60s")
    assert c.reply()[0] == 0
    queue.settle()
    assert not b.is_answered
    clock.advance("60s")
    assert b.reply() == GRANTED


def test_calls_sent_while_writes_were_paused_do_not_overtake(queue: Queue) -> None:
    queue.acquire("a")
    b = queue.join("b")
    queue.client.execute_command("CLIENT", "PAUSE", 3_600_000, "WRITE")
    release, acquire = queue.caller(), queue.caller()
    release.send("RL.RELEASE", "k", "a")
    acquire.send("RL.ACQUIRE", "k", 1, "60s", "late")
    queue.settle()
    assert answered([b, release, acquire]) == [False] * 3
    queue.client.execute_command("CLIENT", "UNPAUSE")
    assert release.reply() == 1
    assert acquire.reply()[0] == 0
    assert b.reply() == GRANTED


def test_a_client_that_disconnects_while_writes_are_paused_is_not_served_later(
    queue: Queue,
) -> None:
    queue.acquire("a")
    b, c, d = queue.join_all("b", "c", "d")
    queue.client.execute_command("CLIENT", "PAUSE", 3_600_000, "WRITE")
    kill(queue, b)
    assert queue.client.client_unblock(d.id) == 1
    assert d.reply() == DENIED
    queue.client.execute_command("CLIENT", "UNPAUSE")
    drain(queue, {"c": c})


# Shutdown, and reloaded data


def has_shut_down_cleanly(server: Server) -> bool:
    log = server.log()
    return "ready to exit, bye bye" in log and "BUG REPORT" not in log


def test_server_with_waiting_calls_shuts_down(fresh_server: Start) -> None:
    server = fresh_server()
    with Queue(server) as queue:
        queue.acquire("a")
        waiters = queue.join_all("b", "c")
        waiters.append(queue.join("d", block="1h"))
        server.stop("nosave")
        for waiter in waiters:
            with pytest.raises(RedisConnectionError):
                waiter.reply()
    assert has_shut_down_cleanly(server)


def test_a_server_that_waits_for_a_replica_at_shutdown_grants_nothing(
    fresh_server: Start, clock: Clock
) -> None:
    primary = fresh_server()
    if primary.version < (7,):
        pytest.skip("Redis 6.2 does not wait for replicas at shutdown")
    replica = primary.replica()
    with Queue(primary) as queue:
        queue.client.config_set("shutdown-timeout", 3600)
        queue.acquire("a")
        b, c = queue.join("b"), queue.join("c", block="30s")
        shutdown = threading.Thread(target=primary.stop)
        with replica.suspended():
            # A write that the replica has not received.
            queue.client.set("last", "words")
            shutdown.start()
            queue.until(lambda: "Waiting for replicas" in primary.log(), "the shutdown has begun")
            clock.advance("60s")
            assert c.reply()[0] == 0
            assert not b.is_answered
        shutdown.join()
        with pytest.raises(RedisConnectionError):
            b.reply()
    assert has_shut_down_cleanly(primary)
    with replica.client() as client:
        assert client.get("last") == b"words"
        # The lease of "a" has expired, and "b" has none.
        assert list(leases_of(client)) == []


@pytest.mark.parametrize("subcommand", ["RELOAD", "LOADAOF"])
def test_calls_go_on_waiting_while_data_is_reloaded(fresh_server: Start, subcommand: str) -> None:
    with Queue(fresh_server(appendonly="yes")) as queue:
        queue.acquire("a")
        waiters = {name: queue.join(name) for name in "bc"}
        queue.client.execute_command("DEBUG", subcommand)
        queue.settle()
        assert not any(answered(list(waiters.values())))
        assert queue.waiters() == [b"b", b"c"]
        drain(queue, waiters)


def test_calls_waiting_for_a_key_missing_in_the_loaded_data_are_served(own_queue: Queue) -> None:
    queue = own_queue
    queue.client.save()
    queue.acquire("a")
    b, c = queue.join_all("b", "c")
    queue.client.execute_command("DEBUG", "RELOAD", "NOSAVE")
    assert b.reply() == GRANTED
    drain(queue, {"c": c}, "b")
