"""Waiting callers are served in order: no later call overtakes them. The latest limit applies."""

import pytest

from support.clock import Clock
from support.waiting import GRANTED, Queue
from support.waiting_calls import POOL, block_big_request
from support.workload import Word, state

pytestmark = pytest.mark.every_server


# Order


def test_waiting_calls_are_served_in_order_of_arrival(queue: Queue) -> None:
    queue.acquire("a")
    names = [f"holder {number}" for number in range(20)]
    waiters = queue.join_all(*names)
    assert queue.waiters() == [name.encode() for name in names]
    queue.release("a")
    for number, waiter in enumerate(waiters):
        assert waiter.reply() == GRANTED
        queue.settle()
        assert not any(later.is_answered for later in waiters[number + 1 :])
        queue.release(names[number])


def test_waiting_calls_are_served_before_later_calls_are_read(queue: Queue) -> None:
    queue.acquire("a")
    waiters = queue.join_all(*(f"holder {number}" for number in range(20)))
    holder = "a"
    for number, waiter in enumerate(waiters):
        queue.release(holder)
        queue.settle()
        assert waiter.is_answered, number
        waiter.reply()
        holder = f"holder {number}"


def test_a_release_of_several_units_serves_as_many_as_fit(queue: Queue) -> None:
    queue.acquire("a", "COST", 8, limit=8)
    waiters = [
        queue.join(f"b{number}", "COST", cost, limit=8)
        for number, cost in enumerate((3, 2, 2, 4, 1))
    ]
    queue.release("a")
    assert [waiter.reply()[2] for waiter in waiters[:3]] == [5, 3, 1]
    queue.settle()
    assert [waiter.is_answered for waiter in waiters[3:]] == [False, False]
    queue.release("b0")
    assert waiters[3].reply() == [1, 8, 0, 0, 60_000]
    queue.settle()
    assert not waiters[4].is_answered
    queue.release("b1", "b2", "b3")
    assert waiters[4].reply() == [1, 8, 7, 0, 60_000]


def test_small_calls_do_not_overtake_a_large_one_at_the_head(queue: Queue) -> None:
    queue.acquire("a", "COST", 5, limit=8)
    queue.acquire("x", "COST", 3, limit=8)
    big = queue.join("big", "COST", 6, limit=8)
    small = queue.join("small", limit=8)
    queue.release("x")
    queue.settle()
    assert not big.is_answered
    assert not small.is_answered
    # A later call would fit, and waits as well.
    last = queue.join("late", limit=8)
    queue.release("a")
    assert [caller.reply()[:3] for caller in (big, small, last)] == [
        [1, 8, 2],
        [1, 8, 1],
        [1, 8, 0],
    ]


