"""If the clock is set back or forward, no caller waits longer than it should, and none is granted
a lease too early.
"""

import random

import pytest

from support import poll
from support.clock import Clock
from support.waiting import GRANTED, Queue, answered, info_of

pytestmark = pytest.mark.every_server


# Clock steps


def test_clock_set_back_moves_deadlines_back(queue: Queue, clock: Clock) -> None:
    queue.acquire("a")
    queue.join("b")
    c, d = queue.join("c", block="30s"), queue.join("d", block="20s")
    clock.advance("10s")
    queue.see_clock(clock)
    clock.advance("-1h")
    queue.see_clock(clock)
    assert answered([c, d]) == [False, False]
    # "c" and "d" had waited for ten seconds before the clock was set back.
    waiters = [queue.join("late", block="5s"), d, c]
    for pause in ("5s", "5s", "10s"):
        clock.advance(pause)
        assert waiters.pop(0).reply()[:3] == [0, 1, 0]
        queue.settle()
        assert not any(answered(waiters))


def test_a_lease_lapses_after_the_clock_was_set_back_without_further_calls(
    queue: Queue, clock: Clock
) -> None:
    queue.acquire("a")
    b = queue.join("b")
    clock.advance("10s")
    queue.see_clock(clock)
    clock.advance("-1h")
    queue.see_clock(clock)
    clock.advance("59s")
    queue.see_clock(clock)
    assert not b.is_answered
    clock.advance("1s")
    assert b.reply() == GRANTED


def test_a_clock_set_forward_answers_calls_that_are_due(queue: Queue, clock: Clock) -> None:
    queue.acquire("a", ttl="2h")
    b, c = queue.join("b", block="30m"), queue.join("c", block="90m")
    clock.advance("1h")
    assert b.reply() == [0, 1, 0, 3_600_000, 3_600_000]
    queue.settle()
    assert not c.is_answered
    clock.advance("1h")
    assert c.reply()[0] == 1


def test_a_clock_set_back_before_a_wait_does_not_change_its_deadline(
    queue: Queue, clock: Clock
) -> None:
    queue.acquire("a")
    queue.join("b", block="30s")
    clock.advance("30s")
    poll.until(lambda: queue.is_empty, "nobody waits")
    clock.advance("-1h")
    waiter = queue.join("late", block="30s")
    clock.advance("29s")
    queue.see_clock(clock)
    assert not waiter.is_answered
    clock.advance("1s")
    assert waiter.reply()[0] == 0


def test_a_clock_set_back_while_writes_are_paused_prolongs_no_wait(
    queue: Queue, clock: Clock
) -> None:
    queue.acquire("a")
    b = queue.join("b")
    queue.join("c", block="1h")
    clock.advance("10s")
    queue.see_clock(clock)
    queue.client.execute_command("CLIENT", "PAUSE", 3_600_000, "WRITE")
    clock.advance("-1h")
    queue.until(lambda: info_of(queue.client)[b"queue"][1][3] < 3_600_000, "deadlines move back")
    queue.client.execute_command("CLIENT", "UNPAUSE")
    queue.see_clock(clock)
    # From the end of the pause, the lease of "a" lasts for at most its full ttl.
    clock.advance("60s")
    assert b.reply() == GRANTED


def test_a_clock_that_jumps_neither_frees_leases_nor_prolongs_waits(
    queue: Queue, clock: Clock
) -> None:
    draw = random.Random(17)
    queue.acquire("a")
    waiters = queue.join_all(*(f"holder {number}" for number in range(8)))
    for number, waiter in enumerate(waiters):
        for _ in range(3):
            clock.advance(f"{draw.choice([-3600, -60, -1, 1, 20])}s")
            queue.see_clock(clock)
            assert len(queue.holders()) <= 1
        if not waiter.is_answered:
            clock.advance("61s")
        assert waiter.reply()[:2] == [1, 1], number


def test_waiting_calls_are_granted_however_far_the_clock_was_ahead(
    own_queue: Queue, clock: Clock
) -> None:
    queue = own_queue
    for _ in range(3):
        queue.acquire("a")
        b = queue.join("b", block="10s")
        clock.advance("300000d")
        assert b.reply()[0] == 1
        clock.reset()
        queue.client.flushall()
