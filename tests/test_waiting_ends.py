"""A wait ends at its deadline, by a release of the holder, or by another call of the holder."""

import pytest

from support.clock import Clock
from support.waiting import DENIED, GRANTED, Queue
from support.waiting_calls import block_big_request

pytestmark = pytest.mark.every_server


# Deadlines


@pytest.mark.parametrize("block", ["5s", "5", "5000ms"])
def test_a_denial_at_the_deadline_shows_the_current_state(
    queue: Queue, clock: Clock, block: str
) -> None:
    queue.acquire("a")
    b = queue.join("b", block=block)
    clock.advance("4997ms")
    queue.see_clock(clock)
    assert not b.is_answered
    clock.advance("1ms")
    assert b.reply() == [0, 1, 0, 55_000, 55_000]
    assert queue.is_empty
    assert queue.info()["timed_out"] > 0


def test_a_lease_that_lapses_at_the_deadline_is_granted(queue: Queue, clock: Clock) -> None:
    queue.acquire("a")
    b, c = queue.join("b", block="60s"), queue.join("c", block="60s")
    clock.advance("60s")
    assert (b.reply(), c.reply()) == (GRANTED, DENIED)


def test_next_call_is_granted_once_the_head_is_denied(own_queue: Queue, clock: Clock) -> None:
    queue = own_queue
    queue.acquire("a", limit=2)
    big = queue.join("big", "COST", 2, limit=2, block="30s")
    small = queue.join("small", limit=2, block="30s")
    clock.advance("30s")
    assert big.reply() == [0, 2, 1, 30_000, 30_000]
    assert small.reply() == [1, 2, 0, 0, 60_000]
    info = queue.info()
    assert (info["served"], info["timed_out"]) == (1, 1)


def test_calls_are_denied_in_the_order_of_their_deadlines(queue: Queue, clock: Clock) -> None:
    queue.acquire("a")
    blocks = {"b": "30s", "c": "10s", "d": "20s", "e": "0"}
    waiters = {name: queue.join(name, block=block) for name, block in blocks.items()}
    for name, remaining_ms in (("c", 50_000), ("d", 40_000), ("b", 30_000)):
        clock.advance("10s")
        assert waiters.pop(name).reply() == [0, 1, 0, remaining_ms, remaining_ms]
        queue.settle()
        assert not any(waiter.is_answered for waiter in waiters.values())
    queue.release("a")
    assert waiters["e"].reply() == GRANTED


def test_a_denial_of_the_head_makes_way_for_the_next(queue: Queue, clock: Clock) -> None:
    queue.acquire("a", "COST", 5, limit=8)
    big = queue.join("big", "COST", 6, limit=8, block="10s")
    small = queue.join("small", "COST", 2, limit=8)
    clock.advance("10s")
    assert big.reply() == [0, 8, 3, 50_000, 50_000]
    assert small.reply() == [1, 8, 1, 0, 60_000]


def test_a_call_denied_behind_others_is_told_to_retry_if_units_are_free(
    queue: Queue, clock: Clock
) -> None:
    block_big_request(queue)
    waiter = queue.join("late", limit=8, block="10s")
    clock.advance("10s")
    assert waiter.reply() == [0, 8, 3, 1, 50_000]


def test_block_0_waits_without_a_deadline(queue: Queue, clock: Clock) -> None:
    queue.acquire("a", ttl="3650d")
    b = queue.join("b", block="0")
    clock.advance("1000d")
    queue.see_clock(clock)
    assert not b.is_answered
    queue.release("a")
    assert b.reply() == GRANTED


# Repeated calls of a holder


def test_a_second_call_of_a_waiting_holder_takes_the_place_of_the_first(
    queue: Queue, clock: Clock
) -> None:
    queue.acquire("a")
    older, c = queue.join_all("b", "c")
    clock.advance("10s")
    newer = queue.caller().send("RL.ACQUIRE", "k", 1, "60s", "b", "BLOCK", 0)
    assert older.reply() == [0, 1, 0, 50_000, 50_000]
    queue.settle()
    assert queue.waiters() == [b"b", b"c"]
    assert queue.blocked == 2
    queue.release("a")
    assert newer.reply() == GRANTED
    queue.settle()
    assert not c.is_answered


def test_a_holder_that_waits_does_not_overtake_itself(queue: Queue) -> None:
    queue.acquire("a")
    b = queue.join("b")
    with queue.client.pipeline(transaction=True) as pipeline:
        pipeline.execute_command("RL.RELEASE", "k", "a")
        pipeline.execute_command("RL.ACQUIRE", "k", 1, "60s", "b")
        assert pipeline.execute() == [1, [0, 1, 1, 1, 0]]
    assert b.reply() == GRANTED


def test_a_call_without_block_of_a_waiting_holder_is_denied(
    queue: Queue,
) -> None:
    queue.acquire("a")
    b = queue.join("b")
    assert queue.acquire("b") == DENIED
    queue.settle()
    assert not b.is_answered
    queue.release("a")
    assert b.reply() == GRANTED


