"""Waiting calls have the options of other calls. A call that cannot block is answered at once."""

import pytest
from redis import ResponseError

from support import modules, poll
from support.binaries import NO_MODULE_CONFIG
from support.clock import Clock
from support.waiting import DENIED, GRANTED, Queue, error_of
from support.waiting_calls import POOL, Start
from support.workload import Word

pytestmark = pytest.mark.every_server


# Options


def test_a_waiting_call_has_the_options_of_other_calls(queue: Queue, clock: Clock) -> None:
    """Compares its reply with that of the same call to a twin key at the time of the grant."""
    for options in (
        ("COST", "2.5"),
        ("KEEP", 2),
        ("KEEP", "50%", "COST", 2),
        ("AS", "pool"),
        ("NX",),
        ("NX", "KEEP", 1, "AS", "pool", "COST", "0.000001"),
    ):
        queue.client.flushall()
        name_option = ("AS", "pool") if "AS" in options else ()
        for key in ("k", "twin"):
            queue.acquire("a", "COST", 4, *name_option, key=key, limit=4)
        waiter = queue.join("b", *options, limit=4)
        clock.advance("1s")
        for key in ("k", "twin"):
            queue.release("a", key=key)
        expected = queue.acquire("b", *options, key="twin", limit=4)
        assert expected[0] == 1, options
        assert waiter.reply() == expected, options
        assert queue.client.dump("k") == queue.client.dump("twin"), options


def test_kept_units_are_not_granted_to_waiting_calls(queue: Queue) -> None:
    queue.acquire("a", "COST", 3, limit=4)
    b = queue.join("b", "KEEP", 2, limit=4)
    # Two units are free, and KEEP reserves two.
    queue.acquire("a", "COST", 2, limit=4)
    queue.settle()
    assert not b.is_answered
    queue.acquire("a", limit=4)
    assert b.reply()[0] == 1


@pytest.mark.parametrize("position", range(4))
def test_block_is_accepted_anywhere_among_the_options(
    queue: Queue, clock: Clock, position: int
) -> None:
    options: list[tuple[Word, ...]] = [("COST", 1), ("KEEP", 0), ("NX",)]
    options.insert(position, ("block", "10s"))
    queue.acquire("a")
    words = [word for option in options for word in option]
    b = queue.send("RL.ACQUIRE", "k", 1, "60s", "b", *words)
    poll.until(lambda: queue.blocked == 1, "the call waits")
    clock.advance("10s")
    assert b.reply() == [0, 1, 0, 50_000, 50_000]


def test_a_lock_waits_for_its_own_holder_too(queue: Queue, clock: Clock) -> None:
    queue.acquire("a", "NX")
    same = queue.join("a", "NX")
    clock.advance("60s")
    assert same.reply() == GRANTED
    again = queue.join("a", "NX")
    queue.release("a")
    assert again.reply() == GRANTED


def test_a_key_with_several_limits_has_a_queue_too(queue: Queue) -> None:
    take = ("RL.TAKE", "k", "FIXED", 5, "1h", "CONCURRENCY", 1, "60s")
    assert queue.client.execute_command(*take, "a")[0] == 1
    b, c = queue.join_all("b", "c")
    assert queue.client.type("k") == b"rl-limits"
    assert queue.client.execute_command(*take, "late")[:3] == [0, 1, 0]
    for holder, waiter in (("a", b), ("b", c)):
        assert queue.release(holder) == 1
        assert waiter.reply()[:4] == [1, 1, 0, 0]
    # The other limit was charged once.
    assert queue.client.execute_command("RL.PEEK", "k", "FIXED", 5, "1h")[2] == 4


def test_a_settlement_that_releases_a_lease_serves_waiting_calls(queue: Queue) -> None:
    queue.client.execute_command("RL.POLICYSET", "pool", "CONCURRENCY", 1, "60s")
    queue.client.execute_command("RL.LIMIT", "k", "pool", "ONCE", "a", "1h")
    b = queue.join("b")
    queue.client.execute_command("RL.LIMIT", "k", "pool", "SETTLE", "a", 0)
    assert b.reply()[:4] == [1, 1, 0, 0]


NOT_DURATIONS = ["x", "", "5w", "inf"]
OUT_OF_RANGE = [
    *("-1", "-0.5s", "3651d"),
    # Only a bare 0 means no deadline. A caller may compute `0ms` as the rest of its timeout.
    *("0ms", "0.0", "-0", "00"),
]


@pytest.mark.parametrize("block", [*NOT_DURATIONS, *OUT_OF_RANGE])
def test_invalid_duration_error_lists_the_valid_forms(queue: Queue, block: str) -> None:
    valid_range = " from 1us to 3650d," if block in OUT_OF_RANGE else ""
    expected = f"block must be 0 (no end) or a duration{valid_range} such as 5s, not '{block}'"
    for holder in ("a", "b"):
        assert expected in error_of(lambda holder=holder: queue.acquire(holder, "BLOCK", block))
    assert not queue.client.exists("k")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("BLOCK",), "block is missing: BLOCK duration"),
        (("BLOCK", "1s", "BLOCK", "1s"), "syntax error, unexpected 'BLOCK'"),
    ],
)
def test_block_is_accepted_once_with_a_duration(
    queue: Queue, options: tuple[Word, ...], error: str
) -> None:
    assert error in error_of(lambda: queue.acquire("a", *options))


