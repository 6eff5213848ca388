"""Many waiting calls are served in portions, between which the server serves other calls.

The tests count the portions instead of timing them, as the clock stands still.
"""

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from support.clock import Clock
from support.server import Server
from support.waiting import GRANTED, Caller, Queue

# Maximum number of queue checks and replies in one portion.
MAX_PORTION = 100
# Number of waiting calls, which need several portions.
MANY = 270


@pytest.fixture
def callers(own_queue: Queue) -> list[Caller]:
    """Starts one waiting call for each of many keys."""
    with own_queue.client.pipeline(transaction=False) as pipeline:
        for key in range(MANY):
            pipeline.execute_command("RL.ACQUIRE", key, 1, "60s", "a")
        pipeline.execute()
    return join(own_queue, [(key, 1, "b") for key in range(MANY)])


def join(queue: Queue, calls: list[tuple[int | str, int, str]], block: str = "0") -> list[Caller]:
    """Sends waiting calls, each given by its key, limit and holder."""
    before = queue.blocked
    callers = [
        queue.send("RL.ACQUIRE", key, limit, "60s", holder, "BLOCK", block)
        for key, limit, holder in calls
    ]
    queue.until(lambda: queue.blocked == before + len(calls), "all wait")
    queue.settle()
    return callers


def assert_portions_are_bounded(queue: Queue) -> None:
    largest = queue.info()["busiest_turn"]
    assert isinstance(largest, int)
    assert MAX_PORTION // 2 <= largest <= MAX_PORTION


@pytest.mark.parametrize("command", ["FLUSHALL", "SWAPDB 0 1"])
def test_events_that_may_affect_every_key_are_handled_in_several_portions(
    own_queue: Queue, callers: list[Caller], command: str
) -> None:
    own_queue.client.execute_command(*command.split())
    assert [caller.reply() for caller in callers] == [GRANTED] * MANY
    assert_portions_are_bounded(own_queue)


def test_a_clock_set_back_is_handled_in_several_portions(
    own_queue: Queue, callers: list[Caller], clock: Clock
) -> None:
    checks = own_queue.info()["looks"]
    clock.advance(-3_600_000_000)
    # The leases move back with the clock, for which each queue is checked once.
    own_queue.until(lambda: own_queue.info()["looks"] == checks + MANY, "all queues are checked")
    assert not any(caller.is_answered for caller in callers)
    clock.advance("60s")
    assert [caller.reply() for caller in callers] == [GRANTED] * MANY
    assert_portions_are_bounded(own_queue)


def test_leases_that_expire_together_are_handled_in_several_portions(
    own_queue: Queue, callers: list[Caller], clock: Clock
) -> None:
    clock.advance("60s")
    assert [caller.reply() for caller in callers] == [GRANTED] * MANY
    assert_portions_are_bounded(own_queue)


def test_waits_that_end_together_are_handled_in_several_portions(
    own_queue: Queue, clock: Clock
) -> None:
    own_queue.acquire("a")
    callers = join(own_queue, [("k", 1, f"b{place}") for place in range(MANY)], block="10s")
    clock.advance("10s")
    assert [caller.reply() for caller in callers] == [[0, 1, 0, 50_000, 50_000]] * MANY
    assert_portions_are_bounded(own_queue)


def test_many_calls_that_give_up_at_once_are_answered_in_several_portions(own_queue: Queue) -> None:
    own_queue.acquire("a")
    holders = [f"b{place}" for place in range(MANY)]
    callers = join(own_queue, [("k", 1, holder) for holder in holders])
    own_queue.client.execute_command("RL.RELEASE", "k", *holders)
    assert [caller.reply()[0] for caller in callers] == [0] * MANY
    assert_portions_are_bounded(own_queue)


def test_a_key_with_many_due_grants_does_not_delay_other_keys(own_queue: Queue) -> None:
    """The grants' events show the order."""
    own_queue.client.config_set("notify-keyspace-events", "Ed")
    own_queue.acquire("a", key="big")
    own_queue.acquire("a", key="small")
    join(own_queue, [("big", 1, f"b{place}") for place in range(MANY)])
    join(own_queue, [("small", 1, "b")])
    with ExitStack() as stack:
        subscriber = stack.enter_context(own_queue.server.client())
        listener = stack.enter_context(subscriber.pubsub())
        listener.subscribe("__keyevent@0__:rl.take")
        assert listener.get_message(timeout=10)["type"] == "subscribe"
        with own_queue.client.pipeline(transaction=False) as pipeline:
            pipeline.execute_command("RL.ACQUIRE", "big", 1000, "60s", "late")
            pipeline.execute_command("RL.RELEASE", "small", "a")
            pipeline.execute()
        own_queue.until(lambda: own_queue.is_empty, "all are served")
        events = [listener.get_message(timeout=10)["data"] for _ in range(MANY + 1)]
    granted = [event for event in events if event in (b"big", b"small")]
    assert (len(granted), granted.count(b"small")) == (MANY + 1, 1)
    assert granted[-1] == b"big", "the call on the other key is served last"
    assert_portions_are_bounded(own_queue)


def test_info_of_many_queues_lists_16_keys(own_queue: Queue, callers: list[Caller]) -> None:
    assert len(callers) == MANY
    info = own_queue.info()
    assert (info["blocked_clients"], info["blocked_keys"]) == (MANY, MANY)
    # The two fields above, and a row for each of 16 keys.
    assert sum(name.startswith("blocked_") for name in info) == 2 + 16


def test_in_a_cluster_queues_without_events_are_not_checked(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    """The node only checks, for a few keys at a time, whether it still serves their slots."""
    with Queue(fresh_server(cluster_enabled="yes")) as queue:
        queue.client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        queue.until(lambda: is_up(queue, clock), "the cluster is up")
        for key in range(5):
            queue.acquire("a", key=key, ttl="1d")
        callers = join(queue, [(key, 1, "b") for key in range(5)])
        # In a cluster the module has another timer, which was set before the clock was moved.
        queue.until(lambda: queue.info()["looks"] == 5, "each new queue is checked once")
        for _ in range(12):
            # Each round triggers a cron event.
            queue.see_clock(clock)
        assert queue.info()["looks"] == 5
        for key, caller in enumerate(callers):
            queue.release("a", key=key)
            assert caller.reply() == GRANTED


def is_up(queue: Queue, clock: Clock) -> bool:
    """Advances the clock by a second, and returns `True` if the cluster is up."""
    clock.advance("1s")
    return b"cluster_state:ok" in queue.client.execute_command("CLUSTER", "INFO")
