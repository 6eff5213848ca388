"""RL.INFO, INFO, events, replicas and the AOF show waiting calls and their grants."""

import pytest
from redis import Redis, WatchError

from conftest import Pair
from support import poll
from support.clock import Clock
from support.server import Server
from support.units import UNIT
from support.waiting import GRANTED, Caller, Queue, error_of, info_of
from support.waiting_calls import Start
from support.workload import state, written_commands

pytestmark = pytest.mark.every_server


# Introspection


def test_info_shows_the_number_and_duration_of_waits(own_queue: Queue, clock: Clock) -> None:
    queue = own_queue
    idle = {
        "blocked_clients": 0,
        "blocked_keys": 0,
        "longest_blocked_ms": 0,
        "served": 0,
        "timed_out": 0,
    }
    # These fields count checks of the queues, which depend on timing.
    unpredictable = {"looks", "busiest_turn"}

    def info() -> dict[str, object]:
        return {name: value for name, value in queue.info().items() if name not in unpredictable}

    assert info() == idle
    for key in ("j", "k"):
        queue.acquire("a", key=key)
    waiters = queue.join_all("b", "c")
    clock.advance("1500ms")
    other = queue.join("b", key="j", block="10s")
    clock.advance("500ms")
    assert info() == {
        **idle,
        "blocked_clients": 3,
        "blocked_keys": 2,
        "longest_blocked_ms": 2000,
        "blocked_0": {"key": "k", "db": 0, "waiting": 2, "longest_ms": 2000},
        "blocked_1": {"key": "j", "db": 0, "waiting": 1, "longest_ms": 500},
    }
    queue.release("a")
    assert waiters[0].reply()[0] == 1
    clock.advance("10s")
    assert other.reply()[0] == 0
    assert (info()["served"], info()["timed_out"]) == (1, 1)
    assert (info()["blocked_clients"], info()["blocked_keys"]) == (1, 1)


def test_info_names_the_16_keys_whose_heads_wait_longest(own_queue: Queue, clock: Clock) -> None:
    for number in range(20):
        key = f"key {number}"
        own_queue.acquire("a", key=key)
        own_queue.join("b", key=key)
        clock.advance("100ms")
    info = own_queue.info()
    assert (info["blocked_keys"], info["longest_blocked_ms"]) == (20, 2000)
    rows = {name for name in info if name.removeprefix("blocked_").isdigit()}
    assert rows == {f"blocked_{number}" for number in range(16)}
    assert [info[f"blocked_{number}"]["longest_ms"] for number in (0, 15)] == [2000, 500]


def test_a_key_of_any_bytes_is_one_line_of_info(queue: Queue) -> None:
    key = b"a,b=c:d\r\nratelimit_blocked_1:key=x \xff\0"
    queue.acquire("a", key=key)
    b = queue.join("b", key=key)
    info = queue.info()
    assert (info["blocked_clients"], info["blocked_keys"]) == (1, 1)
    assert {name for name in info if name[-1].isdigit()} == {"blocked_0"}
    queue.release("a", key=key)
    assert b.reply() == GRANTED


@pytest.mark.parametrize("protocol", [2, 3])
def test_info_shows_the_queue_of_a_key(queue: Queue, clock: Clock, protocol: int) -> None:
    queue.acquire("a", "COST", 5, limit=8)
    queue.join("big", "COST", "6.5", limit=8)
    clock.advance("1500ms")
    queue.join(b"\xff\0\r\n", limit=8, block="10s")
    clock.advance("500ms")
    caller = queue.caller(protocol)
    reply = caller.call("RL.INFO", "k")
    info = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    assert info[b"kind"] == b"rl-leases"
    assert info[b"waiting"] == 2
    assert info[b"queue"] == [[b"big", b"6.5", 2000, -1], [b"\xff\0\r\n", b"1", 500, 9500]]


def test_info_shows_the_first_100_of_a_long_queue(queue: Queue) -> None:
    queue.acquire("a")
    waiters = [
        queue.send("RL.ACQUIRE", "k", 1, "60s", f"holder {number}", "BLOCK", 0)
        for number in range(130)
    ]
    poll.until(lambda: queue.blocked == 130, "all wait")
    info = info_of(queue.client)
    assert (info[b"waiting"], len(info[b"queue"])) == (130, 100)
    assert not any(waiter.is_answered for waiter in waiters)


def test_info_shows_no_queue_of_a_key_without_waiting_calls(queue: Queue) -> None:
    queue.acquire("a")
    assert not {b"waiting", b"queue"} & info_of(queue.client).keys()
    b = queue.join("b")
    queue.release("a")
    b.reply()
    assert not {b"waiting", b"queue"} & info_of(queue.client).keys()


def test_the_server_says_that_the_command_may_block(redis: Redis, server: Server) -> None:
    flags = set(redis.command()["rl.acquire"]["flags"])
    if server.version < (7,):
        # Redis 6.2 has no such flag for modules.
        assert "write" in flags
    else:
        assert {"write", "blocking"} <= flags
        docs = redis.execute_command("COMMAND DOCS", "rl.acquire")
        assert "BLOCK" in str(docs)
    assert "fast" not in flags


def counts(queue: Queue) -> dict[str, dict[str, int]]:
    """Returns the counts of INFO by command and kind, without the zeros."""
    info = queue.client.info("ratelimit")
    names = {"acquire": "ratelimit_rl.acquire", "leases": "ratelimit_rl-leases"}
    return {
        group: {field: count for field, count in info[name].items() if count}
        for group, name in names.items()
    }


