"""A failure leaves no waiting call without an answer, and no lease to a caller that is gone.

* A client that closes its connection, is killed (`CLIENT KILL`) or whose user is deleted leaves the
  queue. If the client goes in the moment of its grant, the module gives the lease back, unless the
  holder had one before.
* `CLIENT UNBLOCK` answers with the denial that a call without BLOCK would get; with `ERROR`, with
  the server's `UNBLOCKED`.
* While writes are paused (`CLIENT PAUSE`, a manual failover), no call is granted a lease, and
  deadlines end in denials.
* With full memory or a full lease table, the first call of the queue gets that error, and the next
  call is tried.
* A load of new data (`DEBUG RELOAD`, a full resync) ends no wait. A shutdown or crash closes the
  connections.
* A clock that is set back takes deadlines with it. After a clock is set forward, calls that are
  then due are answered within a tenth of a second.
* A defect of the module is `ERR internal error in module ratelimit` for one call alone.
- After a restart or a failover, callers wait again in an order that the network decides.
- A caller whose machine dies without closing its connection is noticed only after `tcp-keepalive`.
  A lease that it is granted meanwhile expires after its ttl.
"""

import random
import selectors
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import Connection
from redis import ConnectionError as RedisConnectionError

from support import modules, poll
from support.clock import Clock
from support.scale import first_on_every_server, scaled
from support.server import Server
from support.waiting import DENIED, GRANTED, Caller, Queue, answered, error_of, leases_of, told_of
from support.workload import Word, state

pytestmark = pytest.mark.every_server

Start = Callable[..., Server]


def drain(queue: Queue, waiters: dict[str, Caller], holder: str = "a") -> None:
    """Each is served when the one before releases, and the last leaves no key."""
    for name, waiter in waiters.items():
        assert queue.release(holder) == 1
        assert waiter.reply() == GRANTED
        holder = name
    assert queue.release(holder) == 1
    queue.settle()
    assert queue.is_empty
    assert not queue.client.exists("k")


# Clients that go away


def hangs_up(_: Queue, victim: Caller) -> None:
    victim.hang_up()


def is_killed(queue: Queue, victim: Caller) -> None:
    assert queue.client.client_kill_filter(_id=victim.id) == 1


WAYS = {"its connection is closed": hangs_up, "it is killed": is_killed}
goes = pytest.mark.parametrize("goes", WAYS.values(), ids=WAYS)


@goes
@pytest.mark.parametrize("place", ["b", "c", "d"])
def test_who_goes_away_leaves_the_queue(
    queue: Queue, goes: Callable[[Queue, Caller], None], place: str
) -> None:
    queue.acquire("a")
    waiters = {name: queue.joins(name) for name in "bcd"}
    goes(queue, waiters.pop(place))
    poll.until(lambda: len(queue.waiting()) == 2, "it has left the queue")
    assert queue.waiting() == [name.encode() for name in waiters]
    assert not any(answered(list(waiters.values())))
    drain(queue, waiters)


@goes
def test_a_big_one_that_goes_away_makes_way_for_small_ones(
    queue: Queue, goes: Callable[[Queue, Caller], None]
) -> None:
    queue.acquire("a", "COST", 5, limit=8)
    big = queue.joins("big", "COST", 6, limit=8)
    small = [queue.joins(f"small {number}", limit=8) for number in range(4)]
    goes(queue, big)
    assert [one.reply()[2] for one in small[:3]] == [2, 1, 0]
    queue.settle()
    assert not small[3].is_answered


@goes
def test_once_all_have_gone_nobody_is_waited_for(
    queue: Queue, clock: Clock, goes: Callable[[Queue, Caller], None]
) -> None:
    queue.acquire("a")
    for caller in queue.join("b", "c", block="1h"):
        goes(queue, caller)
    poll.until(lambda: queue.is_empty, "all have gone")
    queue.release("a")
    assert not queue.client.exists("k")
    assert queue.acquire("late") == GRANTED
    # Nothing that they left behind becomes due.
    clock.advance("2h")
    queue.see_clock(clock)
    assert not queue.client.exists("k")


