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


def hangs_up(_: Queue, victim: Caller) -> None:
    victim.hang_up()


def is_killed(queue: Queue, victim: Caller) -> None:
    assert queue.client.client_kill_filter(_id=victim.id) == 1


WAYS = {"its connection is closed": hangs_up, "it is killed": is_killed}
goes = pytest.mark.parametrize("goes", WAYS.values(), ids=WAYS)


@goes
@pytest.mark.parametrize("place", ["b", "c", "d"])
def test_a_client_that_disconnects_leaves_the_queue(
    queue: Queue, goes: Callable[[Queue, Caller], None], place: str
) -> None:
    queue.acquire("a")
    waiters = {name: queue.join(name) for name in "bcd"}
    goes(queue, waiters.pop(place))
    poll.until(lambda: len(queue.waiting()) == 2, "it has left the queue")
    assert queue.waiting() == [name.encode() for name in waiters]
    assert not any(answered(list(waiters.values())))
    drain(queue, waiters)


@goes
def test_a_large_call_that_disconnects_makes_way_for_small_ones(
    queue: Queue, goes: Callable[[Queue, Caller], None]
) -> None:
    queue.acquire("a", "COST", 5, limit=8)
    big = queue.join("big", "COST", 6, limit=8)
    small = [queue.join(f"small {number}", limit=8) for number in range(4)]
    goes(queue, big)
    assert [waiter.reply()[2] for waiter in small[:3]] == [2, 1, 0]
    queue.settle()
    assert not small[3].is_answered


@goes
def test_after_all_clients_have_disconnected_the_queue_is_empty(
    queue: Queue, clock: Clock, goes: Callable[[Queue, Caller], None]
) -> None:
    queue.acquire("a")
    for caller in queue.join_all("b", "c", block="1h"):
        goes(queue, caller)
    poll.until(lambda: queue.is_empty, "all have gone")
    queue.release("a")
    assert not queue.client.exists("k")
    assert queue.acquire("late") == GRANTED
    # Their former waits leave nothing to do later.
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
    queue.join("b", by=worker)
    c = queue.join("c")
    assert queue.client.execute_command("ACL", "DELUSER", "worker") == 1
    poll.until(lambda: queue.waiting() == [b"c"], "it has left the queue")
    drain(queue, {"c": c})


def test_clients_with_reply_off_are_served_too(queue: Queue) -> None:
    queue.acquire("a")
    caller = queue.caller().send("CLIENT", "REPLY", "SKIP")
    caller.send("RL.ACQUIRE", "k", 1, "60s", "b", "BLOCK", 0).send("PING")
    poll.until(lambda: queue.is_blocked(caller), "it waits")
    queue.release("a")
    assert caller.reply() == b"PONG"
    assert queue.holders() == {b"b": b"1"}


def test_closed_older_call_keeps_the_later_call_of_its_holder(queue: Queue) -> None:
    queue.acquire("a")
    (older, c), again = queue.join_all("b", "c"), queue.caller()
    with queue.server.suspended():
        again.send("RL.ACQUIRE", "k", 1, "60s", "b", "BLOCK", 0)
        older.hang_up()
    queue.until(lambda: queue.is_blocked(again), "the later one waits")
    drain(queue, {"b": again, "c": c})


# CLIENT UNBLOCK


@pytest.mark.parametrize("place", ["b", "c", "d"])
def test_client_unblock_denies_the_call(queue: Queue, clock: Clock, place: str) -> None:
    queue.acquire("a")
    waiters = {name: queue.join(name) for name in "bcd"}
    clock.advance("10s")
    victim = waiters.pop(place)
    assert queue.client.client_unblock(victim.id) == 1
    assert victim.reply() == [0, 1, 0, 50_000, 50_000]
    assert queue.waiting() == [name.encode() for name in waiters]
    assert queue.client.client_unblock(victim.id) == 0
    drain(queue, waiters)
    # The connection may wait again.
    queue.acquire("a")
    queue.join(place, by=victim)