def test_a_waiting_call_counts_once_when_it_is_answered(own_queue: Queue, clock: Clock) -> None:
    queue = own_queue
    queue.acquire("a")
    served, denied, refused = (
        queue.join("b"),
        queue.join("c", block="10s"),
        queue.join("d", block="1h"),
    )
    found = counts(queue)
    # Waiting calls may be counted already as calls, but not yet by their outcome.
    found["acquire"].pop("calls")
    assert found["acquire"] == {"admitted": 1}
    assert found["leases"] == {"admitted": 1, "keys_made": 1}
    queue.release("a")
    assert served.reply()[0] == 1
    clock.advance("10s")
    assert denied.reply()[0] == 0
    queue.client.set("k", "text")
    assert "WRONGTYPE" in error_of(refused.reply)
    found = counts(queue)
    assert found["acquire"] == {"calls": 4, "admitted": 2, "denied": 1, "errors": 1}
    assert (found["leases"]["admitted"], found["leases"]["denied"]) == (2, 1)


def test_a_grant_sends_an_rl_take_event(fresh_server: Start) -> None:
    with Queue(fresh_server(notify_keyspace_events="KA")) as queue:
        queue.acquire("a")
        b, c = queue.join_all("b", "c")
        with queue.server.client(decode_responses=True).pubsub() as subscriber:
            subscriber.psubscribe("__keyspace@0__:*")
            events: list[str] = []

            def receive() -> bool:
                message = subscriber.get_message(timeout=0.1)
                if message and message["type"] == "pmessage":
                    events.append(message["data"])
                return events[-1:] == ["set"]

            subscriber.get_message(timeout=10)
            queue.release("a")
            b.reply()
            queue.release("b")
            c.reply()
            queue.client.set("end", "")
            poll.until(receive, "all events arrive")
        assert events == ["del", "rl.take", "del", "rl.take", "set"]


def test_a_grant_aborts_transactions_that_watch_the_key(queue: Queue, clock: Clock) -> None:
    queue.acquire("a")
    b = queue.join("b")
    with queue.client.pipeline() as pipeline:
        pipeline.watch("k")
        clock.advance("60s")
        assert b.reply() == GRANTED
        pipeline.multi()
        pipeline.ping()
        with pytest.raises(WatchError):
            pipeline.execute()


# Replication


def test_a_replica_receives_grants_byte_for_byte(pair: Pair, clock: Clock) -> None:
    with Queue(pair.primary) as queue:
        queue.acquire("a", "COST", 2, limit=2)
        waiters = queue.join_all("b", "c", "d", limit=2)
        for end in (lambda: clock.advance("60s"), lambda: queue.release("b")):
            end()
            waiters.pop(0).reply()
            queue.settle()
            pair.replica.wait_for_sync()
            stored = state(queue.client)
            with pair.replica.client() as replica:
                assert state(replica) == stored
            assert stored[b"k"].expires_at > clock.now // 1000
            if len(waiters) == 2:
                waiters.pop(0).reply()
        assert set(queue.holders()) == {b"c", b"d"}


def test_a_replica_receives_grants_in_any_database(pair: Pair, clock: Clock) -> None:
    with Queue(pair.primary) as queue:
        callers = [queue.caller() for _ in range(3)]
        holder, *waiting = callers
        for caller in callers:
            caller.call("SELECT", 3)
        holder.call("RL.ACQUIRE", "k", 1, "60s", "a")
        for number, caller in enumerate(waiting):
            queue.join(f"b{number}", caller=caller)
        clock.advance("60s")
        assert waiting[0].reply() == GRANTED
        holder.call("RL.RELEASE", "k", "b0")
        assert waiting[1].reply() == GRANTED
        pair.replica.wait_for_sync()
        reader = Caller(pair.replica)
        assert not reader.call("EXISTS", "k")
        reader.call("SELECT", 3)
        assert b"b1" in reader.call("RL.INFO", "k")[-1][0]
        assert reader.call("DUMP", "k") == holder.call("DUMP", "k")
        assert reader.call("PTTL", "k") >= 60_000
        reader.hang_up()


def test_a_wait_alone_is_not_propagated(own_queue: Queue, clock: Clock) -> None:
    queue = own_queue
    queue.server.replica()
    queue.acquire("a")

    def offset() -> int:
        return queue.client.info("replication")["master_repl_offset"]

    before, dump = offset(), queue.client.dump("k")
    b = queue.join("b", block="10s")
    queue.join("c")
    clock.advance("10s")
    assert b.reply()[0] == 0
    assert (offset(), queue.client.dump("k")) == (before, dump)


def test_an_aof_contains_grants(fresh_server: Start, clock: Clock) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always")
    with Queue(server) as queue:
        queue.acquire("a")
        b, _ = queue.join_all("b", "c")
        clock.advance("60s")
        assert b.reply() == GRANTED
        assert {words[0].upper() for words in written_commands(server)} == {b"RL.EFFECT"}
        stored = state(queue.client)
        server.restart("kill")
        assert state(queue.client) == stored
        assert queue.holders() == {b"b": b"1"}
        assert queue.is_empty


def test_units_are_granted_to_the_millionth(queue: Queue) -> None:
    queue.acquire("a", limit="1.5")
    b = queue.join("b", "COST", "0.500001", limit="1.5")
    queue.settle()
    assert not b.is_answered
    queue.acquire("a", "COST", 1 - 1 / UNIT, limit="1.5")
    assert b.reply() == [1, 1, 0, 0, 60_000]