def test_who_is_killed_just_before_its_turn_is_passed_over(queue: Queue) -> None:
    """The release and its end are read before anybody is served."""
    queue.acquire("a")
    b, c = queue.join("b", "c")
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
    queue.joins("b", by=worker)
    c = queue.joins("c")
    assert queue.client.execute_command("ACL", "DELUSER", "worker") == 1
    poll.until(lambda: queue.waiting() == [b"c"], "it has left the queue")
    drain(queue, {"c": c})


def test_who_wants_no_reply_is_served_as_well(queue: Queue) -> None:
    queue.acquire("a")
    caller = queue.caller().send("CLIENT", "REPLY", "SKIP")
    caller.send("RL.ACQUIRE", "k", 1, "60s", "b", "BLOCK", 0).send("PING")
    poll.until(lambda: queue.is_blocked(caller), "it waits")
    queue.release("a")
    assert caller.reply() == b"PONG"
    assert queue.holders() == {b"b": b"1"}


def test_an_older_call_that_is_closed_leaves_its_holders_later_one(queue: Queue) -> None:
    queue.acquire("a")
    (older, c), again = queue.join("b", "c"), queue.caller()
    with queue.server.stopped():
        again.send("RL.ACQUIRE", "k", 1, "60s", "b", "BLOCK", 0)
        older.hang_up()
    queue.until(lambda: queue.is_blocked(again), "the later one waits")
    drain(queue, {"b": again, "c": c})


# CLIENT UNBLOCK


@pytest.mark.parametrize("place", ["b", "c", "d"])
def test_who_is_unblocked_is_denied(queue: Queue, clock: Clock, place: str) -> None:
    queue.acquire("a")
    waiters = {name: queue.joins(name) for name in "bcd"}
    clock.advance("10s")
    victim = waiters.pop(place)
    assert queue.client.client_unblock(victim.id) == 1
    assert victim.reply() == [0, 1, 0, 50_000, 50_000]
    assert queue.waiting() == [name.encode() for name in waiters]
    assert queue.client.client_unblock(victim.id) == 0
    drain(queue, waiters)
    # It may wait again.
    queue.acquire("a")
    queue.joins(place, by=victim)


@pytest.mark.parametrize("place", ["b", "c", "d"])
def test_who_is_unblocked_with_an_error_is_told_so(queue: Queue, place: str) -> None:
    queue.acquire("a")
    waiters = {name: queue.joins(name) for name in "bcd"}
    victim = waiters.pop(place)
    assert queue.client.client_unblock(victim.id, error=True) == 1
    assert error_of(victim.reply).startswith("UNBLOCKED")
    poll.until(lambda: len(queue.waiting()) == 2, "it has left the queue")
    drain(queue, waiters)
    queue.acquire("a")
    queue.joins(place, by=victim)


@pytest.mark.parametrize("error", [False, True])
def test_a_big_one_that_is_unblocked_makes_way(queue: Queue, error: bool) -> None:
    queue.acquire("a", "COST", 5, limit=8)
    big = queue.joins("big", "COST", 6, limit=8)
    small = queue.joins("small", limit=8)
    queue.client.client_unblock(big.id, error=error)
    assert small.reply() == [1, 8, 2, 0, 60_000]
    queue.until(lambda: big.is_answered, "it is answered")


def test_in_another_database_who_is_unblocked_is_denied_by_what_is_held_there(
    queue: Queue, clock: Clock
) -> None:
    holder, waiter, other = (queue.caller() for _ in range(3))
    for caller in (holder, waiter, other):
        caller.call("SELECT", 1)
    assert holder.call("RL.ACQUIRE", "k", 1, "60s", "a") == GRANTED
    queue.joins("b", by=waiter)
    queue.joins("c", by=other)
    clock.advance("10s")
    queue.client.client_unblock(waiter.id)
    assert waiter.reply() == [0, 1, 0, 50_000, 50_000]
    is_killed(queue, other)
    assert holder.call("RL.RELEASE", "k", "a") == 1
    assert holder.call("EXISTS", "k") == 0