def test_a_connection_may_wait_repeatedly(queue: Queue) -> None:
    queue.acquire("a")
    caller, holder = queue.caller(), "a"
    for number in range(10):
        queue.join(f"b{number}", caller=caller)
        queue.release(holder)
        assert caller.reply() == GRANTED
        holder = f"b{number}"


# Callers that give up


def test_a_release_of_a_waiting_holder_denies_its_call(queue: Queue, clock: Clock) -> None:
    queue.acquire("a")
    b, c, d = queue.join_all("b", "c", "d")
    clock.advance("10s")
    # No lease was released: neither the head nor the other caller has one.
    assert queue.release("b", "c", "nobody") == 0
    assert [b.reply(), c.reply()] == [[0, 1, 0, 50_000, 50_000]] * 2
    queue.settle()
    assert (queue.waiters(), queue.blocked, d.is_answered) == ([b"d"], 1, False)
    queue.release("a")
    assert d.reply() == GRANTED
    assert b.call("RL.RELEASE", "k", "d") == 1


def test_a_caller_that_gave_up_delays_no_other(queue: Queue) -> None:
    """Checks that its place is free for the next call, even within one transaction."""
    queue.acquire("a")
    b = queue.join("b")
    with queue.client.pipeline(transaction=True) as pipeline:
        for holder in ("b", "a"):
            pipeline.execute_command("RL.RELEASE", "k", holder)
        pipeline.execute_command("RL.INFO", "k")
        pipeline.execute_command("RL.ACQUIRE", "k", 1, "60s", "c")
        assert pipeline.execute() == [0, 1, None, GRANTED]
    # The denial shows the state at the moment when the caller gave up.
    assert b.reply() == DENIED
    b = queue.join("b")
    assert queue.release("b") == 0
    assert queue.acquire("b") == DENIED
    assert b.reply() == DENIED
    assert queue.holders() == {b"c": b"1"}


def test_a_release_looks_up_no_waits_for_other_keys(own_queue: Queue) -> None:
    own_queue.acquire("a")
    own_queue.acquire("b", key="j")
    c = own_queue.join("c")

    def lookups() -> int:
        stats = own_queue.client.info("stats")
        return stats["keyspace_hits"] + stats["keyspace_misses"]

    before = lookups()
    assert own_queue.release("b", "c", "d", key="j") == 1
    assert lookups() - before <= 1
    own_queue.release("c")
    assert c.reply() == DENIED


def test_a_large_call_that_gives_up_makes_way_for_small_ones(queue: Queue) -> None:
    queue.acquire("a", "COST", 7, limit=8)
    big = queue.join("big", "COST", 8, limit=8)
    small = queue.join("small", limit=8)
    queue.release("big")
    assert (big.reply()[0], small.reply()[0]) == (0, 1)


def test_a_holder_that_releases_its_lease_keeps_waiting_for_more(queue: Queue) -> None:
    queue.acquire("a", limit=2)
    queue.acquire("b", limit=2)
    more = queue.join("a", "COST", 2, limit=2)
    assert queue.release("a") == 1
    queue.settle()
    assert not more.is_answered
    assert queue.release("a") == 0
    assert more.reply()[0] == 0
    assert list(queue.holders()) == [b"b"]


@pytest.mark.parametrize("order", ["close first", "release first"])
def test_a_client_that_disconnects_and_releases_elsewhere_is_granted_nothing(
    queue: Queue, order: str
) -> None:
    """The server may read the disconnection first, or the release."""
    queue.acquire("a")
    b = queue.join("b")
    with queue.client.pipeline(transaction=False) as pipeline:
        pipeline.execute_command("RL.RELEASE", "k", "b")
        pipeline.execute_command("RL.RELEASE", "k", "a")
        if order == "close first":
            b.hang_up()
        assert pipeline.execute() == [0, 1]
    b.hang_up()
    queue.until(lambda: queue.is_empty, "nobody waits")
    queue.settle()
    assert queue.holders() == {}


def test_release_in_a_transaction_or_a_script_ends_waits(queue: Queue) -> None:
    queue.acquire("a")
    b, c = queue.join_all("b", "c")
    with queue.client.pipeline(transaction=True) as pipeline:
        assert pipeline.execute_command("RL.RELEASE", "k", "b").execute() == [0]
    assert b.reply() == DENIED
    queue.client.eval("return redis.call('RL.RELEASE', 'k', 'c')", 0)
    assert c.reply() == DENIED


def test_release_in_another_key_or_database_ends_no_wait(queue: Queue) -> None:
    queue.acquire("a")
    b = queue.join("b")
    assert queue.release("b", key="j") == 0
    queue.client.select(1)
    assert queue.release("b") == 0
    queue.client.select(0)
    queue.settle()
    assert not b.is_answered
    queue.release("a")
    assert b.reply() == GRANTED


def test_release_ends_a_wait_for_leases_among_several_limits(queue: Queue) -> None:
    take = ("RL.TAKE", "k", "FIXED", 5, "1h", "CONCURRENCY", 1, "60s", "a")
    queue.client.execute_command(*take)
    b = queue.join("b")
    assert queue.release("b") == 0
    assert b.reply() == DENIED