@pytest.mark.parametrize("place", ["b", "c", "d"])
def test_client_unblock_error_answers_unblocked(queue: Queue, place: str) -> None:
    queue.acquire("a")
    waiters = {name: queue.join(name) for name in "bcd"}
    victim = waiters.pop(place)
    assert queue.client.client_unblock(victim.id, error=True) == 1
    assert error_of(victim.reply).startswith("UNBLOCKED")
    poll.until(lambda: len(queue.waiting()) == 2, "it has left the queue")
    drain(queue, waiters)
    queue.acquire("a")
    queue.join(place, by=victim)


@pytest.mark.parametrize("error", [False, True])
def test_a_large_call_that_is_unblocked_makes_way(queue: Queue, error: bool) -> None:
    queue.acquire("a", "COST", 5, limit=8)
    big = queue.join("big", "COST", 6, limit=8)
    small = queue.join("small", limit=8)
    queue.client.client_unblock(big.id, error=error)
    assert small.reply() == [1, 8, 2, 0, 60_000]
    queue.until(lambda: big.is_answered, "it is answered")


def test_an_unblocked_call_is_denied_by_the_leases_of_its_database(
    queue: Queue, clock: Clock
) -> None:
    holder, waiter, other = (queue.caller() for _ in range(3))
    for caller in (holder, waiter, other):
        caller.call("SELECT", 1)
    assert holder.call("RL.ACQUIRE", "k", 1, "60s", "a") == GRANTED
    queue.join("b", by=waiter)
    queue.join("c", by=other)
    clock.advance("10s")
    queue.client.client_unblock(waiter.id)
    assert waiter.reply() == [0, 1, 0, 50_000, 50_000]
    is_killed(queue, other)
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
    assert queue.waiting() == [b"b", b"d"]
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
    # It ends by itself: the server reads no commands until then.
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
    is_killed(queue, b)
    assert queue.client.client_unblock(d.id) == 1
    assert d.reply() == DENIED
    queue.client.execute_command("CLIENT", "UNPAUSE")
    drain(queue, {"c": c})


# Shutdown, and reloaded data


def ended_well(server: Server) -> bool:
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
    assert ended_well(server)


def test_a_server_that_waits_for_a_replica_at_shutdown_grants_nothing(
    fresh_server: Start, clock: Clock
) -> None:
    primary = fresh_server()
    if primary.version < (7,):
        pytest.skip("Redis 6.2 does not wait for replicas as it ends")
    replica = primary.replica()
    with Queue(primary) as queue:
        queue.client.config_set("shutdown-timeout", 3600)
        queue.acquire("a")
        b, c = queue.join("b"), queue.join("c", block="30s")
        ending = threading.Thread(target=primary.stop)
        with replica.suspended():
            # A write that the replica has not received.
            queue.client.set("last", "words")
            ending.start()
            queue.until(lambda: "Waiting for replicas" in primary.log(), "it is about to end")
            clock.advance("60s")
            assert c.reply()[0] == 0
            assert not b.is_answered
        ending.join()
        with pytest.raises(RedisConnectionError):
            b.reply()
    assert ended_well(primary)
    with replica.client() as client:
        assert client.get("last") == b"words"
        # The lease of "a" has expired, and "b" has none.
        assert list(leases_of(client)) == []


@pytest.mark.parametrize("loading", ["RELOAD", "LOADAOF"])
def test_calls_go_on_waiting_while_data_is_reloaded(fresh_server: Start, loading: str) -> None:
    with Queue(fresh_server(appendonly="yes")) as queue:
        queue.acquire("a")
        waiters = {name: queue.join(name) for name in "bc"}
        queue.client.execute_command("DEBUG", loading)
        queue.settle()
        assert not any(answered(list(waiters.values())))
        assert queue.waiting() == [b"b", b"c"]
        drain(queue, waiters)


def test_calls_waiting_for_a_key_missing_in_the_loaded_data_are_served(own_queue: Queue) -> None:
    queue = own_queue
    queue.client.save()
    queue.acquire("a")
    b, c = queue.join_all("b", "c")
    queue.client.execute_command("DEBUG", "RELOAD", "NOSAVE")
    assert b.reply() == GRANTED
    drain(queue, {"c": c}, "b")