def test_behind_others_who_is_unblocked_is_told_to_come_again(queue: Queue) -> None:
    queue.acquire("a", "COST", 5, limit=8)
    queue.joins("big", "COST", 6, limit=8)
    small = queue.joins("small", limit=8)
    queue.client.client_unblock(small.id)
    assert small.reply() == [0, 8, 3, 1, 60_000]


# Writes that are paused


def test_while_writes_are_paused_nobody_is_granted_and_deadlines_end(
    queue: Queue, clock: Clock
) -> None:
    queue.acquire("a")
    b, c, d = queue.joins("b"), queue.joins("c", block="30s"), queue.joins("d")
    last = queue.joins("last", block="60s")
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


def test_while_writes_are_paused_a_deadline_is_a_denial_though_there_is_room(
    queue: Queue, clock: Clock
) -> None:
    queue.acquire("a")
    b = queue.joins("b", block="60s")
    queue.client.execute_command("CLIENT", "PAUSE", 3_600_000, "WRITE")
    clock.advance("60s")
    assert b.reply() == [0, 1, 1, 1, 0]
    queue.client.execute_command("CLIENT", "UNPAUSE")
    assert queue.acquire("c") == GRANTED


def test_while_all_clients_are_paused_who_waits_is_answered_as_when_writes_are(
    queue: Queue, clock: Clock
) -> None:
    queue.acquire("a")
    b, c = queue.joins("b"), queue.joins("c", block="30s")
    queue.client.execute_command("CLIENT", "PAUSE", 90_000, "ALL")
    clock.advance("30s")
    assert c.reply() == [0, 1, 0, 30_000, 30_000]
    # It ends by itself: nothing that is sent is read until then.
    clock.advance("61s")
    assert b.reply() == GRANTED


def test_a_pause_that_ends_by_itself_lets_who_waits_in(queue: Queue, clock: Clock) -> None:
    queue.acquire("a")
    b, c = queue.joins("b"), queue.joins("c", block="60s")
    queue.client.execute_command("CLIENT", "PAUSE", 90_000, "WRITE")
    clock.advance("60s")
    assert c.reply()[0] == 0
    queue.settle()
    assert not b.is_answered
    clock.advance("60s")
    assert b.reply() == GRANTED


def test_what_was_sent_while_writes_were_paused_does_not_overtake(queue: Queue) -> None:
    queue.acquire("a")
    b = queue.joins("b")
    queue.client.execute_command("CLIENT", "PAUSE", 3_600_000, "WRITE")
    release, late = queue.caller(), queue.caller()
    release.send("RL.RELEASE", "k", "a")
    late.send("RL.ACQUIRE", "k", 1, "60s", "late")
    queue.settle()
    assert answered([b, release, late]) == [False] * 3
    queue.client.execute_command("CLIENT", "UNPAUSE")
    assert release.reply() == 1
    assert late.reply()[0] == 0
    assert b.reply() == GRANTED


def test_who_goes_away_while_writes_are_paused_is_not_served_later(queue: Queue) -> None:
    queue.acquire("a")
    b, c, d = queue.join("b", "c", "d")
    queue.client.execute_command("CLIENT", "PAUSE", 3_600_000, "WRITE")
    is_killed(queue, b)
    assert queue.client.client_unblock(d.id) == 1
    assert d.reply() == DENIED
    queue.client.execute_command("CLIENT", "UNPAUSE")
    drain(queue, {"c": c})


# The end of the server, and its data anew


def ended_well(server: Server) -> bool:
    log = server.log()
    return "ready to exit, bye bye" in log and "BUG REPORT" not in log


def test_a_server_with_callers_that_wait_shuts_down(fresh_server: Start) -> None:
    server = fresh_server()
    with Queue(server) as queue:
        queue.acquire("a")
        waiters = queue.join("b", "c")
        waiters.append(queue.joins("d", block="1h"))
        server.stop("nosave")
        for waiter in waiters:
            with pytest.raises(RedisConnectionError):
                waiter.reply()
    assert ended_well(server)


