"""Waiting callers of `RL.ACQUIRE ... BLOCK` are served in order of arrival.

* After `DEL`, expiry, eviction, `FLUSHALL`, `SWAPDB`, `RENAME`, `MOVE` or `RESTORE` they wait on
  for the same key name. If the key gets another type of value, all of them get `WRONGTYPE`.
"""

from collections.abc import Callable

import pytest
from redis import Redis

from support.clock import Clock
from support.waiting import GRANTED, Queue, error_of
from support.waiting_calls import Start
from support.workload import Word

pytestmark = pytest.mark.every_server


# Immediate replies


def test_a_call_that_fits_is_granted_at_once(queue: Queue) -> None:
    assert queue.acquire("a", "BLOCK", "5s") == GRANTED
    assert queue.acquire("b", "BLOCK", 0, key="j") == GRANTED
    assert (queue.blocked, queue.is_empty) == (0, True)


def test_a_call_that_can_never_be_granted_is_denied_at_once(queue: Queue) -> None:
    assert queue.acquire("a", "COST", 2, "BLOCK", 0) == [0, 1, 1, -1, 0]
    assert queue.acquire("a", "BLOCK", "1h", limit=0) == [0, 0, 0, -1, 0]
    queue.acquire("a")
    queue.join("b")
    assert queue.acquire("c", "COST", 2, "BLOCK", 0) == [0, 1, 0, -1, 60_000]
    assert queue.waiters() == [b"b"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_waiting_call_is_answered_with_the_ordinary_decision(queue: Queue, protocol: int) -> None:
    queue.acquire("a")
    served = queue.join("b", caller=queue.caller(protocol))
    refused = queue.join("c", caller=queue.caller(protocol))
    queue.release("a")
    assert served.reply() == GRANTED
    queue.client.set("k", "text")
    assert "WRONGTYPE" in error_of(refused.reply)
    # The connection stays usable.
    assert served.call("PING") in (b"PONG", "PONG")
    assert refused.call("RL.ACQUIRE", "j", 1, "60s", "c", "BLOCK", 0) == GRANTED


def test_commands_sent_after_a_waiting_call_are_answered_after_it(queue: Queue) -> None:
    queue.acquire("a")
    b = queue.join("b").send("RL.RELEASE", "k", "b").send("PING")
    queue.settle()
    assert not b.is_answered
    queue.release("a")
    assert [b.reply() for _ in range(3)] == [GRANTED, 1, b"PONG"]


# Events that free a lease


def lease_expires(_: Queue, clock: Clock) -> None:
    clock.advance("60s")


def key_expires(queue: Queue, clock: Clock) -> None:
    queue.client.pexpire("k", 1000)
    clock.advance("1001ms")


def key_moves_to_another_database(queue: Queue, _: Clock) -> None:
    assert queue.client.move("k", 1)


def databases_are_swapped(queue: Queue, _: Clock) -> None:
    queue.client.swapdb(0, 1)


def command(*words: Word) -> Callable[[Queue, Clock], None]:
    def call(queue: Queue, _: Clock) -> None:
        queue.client.execute_command(*words)

    return call


LEASE_ENDS = {
    "a release": command("RL.RELEASE", "k", "a"),
    "the lease expires": lease_expires,
    "DEL": command("DEL", "k"),
    "UNLINK": command("UNLINK", "k"),
    "the key expires": key_expires,
    "EXPIRE in the past": command("EXPIRE", "k", -1),
    "FLUSHALL": command("FLUSHALL"),
    "FLUSHALL ASYNC": command("FLUSHALL", "ASYNC"),
    "FLUSHDB": command("FLUSHDB"),
    "SWAPDB": databases_are_swapped,
    "RENAME": command("RENAME", "k", "j"),
    "MOVE": key_moves_to_another_database,
    "RL.EFFECT": command("RL.EFFECT", "k", "rl-leases del"),
    "a release by a script": command("EVAL", "return redis.call('RL.RELEASE', 'k', 'a')", 0),
    "DEL by a script": command("EVAL", "return redis.call('DEL', 'k')", 0),
}


@pytest.mark.parametrize("end_lease", LEASE_ENDS.values(), ids=LEASE_ENDS)
def test_a_waiting_call_is_served_when_a_lease_ends(
    queue: Queue, clock: Clock, end_lease: Callable[[Queue, Clock], None]
) -> None:
    queue.acquire("a")
    b, c = queue.join_all("b", "c")
    end_lease(queue, clock)
    assert b.reply() == GRANTED
    queue.settle()
    assert not c.is_answered
    assert (queue.holders(), queue.waiters()) == ({b"b": b"1"}, [b"c"])
    assert queue.release("b") == 1
    assert c.reply() == GRANTED


def test_a_waiting_call_is_served_when_the_key_is_evicted(own_queue: Queue) -> None:
    client = own_queue.client
    for holder in range(2000):
        own_queue.acquire(f"holder {holder}", limit=2000)
    b = own_queue.join("b", limit=2000)
    client.config_set("maxmemory-policy", "volatile-lru")
    client.config_set("lazyfree-lazy-eviction", "no")
    # The only evictable key, and large enough that its eviction frees sufficient memory.
    client.config_set("maxmemory", client.info("memory")["used_memory"] - 50_000)
    assert b.reply() == [1, 2000, 1999, 0, 60_000]
    assert client.info("stats")["evicted_keys"] == 1
    client.config_set("maxmemory", 0)


def swap_in(client: Redis) -> None:
    client.move("other", 1)
    client.eval("redis.call('SELECT', 1) redis.call('RENAME', 'other', 'k')", 0)
    client.swapdb(0, 1)


# Neither of the two leases of "k" is free; one of "other" is.
REPLACEMENTS = {
    "RENAME": lambda client: client.rename("other", "k"),
    "RESTORE": lambda client: client.restore("k", 0, client.dump("other"), replace=True),
    "COPY": lambda client: client.copy("other", "k", replace=True),
    "SWAPDB": swap_in,
}


@pytest.mark.parametrize("replace", REPLACEMENTS.values(), ids=REPLACEMENTS)
def test_waiting_calls_are_served_when_the_key_is_replaced(
    queue: Queue, replace: Callable[[Redis], object]
) -> None:
    queue.acquire("x", key="other", limit=2)
    for holder in ("a1", "a2"):
        queue.acquire(holder, limit=2)
    b, c = queue.join_all("b", "c", limit=2)
    replace(queue.client)
    assert b.reply() == [1, 2, 0, 0, 60_000]
    queue.settle()
    assert not c.is_answered
    assert set(queue.holders()) == {b"x", b"b"}


def test_waiting_calls_are_granted_when_a_ban_ends_or_is_lifted(queue: Queue, clock: Clock) -> None:
    for end in (
        lambda: queue.client.execute_command("RL.BAN", "k", 0),
        lambda: clock.advance("30s"),
        lambda: queue.client.delete("k"),
    ):
        queue.client.flushall()
        queue.client.execute_command("RL.BAN", "k", "30s")
        b, c = queue.join_all("b", "c")
        assert queue.acquire("d")[:4] == [0, 1, 0, 30_000]
        end()
        assert b.reply() == GRANTED
        queue.release("b")
        assert c.reply() == GRANTED


def test_waiting_calls_stay_queued_during_a_ban(queue: Queue, clock: Clock) -> None:
    queue.acquire("a")
    b = queue.join("b")
    queue.client.execute_command("RL.BAN", "k", "10m")
    queue.release("a")
    clock.advance("9m")
    queue.see_clock(clock)
    assert not b.is_answered
    clock.advance("1m")
    assert b.reply() == GRANTED


def test_another_type_of_value_is_an_error_for_all_waiting_calls(queue: Queue) -> None:
    for call in (("SET", "k", "text"), ("RESTORE", "k"), ("RENAME", "other", "k")):
        queue.client.flushall()
        queue.acquire("a")
        waiters = queue.join_all("b", "c", block="1h")
        queue.client.execute_command("RL.FIXED", "other", 5, "1h")
        payload = (0, queue.client.dump("other"), "REPLACE") if "RESTORE" in call else ()
        queue.client.execute_command(*call, *payload)
        for waiter in waiters:
            assert "WRONGTYPE" in error_of(waiter.reply), call
        assert queue.is_empty


def test_a_grant_above_max_leases_is_an_error_for_the_waiting_call(
    fresh_server: Start,
) -> None:
    with Queue(fresh_server(module_args="max-leases 2")) as queue:
        queue.acquire("a", "COST", 2, limit=3)
        queue.acquire("x", limit=3)
        b, c = queue.join_all("b", "c", limit=3)
        # The holder renews its lease for fewer units. A unit is free, but not an entry.
        queue.acquire("a", limit=3)
        for waiter in (b, c):
            assert "ratelimit.max-leases" in error_of(waiter.reply)


def test_keys_and_databases_have_queues_of_their_own(queue: Queue) -> None:
    other = queue.caller()
    other.call("SELECT", 1)
    other.call("RL.ACQUIRE", "k", 1, "60s", "a")
    for key in ("k", "j"):
        queue.acquire("a", key=key)
    k_waiter, j_waiter = queue.join("b"), queue.join("b", key="j")
    waiter_in_database_1 = queue.join("b", caller=other)
    queue.release("a", key="j")
    assert j_waiter.reply() == GRANTED
    queue.settle()
    assert not k_waiter.is_answered
    assert not waiter_in_database_1.is_answered
    queue.client.execute_command("EVAL", "redis.call('SELECT', 1) redis.call('DEL', 'k')", 0)
    assert waiter_in_database_1.reply() == GRANTED
    queue.settle()
    assert not k_waiter.is_answered
    assert queue.waiters() == [b"b"]