@pytest.mark.parametrize(
    "call",
    [
        "RL.TAKE k CONCURRENCY 1 60s a BLOCK 1s",
        "RL.PEEK k CONCURRENCY 1 60s a BLOCK 1s",
        "RL.MTAKE 2 k j CONCURRENCY 1 60s a BLOCK 1s CONCURRENCY 1 60s a",
        "RL.POLICYSET p CONCURRENCY 1 60s BLOCK 1s",
        "RL.TAKE k BLOCK 1s CONCURRENCY 1 60s a",
        "RL.MTAKE 1 k CONCURRENCY 1 60s a BLOCK 1s",
        "RL.LIMIT k pool ONCE a 1m BLOCK 1s",
    ],
)
def test_misplaced_block_is_an_error_that_names_its_place(queue: Queue, call: str) -> None:
    queue.client.execute_command(*POOL)
    error = error_of(lambda: queue.client.execute_command(*call.split()))
    assert "syntax error, unexpected 'BLOCK'" in error
    assert "RL.ACQUIRE" in error


# Contexts that cannot block

BLOCKING_CALL = ("RL.ACQUIRE", "k", 1, "60s", "b", "BLOCK", 0)


def test_a_waiting_call_in_a_transaction_is_answered_at_once(queue: Queue) -> None:
    queue.acquire("a")
    with queue.client.pipeline(transaction=True) as pipeline:
        pipeline.execute_command(*BLOCKING_CALL)
        pipeline.ping()
        assert pipeline.execute() == [DENIED, True]
    assert queue.is_empty


def test_a_waiting_call_in_a_script_is_answered_at_once(queue: Queue) -> None:
    queue.acquire("a")
    script = "return redis.call(unpack(ARGV))"
    assert queue.client.eval(script, 1, "k", *BLOCKING_CALL) == DENIED
    queue.release("a")
    assert queue.client.eval(script, 1, "k", *BLOCKING_CALL) == GRANTED


def test_a_waiting_call_in_a_function_is_answered_at_once(queue: Queue) -> None:
    if queue.server.version < (7,):
        pytest.skip("functions came with 7.0")
    library = (
        "#!lua name=waiting\nredis.register_function('ask', "
        "function(keys, args) return redis.call(unpack(args)) end)"
    )
    queue.client.function_load(library, replace=True)
    queue.acquire("a")
    assert queue.client.fcall("ask", 1, "k", *BLOCKING_CALL) == DENIED
    queue.client.function_delete("waiting")


def test_a_waiting_call_from_a_module_that_cannot_block_is_answered_at_once(
    fresh_server: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    asker = modules.build("asker", tmp_path_factory.mktemp("asker"))
    with Queue(fresh_server(others=[asker])) as queue:
        queue.acquire("a")
        assert queue.client.execute_command("ASKER.CALL", *BLOCKING_CALL) == DENIED
        assert queue.is_empty
        b = queue.join("b")
        assert queue.client.execute_command("ASKER.CALL", "RL.RELEASE", "k", "a") == 1
        assert b.reply() == GRANTED


# Maximum number of waiting callers


def assert_two_may_wait(queue: Queue) -> None:
    queue.acquire("a")
    older, c = queue.join_all("b", "c")
    # The second call of a waiting holder takes the place of the first.
    b = queue.join("b")
    assert older.reply() == DENIED
    expected = "the key has 2 entries, as many as ratelimit.max-blocked allows"
    assert expected in error_of(lambda: queue.acquire("d", "BLOCK", 0))
    # Two calls of a holder do not count twice.
    newer = queue.join("b")
    assert b.reply() == DENIED
    b = newer
    # Calls that would not wait, or that wait for another key, are answered as usual.
    assert queue.acquire("d") == DENIED
    queue.acquire("a", key="j")
    queue.join("d", key="j")
    queue.release("a")
    assert b.reply() == GRANTED
    d = queue.join("d")
    queue.release("b")
    assert c.reply() == GRANTED
    queue.release("c")
    assert d.reply() == GRANTED


def test_a_module_argument_limits_the_waiting_calls_of_a_key(fresh_server: Start) -> None:
    with Queue(fresh_server(module_args="max-blocked 2")) as queue:
        assert_two_may_wait(queue)


def test_config_set_limits_the_waiting_calls_of_a_key(own_queue: Queue) -> None:
    if not own_queue.server.binary.has_module_config:
        pytest.skip(NO_MODULE_CONFIG)
    name = "ratelimit.max-blocked"
    assert own_queue.client.config_get(name) == {name: "10000"}
    for wrong in (0, -1, 10_000_001, "x"):
        with pytest.raises(ResponseError):
            own_queue.client.config_set(name, wrong)
    own_queue.client.config_set(name, 2)
    assert_two_may_wait(own_queue)