def test_a_server_that_waits_for_a_replica_before_it_ends_grants_nothing(
    fresh_server: Start, clock: Clock
) -> None:
    primary = fresh_server()
    if primary.version < (7,):
        pytest.skip("Redis 6.2 does not wait for replicas as it ends")
    replica = primary.replica()
    with Queue(primary) as queue:
        queue.client.config_set("shutdown-timeout", 3600)
        queue.acquire("a")
        b, c = queue.joins("b"), queue.joins("c", block="30s")
        ending = threading.Thread(target=primary.stop)
        with replica.stopped():
            # Which the replica has not got.
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
        assert list(leases_of(client)) == [b"a"]


@pytest.mark.parametrize("loading", ["RELOAD", "LOADAOF"])
def test_who_waits_while_the_data_is_loaded_anew_goes_on(fresh_server: Start, loading: str) -> None:
    with Queue(fresh_server(appendonly="yes")) as queue:
        queue.acquire("a")
        waiters = {name: queue.joins(name) for name in "bc"}
        queue.client.execute_command("DEBUG", loading)
        queue.settle()
        assert not any(answered(list(waiters.values())))
        assert queue.waiting() == [b"b", b"c"]
        drain(queue, waiters)


def test_who_waits_for_a_key_that_is_not_in_what_is_loaded_is_served(own_queue: Queue) -> None:
    queue = own_queue
    queue.client.save()
    queue.acquire("a")
    b, c = queue.join("b", "c")
    queue.client.execute_command("DEBUG", "RELOAD", "NOSAVE")
    assert b.reply() == GRANTED
    drain(queue, {"c": c}, "b")


# Another module, which hears of a grant at once


@pytest.fixture(scope="module")
def neighbour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return modules.build("neighbour", tmp_path_factory.mktemp("neighbour"))


@pytest.fixture
def watched(neighbour: Path, fresh_server: Start) -> Iterator[Queue]:
    """Of a server with another module, which does something when it hears of an event."""
    with Queue(fresh_server(others=[neighbour])) as queue:
        queue.acquire("a")
        yield queue
        queue.server.check()


def on(queue: Queue, event: str, *order: Word) -> None:
    queue.client.execute_command("NEIGHBOUR.ON", event, "k", *order)


def test_a_lease_that_is_granted_to_who_is_killed_meanwhile_is_given_back(watched: Queue) -> None:
    b, c = watched.join("b", "c")
    on(watched, "rl.take", "CLIENT", "KILL", "ID", b.id)
    watched.release("a")
    assert c.reply() == GRANTED
    with pytest.raises(RedisConnectionError):
        b.reply()
    assert watched.holders() == {b"c": b"1"}


def test_the_last_lease_that_is_granted_to_nobody_leaves_no_key(watched: Queue) -> None:
    b = watched.joins("b")
    on(watched, "rl.take", "CLIENT", "KILL", "ID", b.id)
    watched.release("a")
    poll.until(lambda: watched.is_empty and not watched.client.exists("k"), "it is given back")


def test_a_lease_that_its_holder_had_before_is_not_taken_away(watched: Queue) -> None:
    """It has waited for more, and was killed as it got it: others may hold by its name."""
    watched.acquire("a", "COST", 5, limit=8)
    watched.acquire("b", limit=8)
    more = watched.joins("b", "COST", 6, limit=8)
    on(watched, "rl.take", "CLIENT", "KILL", "ID", more.id)
    watched.release("a")
    poll.until(lambda: watched.is_empty, "it has gone")
    watched.settle()
    assert b"b" in watched.holders()


@pytest.mark.parametrize(
    "order", ["DEL k", "FLUSHALL", "RL.RELEASE k b", "RENAME k j", "PEXPIRE k -1"]
)
def test_who_takes_a_lease_away_as_it_is_granted_makes_room_for_the_next(
    watched: Queue, order: str
) -> None:
    b, c = watched.join("b", "c")
    on(watched, "rl.take", *order.split())
    watched.release("a")
    assert b.reply() == GRANTED
    assert c.reply() == GRANTED
    assert watched.holders() == {b"c": b"1"}


def test_who_puts_something_else_there_as_a_lease_is_granted_harms_nobody(watched: Queue) -> None:
    b, c = watched.join("b", "c")
    on(watched, "rl.take", "SET", "k", "mine")
    watched.release("a")
    assert b.reply() == GRANTED
    assert "WRONGTYPE" in error_of(c.reply)
    assert watched.client.get("k") == b"mine"