CALLS: dict[str, tuple[Word, ...]] = {
    "RL.ACQUIRE": ("RL.ACQUIRE", "k", 8, "60s", "late"),
    "RL.TAKE": ("RL.TAKE", "k", "CONCURRENCY", 8, "60s", "late"),
    "RL.PEEK": ("RL.PEEK", "k", "CONCURRENCY", 8, "60s", "late"),
    "RL.LIMIT": ("RL.LIMIT", "k", "pool", "ONCE", "late", "1m"),
    "RL.TAKE by a policy": ("RL.TAKE", "k", "ONCE", "late", "1m", "POLICY", "pool"),
    "RL.PEEK by a policy": ("RL.PEEK", "k", "ONCE", "late", "1m", "POLICY", "pool"),
}
CALLS_ON_TWO_KEYS: dict[str, tuple[Word, ...]] = {
    "RL.MTAKE": ("RL.MTAKE", 2, "k", "j", *("CONCURRENCY", 8, "60s", "late") * 2),
    "RL.MPEEK": ("RL.MPEEK", 2, "k", "j", *("CONCURRENCY", 8, "60s", "late") * 2),
    "RL.MTAKE by a policy": (
        *("RL.MTAKE", 2, "k", "j", "ONCE", "late", "1m"),
        *("POLICY", "pool", "POLICY", "pool"),
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_later_call_overtakes_waiting_calls(queue: Queue, call: tuple[Word, ...]) -> None:
    queue.client.execute_command(*POOL)
    block_big_request(queue)
    before = state(queue.client)
    # Units are free, but a new caller does not get them.
    assert queue.client.execute_command(*call) == [0, 8, 3, 1, 60_000]
    assert state(queue.client) == before
    assert queue.waiters() == [b"big"]


@pytest.mark.parametrize("call", CALLS_ON_TWO_KEYS.values(), ids=CALLS_ON_TWO_KEYS)
def test_no_call_over_several_keys_overtakes_waiting_calls(
    queue: Queue, call: tuple[Word, ...]
) -> None:
    queue.client.execute_command(*POOL)
    block_big_request(queue)
    before = state(queue.client)
    allowed, wait_ms, (k_decision, j_decision) = queue.client.execute_command(*call)
    assert (allowed, wait_ms) == (0, 1)
    assert k_decision == [0, 8, 3, 1, 60_000]
    assert j_decision[0] == 1
    assert state(queue.client) == before


def test_only_the_concurrency_limit_queues_new_calls(queue: Queue) -> None:
    queue.client.execute_command("RL.TAKE", "k", "FIXED", 5, "1h", "CONCURRENCY", 8, "60s", "x")
    queue.release("x")
    block_big_request(queue)
    take = ("RL.TAKE", "k", "FIXED", 5, "1h", "CONCURRENCY", 8, "60s", "late")
    assert queue.client.execute_command(*take)[:4] == [0, 8, 3, 1]
    # A call that takes no lease does not wait.
    assert queue.client.execute_command("RL.TAKE", "k", "FIXED", 5, "1h")[:3] == [1, 5, 3]
    assert queue.waiters() == [b"big"]


def test_rl_delay_behind_a_queue_is_told_to_retry(queue: Queue) -> None:
    queue.client.execute_command(*POOL)
    block_big_request(queue)
    delay = ("RL.DELAY", "k", "pool", "ONCE", "late", "1m")
    assert queue.client.execute_command(*delay) == 1


def test_a_denial_behind_a_queue_shows_when_leases_expire(queue: Queue, clock: Clock) -> None:
    block_big_request(queue)
    clock.advance("20s")
    assert queue.acquire("late", "COST", 4, limit=8) == [0, 8, 3, 40_000, 40_000]
    assert queue.acquire("late", "COST", 3, limit=8) == [0, 8, 3, 1, 40_000]
    assert queue.acquire("late", "COST", 9, limit=8) == [0, 8, 3, -1, 40_000]


def test_a_renewal_overtakes_waiting_calls(queue: Queue, clock: Clock) -> None:
    block_big_request(queue)
    clock.advance("20s")
    assert queue.acquire("a", "COST", 5, limit=8) == [1, 8, 3, 0, 60_000]
    assert queue.acquire("a", "COST", 4, "BLOCK", 0, limit=8) == [1, 8, 4, 0, 60_000]
    # A renewal for more units waits behind "big".
    assert queue.acquire("a", "COST", 5, limit=8) == [0, 8, 4, 1, 60_000]
    more = queue.join("a", "COST", 5, limit=8)
    assert queue.waiters() == [b"big", b"a"]
    # The renewal for fewer units did not free enough for "big"; the release does.
    queue.release("a")
    queue.settle()
    assert queue.holders() == {b"big": b"6"}
    queue.release("big")
    assert more.reply() == [1, 8, 3, 0, 60_000]


@pytest.mark.parametrize("transaction", [False, True], ids=["a pipeline", "MULTI"])
def test_no_call_overtakes_before_waiting_calls_are_served(queue: Queue, transaction: bool) -> None:
    queue.acquire("a")
    b = queue.join("b")
    with queue.client.pipeline(transaction=transaction) as pipeline:
        pipeline.execute_command("RL.RELEASE", "k", "a")
        pipeline.execute_command("RL.ACQUIRE", "k", 1, "60s", "late")
        assert pipeline.execute() == [1, [0, 1, 1, 1, 0]]
    assert b.reply() == GRANTED


def test_release_by_a_script_does_not_overtake(queue: Queue) -> None:
    queue.acquire("a")
    b = queue.join("b")
    script = (
        "redis.call('RL.RELEASE', 'k', 'a') return redis.call('RL.ACQUIRE', 'k', 1, '60s', 'late')"
    )
    assert queue.client.eval(script, 0) == [0, 1, 1, 1, 0]
    assert b.reply() == GRANTED
    assert queue.holders() == {b"b": b"1"}


# Changed limits


@pytest.mark.parametrize("call", [*CALLS, "RL.MTAKE"])
def test_a_higher_limit_of_another_call_serves_waiting_calls(queue: Queue, call: str) -> None:
    queue.client.execute_command(*POOL)
    for holder in "ax":
        queue.acquire(holder, limit=2)
    b, c = queue.join("b", limit=2), queue.join("c", "COST", 6, limit=7)
    # "c" raises the limit, so that "b" fits.
    assert b.reply() == [1, 7, 4, 0, 60_000]
    queue.settle()
    assert not c.is_answered
    queue.release("x")
    queue.client.execute_command(*(CALLS | CALLS_ON_TWO_KEYS)[call])
    queue.settle()
    # Two units are held. The other calls raise the limit to 8, so that "c" fits. A peek leaves it
    # at 7.
    assert c.is_answered == ("PEEK" not in call)
    if c.is_answered:
        assert c.reply() == [1, 8, 0, 0, 60_000]
    assert b"late" not in queue.holders()


def test_renewal_with_a_higher_limit_serves_waiting_calls(queue: Queue) -> None:
    queue.acquire("a")
    b, c = queue.join_all("b", "c")
    assert queue.acquire("a", limit=2) == [1, 2, 1, 0, 60_000]
    assert b.reply() == [1, 2, 0, 0, 60_000]
    queue.settle()
    assert not c.is_answered


def test_a_changed_policy_serves_waiting_calls_at_the_next_call(queue: Queue) -> None:
    def limit(holder: str) -> list[int]:
        return queue.client.execute_command("RL.LIMIT", "k", "pool", "ONCE", holder, "1h")

    queue.client.execute_command("RL.POLICYSET", "pool", "CONCURRENCY", 1, "60s")
    assert limit("a") == GRANTED
    b, c, d = queue.join_all("b", "c", "d")
    queue.client.execute_command("RL.POLICYSET", "pool", "CONCURRENCY", 3, "60s")
    assert limit("late") == [0, 3, 2, 1, 60_000]
    assert [caller.reply() for caller in (b, c)] == [[1, 3, 1, 0, 60_000], [1, 3, 0, 0, 60_000]]
    queue.settle()
    assert not d.is_answered
    queue.client.execute_command("RL.POLICYSCALE", "pool", 2)
    assert limit("late")[:2] == [0, 6]
    assert d.reply() == [1, 6, 2, 0, 60_000]


def test_under_a_lower_limit_calls_that_still_fit_go_on_waiting(queue: Queue) -> None:
    queue.acquire("a", limit=3)
    big = queue.join("big", "COST", 3, limit=3)
    small = queue.join("small", "COST", 2, limit=3)
    assert queue.acquire("late", limit=2) == [0, 2, 1, 1, 60_000]
    # The head can never fit, and does not block the next one.
    assert big.reply() == [0, 2, 1, -1, 60_000]
    queue.settle()
    assert not small.is_answered
    queue.release("a")
    assert small.reply() == [1, 2, 0, 0, 60_000]


def test_a_limit_of_0_answers_all_waiting_calls(queue: Queue) -> None:
    queue.acquire("a")
    waiters = queue.join_all("b", "c")
    assert queue.acquire("late", limit=0) == [0, 0, 0, -1, 60_000]
    assert [waiter.reply() for waiter in waiters] == [[0, 0, 0, -1, 60_000]] * 2
