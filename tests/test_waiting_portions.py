"""Many waiting calls are served in portions, between which the server serves other calls.

The tests count the portions instead of timing them, as the clock stands still.
"""

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from support.clock import Clock
from support.server import Server
from support.waiting import GRANTED, Caller, Queue

# Maximum queue checks and replies of one portion, and a number above it.
MOST, MANY = 100, 270


@pytest.fixture
def keys(own_queue: Queue) -> list[Caller]:
    """Starts one waiting call for each of many keys."""
    with own_queue.client.pipeline(transaction=False) as pipeline:
        for key in range(MANY):
            pipeline.execute_command("RL.ACQUIRE", key, 1, "60s", "a")
        pipeline.execute()
    return join(own_queue, [(key, 1, "b") for key in range(MANY)])


def join(queue: Queue, calls: list[tuple[int | str, int, str]], block: str = "0") -> list[Caller]:
    before = queue.blocked
    callers = [
        queue.send("RL.ACQUIRE", key, limit, "60s", holder, "BLOCK", block)
        for key, limit, holder in calls
    ]
    queue.until(lambda: queue.blocked == before + len(calls), "all wait")
    queue.settle()
    return callers


def is_bounded(queue: Queue) -> None:
    busiest = queue.info()["busiest_turn"]
    assert isinstance(busiest, int)
    assert MOST // 2 <= busiest <= MOST


@pytest.mark.parametrize("command", ["FLUSHALL", "SWAPDB 0 1"])
def test_events_that_may_affect_every_key_are_handled_in_several_portions(
    own_queue: Queue, keys: list[Caller], command: str
) -> None:
    own_queue.client.execute_command(*command.split())
    assert [caller.reply() for caller in keys] == [GRANTED] * MANY
    is_bounded(own_queue)


def test_a_clock_set_back_is_handled_in_several_portions(
    own_queue: Queue, keys: list[Caller], clock: Clock
) -> None:
    looks = own_queue.info()["looks"]
    clock.advance(-3_600_000_000)
    # The clock takes the leases back with it: each queue is checked once.
    own_queue.until(lambda: own_queue.info()["looks"] == looks + MANY, "all are looked at")
    assert not any(caller.is_answered for caller in keys)
    clock.advance("60s")
    assert [caller.reply() for caller in keys] == [GRANTED] * MANY
    is_bounded(own_queue)


def test_leases_that_expire_together_are_handled_in_several_portions(
    own_queue: Queue, keys: list[Caller], clock: Clock
) -> None:
    clock.advance("60s")
    assert [caller.reply() for caller in keys] == [GRANTED] * MANY
    is_bounded(own_queue)


def test_waits_that_end_together_are_handled_in_several_portions(
    own_queue: Queue, clock: Clock
) -> None:
    own_queue.acquire("a")
    callers = join(own_queue, [("k", 1, f"b{place}") for place in range(MANY)], block="10s")
    clock.advance("10s")
    assert [caller.reply() for caller in callers] == [[0, 1, 0, 50_000, 50_000]] * MANY
    is_bounded(own_queue)


def test_many_calls_that_give_up_at_once_are_answered_in_several_portions(own_queue: Queue) -> None:
    own_queue.acquire("a")
    holders = [f"b{place}" for place in range(MANY)]
    callers = join(own_queue, [("k", 1, holder) for holder in holders])
    own_queue.client.execute_command("RL.RELEASE", "k", *holders)
    assert [caller.reply()[0] for caller in callers] == [0] * MANY
    is_bounded(own_queue)


def test_a_key_with_many_due_grants_does_not_delay_other_keys(own_queue: Queue) -> None:
    """The grants' events show the order."""
    own_queue.client.config_set("notify-keyspace-events", "Ed")
    own_queue.acquire("a", key="big")
    own_queue.acquire("a", key="small")
    join(own_queue, [("big", 1, f"b{place}") for place in range(MANY)])
    join(own_queue, [("small", 1, "b")])
    with ExitStack() as closing:
        subscriber = closing.enter_context(own_queue.server.client())
        listener = closing.enter_context(subscriber.pubsub())
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
    # Not behind all of the others.
    assert granted[-1] == b"big"
    is_bounded(own_queue)


def test_info_of_many_queues_names_the_longest(own_queue: Queue, keys: list[Caller]) -> None:
    assert len(keys) == MANY
    info = own_queue.info()
    assert (info["blocked_clients"], info["blocked_keys"]) == (MANY, MANY)
    assert sum(name.startswith("blocked_") for name in info) == 2 + 16


def test_in_a_cluster_keys_to_which_nothing_happens_are_not_looked_at(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    """The node only checks, a few at a time, whether it still serves their slots."""
    with Queue(fresh_server(cluster_enabled="yes")) as queue:
        queue.client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        queue.until(lambda: is_up(queue, clock), "the cluster is up")
        for key in range(5):
            queue.acquire("a", key=key, ttl="1d")
        callers = join(queue, [(key, 1, "b") for key in range(5)])
        # In a cluster the module has another timer, which was sleeping when the clock was moved.
        queue.until(lambda: queue.info()["looks"] == 5, "each is checked as it joins")
        for _ in range(12):
            # Each round triggers a cron event.
            queue.see_clock(clock)
        assert queue.info()["looks"] == 5
        for key, caller in enumerate(callers):
            queue.release("a", key=key)
            assert caller.reply() == GRANTED


def is_up(queue: Queue, clock: Clock) -> bool:
    clock.advance("1s")
    return b"cluster_state:ok" in queue.client.execute_command("CLUSTER", "INFO")