@pytest.mark.parametrize("event", ["del", "rl.take"])
def test_a_module_does_not_overtake_as_it_hears_of_an_event(watched: Queue, event: str) -> None:
    b, c = watched.join("b", "c")
    on(watched, event, "RL.ACQUIRE", "k", 1, "60s", "late")
    watched.release("a")
    assert b.reply() == GRANTED
    assert watched.holders() == {b"b": b"1"}
    watched.release("b")
    assert c.reply() == GRANTED


def test_another_who_waits_may_be_killed_as_a_lease_is_granted(watched: Queue) -> None:
    waiters = {name: watched.joins(name) for name in "bcd"}
    on(watched, "rl.take", "CLIENT", "KILL", "ID", waiters.pop("c").id)
    drain(watched, waiters)


@pytest.mark.parametrize("name", ["b", "c"])
@pytest.mark.parametrize("error", [(), ("ERROR",)], ids=["TIMEOUT", "ERROR"])
def test_who_waits_may_be_unblocked_as_a_lease_is_granted(
    watched: Queue, name: str, error: tuple[Word, ...]
) -> None:
    waiters = {name: watched.joins(name) for name in "bcd"}
    on(watched, "rl.take", "CLIENT", "UNBLOCK", waiters[name].id, *error)
    watched.release("a")
    first = waiters.pop("b")
    if name == "b":
        # It is told of no lease, and has none: what it was granted is given back.
        poll.until(lambda: first.is_answered, "it is answered")
        if error:
            assert error_of(first.reply).startswith("UNBLOCKED")
        else:
            assert first.reply()[0] == 0
        assert waiters.pop("c").reply() == GRANTED
        drain(watched, waiters, "c")
    else:
        assert first.reply() == GRANTED
        victim = waiters.pop("c")
        poll.until(lambda: victim.is_answered, "it is answered")
        drain(watched, waiters, "b")
    assert first.call("PING") == b"PONG"


def test_a_replica_has_what_became_of_it_all(neighbour: Path, fresh_server: Start) -> None:
    primary = fresh_server(others=[neighbour])
    if primary.version < (7,):
        pytest.skip("Redis 6.2 propagates what a neighbour does before what the call has done")
    replica = primary.replica()
    for order in ("DEL k", "SET k mine", "RL.RELEASE k b", "RL.BAN k 1m", "CLIENT KILL ID {b}"):
        with Queue(primary) as queue:
            queue.client.flushall()
            queue.acquire("a")
            b, c = queue.join("b", "c")
            on(queue, "rl.take", *order.format(b=b.id).split())
            queue.release("a")
            poll.until(lambda b=b: b.is_answered, "it is answered, or gone")
            queue.settle()
            queue.client.execute_command("NEIGHBOUR.ON", "nothing", "at all", "PING")
            replica.wait_for_sync()
            with replica.client() as client:
                assert state(client) == state(queue.client), order
            queue.client.delete("k")
            if not c.is_answered:
                assert c.reply() == GRANTED


# The clock


def test_a_clock_that_is_set_back_takes_deadlines_back_with_it(queue: Queue, clock: Clock) -> None:
    queue.acquire("a")
    queue.joins("b")
    c, d = queue.joins("c", block="30s"), queue.joins("d", block="20s")
    clock.advance("10s")
    queue.see_clock(clock)
    clock.advance("-1h")
    queue.see_clock(clock)
    assert answered([c, d]) == [False, False]
    # Ten seconds of their times are over.
    due = {"5s": queue.joins("late", block="5s"), "5000ms": d, "10s": c}
    for after in list(due):
        clock.advance(after)
        assert due.pop(after).reply()[:3] == [0, 1, 0]
        queue.settle()
        assert not any(answered(list(due.values())))


def test_a_lease_lapses_after_the_clock_was_set_back_though_nobody_calls(
    queue: Queue, clock: Clock
) -> None:
    queue.acquire("a")
    b = queue.joins("b")
    clock.advance("10s")
    queue.see_clock(clock)
    clock.advance("-1h")
    queue.see_clock(clock)
    clock.advance("59s")
    queue.see_clock(clock)
    assert not b.is_answered
    clock.advance("1s")
    assert b.reply() == GRANTED


def test_a_clock_that_is_set_on_answers_what_is_due(queue: Queue, clock: Clock) -> None:
    queue.acquire("a", ttl="2h")
    b, c = queue.joins("b", block="30m"), queue.joins("c", block="90m")
    clock.advance("1h")
    assert b.reply() == [0, 1, 0, 3_600_000, 3_600_000]
    queue.settle()
    assert not c.is_answered
    clock.advance("1h")
    assert c.reply()[0] == 1


def test_a_clock_set_back_while_nobody_waits_is_no_matter_to_who_comes_then(
    queue: Queue, clock: Clock
) -> None:
    queue.acquire("a")
    queue.joins("b", block="30s")
    clock.advance("30s")
    poll.until(lambda: queue.is_empty, "nobody waits")
    clock.advance("-1h")
    late = queue.joins("late", block="30s")
    clock.advance("29s")
    queue.see_clock(clock)
    assert not late.is_answered
    clock.advance("1s")
    assert late.reply()[0] == 0


def test_a_clock_that_is_set_back_while_writes_are_paused_keeps_nobody_waiting(
    queue: Queue, clock: Clock
) -> None:
    queue.acquire("a")
    b = queue.joins("b")
    queue.joins("c", block="1h")
    clock.advance("10s")
    queue.see_clock(clock)
    queue.client.execute_command("CLIENT", "PAUSE", 3_600_000, "WRITE")
    clock.advance("-1h")
    queue.until(lambda: told_of(queue.client)[b"queue"][1][3] < 3_600_000, "deadlines move back")
    queue.client.execute_command("CLIENT", "UNPAUSE")
    queue.see_clock(clock)
    # The lease lasts from when that could be written, for as long as it may last at most.
    clock.advance("60s")
    assert b.reply() == GRANTED


def test_a_clock_that_goes_to_and_fro_forgives_nobody_and_keeps_nobody(
    queue: Queue, clock: Clock
) -> None:
    chosen = random.Random(17)
    queue.acquire("a")
    waiters = queue.join(*(f"holder {number}" for number in range(8)))
    for number, waiter in enumerate(waiters):
        for _ in range(3):
            clock.advance(f"{chosen.choice([-3600, -60, -1, 1, 20])}s")
            queue.see_clock(clock)
            assert len(queue.holders()) <= 1
        if not waiter.is_answered:
            clock.advance("61s")
        assert waiter.reply()[:2] == [1, 1], number


# Memory


def test_a_grant_for_which_there_is_no_memory_is_an_error(own_queue: Queue) -> None:
    queue = own_queue
    queue.acquire("a")
    b, c = queue.join("b", "c")
    queue.client.config_set("maxmemory", 1)
    queue.release("a")
    for waiter in (b, c):
        assert error_of(waiter.reply).startswith(("OOM", "command not allowed when used memory"))
    queue.client.config_set("maxmemory", 0)
    assert not queue.client.exists("k")
    assert queue.acquire("d") == GRANTED


def quiet_memory(queue: Queue) -> int:
    """Without the buffers of a connection used for much."""
    queue.client.connection_pool.disconnect()
    queue.client.info("memory")
    return queue.client.info("memory")["used_memory"]


CLIENTS = 1000


@pytest.mark.timeout(scaled(180, 900))
def test_after_many_have_joined_and_gone_memory_is_where_it_was(own_queue: Queue) -> None:
    queue = own_queue
    queue.acquire("a")

    def join_and_go() -> None:
        with Crowd(queue, CLIENTS) as crowd:
            for number in range(CLIENTS):
                crowd.send(number, "RL.ACQUIRE", "k", 1, "60s", f"h{number}", "BLOCK", "1h")
            poll.until(lambda: queue.blocked == CLIENTS, "all wait", timeout=60)
            with queue.client.pipeline(transaction=False) as pipeline:
                for number in range(0, CLIENTS, 2):
                    pipeline.execute_command("CLIENT", "KILL", "ID", crowd.ids[number])
                assert set(pipeline.execute()) == {1}
        poll.until(lambda: queue.is_empty, "all have gone", timeout=60)
        poll.until(
            lambda: queue.client.info("clients")["connected_clients"] <= 2,
            "the server has closed their connections",
            timeout=60,
        )

    # What the server makes itself for so many, once.
    join_and_go()
    before = quiet_memory(queue)
    join_and_go()
    # Less than if each had left a word behind.
    poll.until(lambda: quiet_memory(queue) < before + 8 * CLIENTS, "the memory is free again", 60)


# A thousand of them


class Crowd:
    """This many connections at once, from `with` to its end."""

    def __init__(self, queue: Queue, size: int) -> None:
        self.queue, self.size = queue, size
        self._client = queue.server.client()
        self._opened = ExitStack()
        self.connections: list[Connection] = []
        self.ids: list[int] = []

    def __enter__(self) -> "Crowd":
        pool = self._client.connection_pool
        pool.max_connections = self.size
        self._opened.callback(self._client.close)
        self._opened.callback(pool.disconnect)
        for _ in range(self.size):
            connection = pool.get_connection()
            connection.send_command("CLIENT", "ID")
            self.connections.append(connection)
            self.ids.append(connection.read_response())
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def send(self, number: int, *words: Word) -> None:
        self.connections[number].send_command(*words)

    def reply(self, number: int) -> object:
        return self.connections[number].read_response()

    def join_in_order(self, *options: Word, limit: int, block: str = "0") -> None:
        """Holders by their numbers. One waits before the next one calls."""
        for number in range(self.size):
            words = ("RL.ACQUIRE", "k", limit, "60s", f"h{number}", *options, "BLOCK", block)
            self.send(number, *words)
            self.queue.until(
                lambda number=number: self.queue.blocked > number, "the next one waits"
            )


@pytest.fixture
def crowd(queue: Queue) -> Iterator[Crowd]:
    with Crowd(queue, CLIENTS) as crowd:
        yield crowd


# More than the module serves in one go, too.
@pytest.mark.timeout(scaled(180, 600))
@pytest.mark.parametrize("size", first_on_every_server([5 * CLIENTS // 2, CLIENTS]))
def test_many_are_served_in_the_order_in_which_they_came(queue: Queue, size: int) -> None:
    queue.acquire("a", "COST", size, limit=size)
    with Crowd(queue, size) as crowd:
        crowd.join_in_order(limit=size)
        assert queue.told()["blocked_clients"] == size
        queue.release("a")
        left = [crowd.reply(number)[2] for number in range(size)]
    assert left == list(range(size - 1, -1, -1))
    assert queue.is_empty


@pytest.mark.timeout(scaled(180, 600))
def test_a_thousand_are_served_one_by_one_as_leases_lapse_and_are_released(
    queue: Queue, crowd: Crowd, clock: Clock
) -> None:
    queue.acquire("a", "COST", 8, limit=8)
    crowd.join_in_order(limit=8)
    clock.advance("60s")
    for number in range(CLIENTS):
        assert crowd.reply(number)[:2] == [1, 8], number
        if number % 100 == 99:
            queue.settle()
            # As many as there are units, and no more.
            assert queue.blocked == max(0, CLIENTS - number - 8), number
        queue.release(f"h{number}")
    assert queue.is_empty
    assert not queue.client.exists("k")


@pytest.mark.timeout(scaled(180, 600))
def test_of_a_thousand_all_are_denied_at_their_deadlines(
    queue: Queue, crowd: Crowd, clock: Clock
) -> None:
    queue.acquire("a")
    crowd.join_in_order(limit=1, block="10s")
    clock.advance("10s")
    replies = {tuple(crowd.reply(number)) for number in range(CLIENTS)}
    assert replies == {(0, 1, 0, 50_000, 50_000)}
    assert queue.is_empty


class Working:
    """A crowd that works: each gets a lease, gives it back some time later, and asks for the next,
    until it has had as many as it has jobs. Some are killed as they wait.

    Counts the units that are held by what their holders know: from the answer to the release.
    """

    def __init__(self, crowd: Crowd, limit: int, jobs: int, seed: int) -> None:
        self.crowd, self.limit, self.jobs = crowd, limit, jobs
        self._chosen = random.Random(seed)
        self._costs = [self._chosen.choice([1, 1, 1, 2, 3]) for _ in range(crowd.size)]
        self._left = [jobs] * crowd.size
        self._at_work: list[int] = []
        self._release_sent: set[int] = set()
        self.held = self.most_held = self.killed = 0

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for number, connection in enumerate(self.crowd.connections):
                selector.register(connection._sock, selectors.EVENT_READ, number)
                self._ask(number)
            while selector.get_map():
                ready = selector.select(timeout=0 if self._at_work else 60)
                assert ready or self._at_work, f"nobody is served: {self.crowd.queue.told()}"
                for key, _ in ready:
                    if not self._hear(key.data):
                        selector.unregister(key.fileobj)
                if self._at_work and (not ready or self._chosen.random() < 0.5):
                    self._release()
                if self._chosen.random() < 0.05:
                    self._kill(self._chosen.randrange(self.crowd.size))

    def _ask(self, number: int) -> None:
        words = (self.limit, "1h", f"h{number}", "COST", self._costs[number], "BLOCK", "1h")
        self.crowd.send(number, "RL.ACQUIRE", "k", *words)

    def _hear(self, number: int) -> bool:
        """Whether there is more to come."""
        try:
            reply = self.crowd.reply(number)
        except RedisConnectionError:
            self._clean_up(number)
            return False
        if number in self._release_sent:
            assert reply == 1
            self._release_sent.remove(number)
            self._left[number] -= 1
            if self._left[number]:
                self._ask(number)
            return self._left[number] > 0
        assert reply[:2] == [1, self.limit], reply
        self.held += self._costs[number]
        self.most_held = max(self.most_held, self.held)
        assert self.held <= self.limit
        self._at_work.append(number)
        return True

    def _release(self) -> None:
        number = self._at_work.pop(self._chosen.randrange(len(self._at_work)))
        # From here on its units may be somebody else's.
        self.held -= self._costs[number]
        self._release_sent.add(number)
        self.crowd.send(number, "RL.RELEASE", "k", f"h{number}")

    def _clean_up(self, number: int) -> None:
        """It was killed: as it waited, so that it holds nothing, or just after it was answered."""
        self.killed += 1
        held = self.crowd.queue.release(f"h{number}")
        if number in self._at_work:
            self._at_work.remove(number)
            self.held -= self._costs[number]
            assert held == 1
        elif number not in self._release_sent:
            assert held == 0

    def _kill(self, number: int) -> None:
        """If it waits."""
        client = self.crowd.queue.client
        listed = client.client_list(client_id=[self.crowd.ids[number]])
        if any("b" in one["flags"] for one in listed):
            assert client.client_kill_filter(_id=self.crowd.ids[number]) == 1

    @property
    def served(self) -> int:
        return sum(self.jobs - left for left in self._left)


@pytest.mark.timeout(scaled(180, 900))
@pytest.mark.parametrize("seed", range(scaled(1, 10)))
def test_a_thousand_at_work_are_all_served_and_never_hold_more_than_the_limit(
    own_queue: Queue, seed: int
) -> None:
    with Crowd(own_queue, CLIENTS) as crowd:
        work = Working(crowd, limit=8, jobs=scaled(3, 30), seed=seed)
        work.run()
    assert work.served > CLIENTS
    assert work.killed > 0
    # Whatever the head asks for, less than that was left to others.
    assert work.most_held > work.limit - 3
    poll.until(lambda: own_queue.is_empty, "nobody waits")
    assert not own_queue.client.exists("k")


def test_however_far_ahead_the_clock_has_been_a_call_waits_for_as_long_as_it_says(
    own_queue: Queue, clock: Clock
) -> None:
    queue = own_queue
    for _ in range(3):
        queue.acquire("a")
        b = queue.joins("b", block="10s")
        clock.advance("300000d")
        assert b.reply()[0] == 1
        clock.reset()
        queue.client.flushall()
