"""With full memory and `noeviction`, only calls that would create a key or make one larger are
refused.

* A sketch does not grow either: a call for an item whose cells have no memory yet is refused.
"""

import pytest
from redis import OutOfMemoryError, Redis, ResponseError

from support.clock import Clock
from support.workload import Limiter, Word, each_limiter, state

pytestmark = pytest.mark.every_server


def fill_memory(client: Redis) -> None:
    client.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        client.set("string", "x")


@each_limiter
def test_with_memory_full_a_call_that_would_make_a_key_answers_oom(
    limiter: Limiter, fresh_client: Redis
) -> None:
    fill_memory(fresh_client)
    calls: list[tuple[Word, ...]] = [
        limiter.take("k"),
        ("RL.TAKE", "k", *limiter.words()),
        ("RL.MTAKE", 1, "k", *limiter.words()),
    ]
    if not limiter.has_leases:
        calls += [limiter.take("k", 11, "FORCE"), limiter.take("k", 3, "UPTO")]
    for call in calls:
        with pytest.raises(OutOfMemoryError):
            fresh_client.execute_command(*call)
    assert fresh_client.dbsize() == 0


def test_with_memory_full_throttle_answers_oom_too(fresh_client: Redis) -> None:
    fill_memory(fresh_client)
    with pytest.raises(OutOfMemoryError):
        fresh_client.execute_command("RL.THROTTLE", "k", 5, 1, 1)
    assert fresh_client.dbsize() == 0


@each_limiter
def test_with_memory_full_calls_that_create_no_key_are_answered(
    limiter: Limiter, fresh_client: Redis
) -> None:
    fill_memory(fresh_client)
    missing: list[tuple[Word, ...]] = [
        limiter.take("k", 11),
        limiter.peek("k"),
        limiter.give_back("k"),
        ("RL.MTAKE", 2, "k", "n", *limiter.words(1), "FIXED", 0, "1h"),
        ("RL.MPEEK", 1, "k", *limiter.words()),
        ("RL.INFO", "k"),
    ]
    if not limiter.has_leases:
        missing += [limiter.take("k", 0), limiter.take("k", 0, "FORCE")]
    for call in missing:
        fresh_client.execute_command(*call)
    assert fresh_client.dbsize() == 0


@each_limiter
def test_with_memory_full_existing_limiters_continue(limiter: Limiter, fresh_client: Redis) -> None:
    fresh_client.execute_command(*limiter.take("k", 3))
    fresh_client.execute_command(*limiter.for_holder("other").take("k", 1))
    fill_memory(fresh_client)
    # A log adds to the entry of the same instant; a holder's new lease replaces the old one.
    assert fresh_client.execute_command(*limiter.peek("k"))[:3] == [1, 10, 6]
    assert fresh_client.execute_command(*limiter.for_holder("third").take("k", 7))[:3] == [0, 10, 6]
    units = 5 if limiter.has_leases else 2
    assert fresh_client.execute_command(*limiter.take("k", units))[:3] == [1, 10, 4]
    assert fresh_client.execute_command("RL.TAKE", "k", *limiter.words(units))[0] == 1
    assert fresh_client.execute_command("RL.MTAKE", 1, "k", *limiter.words(units))[0] == 1
    fresh_client.execute_command(*limiter.give_back("k"))
    fresh_client.execute_command(*limiter.for_holder("other").give_back("k"))
    assert fresh_client.dbsize() == 0


def test_with_memory_full_a_log_does_not_grow(fresh_client: Redis, clock: Clock) -> None:
    for _ in range(8):
        fresh_client.execute_command("RL.SLIDINGLOG", "k", 10, "1h")
        clock.advance("1s")
    stored = state(fresh_client)
    fill_memory(fresh_client)
    for call in [
        ("RL.SLIDINGLOG", "k", 10, "1h"),
        ("RL.SLIDINGLOG", "k", 10, "1h", "COST", 50, "FORCE"),
        ("RL.SLIDINGLOG", "k", 10, "1h", "COST", 5, "UPTO"),
        ("RL.MTAKE", 2, "other", "k", "FIXED", 1, "1h", "SLIDINGLOG", 10, "1h"),
    ]:
        with pytest.raises(OutOfMemoryError):
            fresh_client.execute_command(*call)
    assert state(fresh_client) == stored
    assert fresh_client.execute_command("RL.SLIDINGLOG", "k", 10, "1h", "COST", 3)[:3] == [0, 10, 2]
    assert fresh_client.execute_command("RL.PEEK", "k", "SLIDINGLOG", 10, "1h")[:3] == [1, 10, 2]
    assert fresh_client.execute_command("RL.SLIDINGLOG", "k", 10, "1h", "COST", -3)[:3] == [
        1,
        10,
        5,
    ]


def test_with_memory_full_a_log_reuses_the_place_of_old_entries(
    fresh_client: Redis, clock: Clock
) -> None:
    for _ in range(8):
        fresh_client.execute_command("RL.SLIDINGLOG", "k", 10, "1h")
        clock.advance("10m")
    # Three entries have left the window and one is added. The next would be one more.
    fill_memory(fresh_client)
    assert fresh_client.execute_command("RL.SLIDINGLOG", "k", 10, "1h")[:3] == [1, 10, 4]
    clock.advance(1)
    with pytest.raises(OutOfMemoryError):
        fresh_client.execute_command("RL.SLIDINGLOG", "k", 10, "1h")


def test_with_memory_full_a_lease_table_does_not_grow(fresh_client: Redis) -> None:
    fresh_client.execute_command("RL.ACQUIRE", "k", 10, "1h", "a")
    fresh_client.execute_command("RL.ACQUIRE", "k", 10, "1s", "b")
    stored = state(fresh_client)
    fill_memory(fresh_client)
    for call in [
        ("RL.ACQUIRE", "k", 10, "1h", "c"),
        ("RL.TAKE", "k", "CONCURRENCY", 10, "1h", "c"),
        ("RL.MTAKE", 1, "k", "CONCURRENCY", 10, "1h", "c"),
    ]:
        with pytest.raises(OutOfMemoryError):
            fresh_client.execute_command(*call)
    assert state(fresh_client) == stored
    assert fresh_client.execute_command("RL.ACQUIRE", "k", 10, "1h", "a", "COST", 8)[:3] == [
        1,
        10,
        1,
    ]
    assert fresh_client.execute_command("RL.ACQUIRE", "k", 10, "1h", "c", "COST", 2)[0] == 0
    assert fresh_client.execute_command("RL.RELEASE", "k", "b", "c") == 1


def test_with_memory_full_a_lease_table_reuses_the_place_of_expired_leases(
    fresh_client: Redis, clock: Clock
) -> None:
    for holder in ("a", "b", "c"):
        fresh_client.execute_command("RL.ACQUIRE", "k", 10, "1m", holder)
    fresh_client.execute_command("RL.ACQUIRE", "k", 10, "1h", "d")
    clock.advance("1m")
    fill_memory(fresh_client)
    assert fresh_client.execute_command("RL.ACQUIRE", "k", 10, "1h", "e")[:3] == [1, 10, 8]


def sketch_calls(item: str) -> list[tuple[Word, ...]]:
    """Returns a call of one unit of an item for each command that charges a sketch."""
    limit = ("SKETCH", 3, 1, "1h")
    return [
        ("RL.SKETCH", "k", item, 3, 1, "1h"),
        ("RL.SKETCH", "k", item, 3, 1, "1h", "COST", 5, "UPTO"),
        ("RL.SKETCH", "k", item, 3, 1, "1h", "COST", 5, "FORCE"),
        ("RL.TAKE", "k", *limit, item),
        ("RL.TAKE", "k", *limit, item, "KEEP", 1),
        ("RL.MTAKE", 1, "k", *limit, item),
        ("RL.LIMIT", "k", "p", "ITEM", item),
    ]


def test_with_memory_full_a_sketch_gets_no_new_piece(fresh_client: Redis) -> None:
    fresh_client.execute_command("RL.POLICYSET", "p", "SKETCH", 3, 1, "1h")
    fresh_client.execute_command("RL.SKETCH", "k", "known", 3, 1, "1h", "SIZE", "1mb")
    fill_memory(fresh_client)
    stored = state(fresh_client), fresh_client.memory_usage("k")
    # The cells of most items are in pieces of their own, as with items that an attacker chooses.
    for number in range(20):
        for call in sketch_calls(f"item {number}"):
            with pytest.raises(OutOfMemoryError):
                fresh_client.execute_command(*call)
    assert (state(fresh_client), fresh_client.memory_usage("k")) == stored
    # Calls that need no memory are answered.
    assert fresh_client.execute_command("RL.SKETCH", "k", "new", 3, 1, "1h", "COST", 4)[0] == 0
    assert fresh_client.execute_command("RL.PEEK", "k", "SKETCH", 3, 1, "1h", "new")[:3] == [
        1,
        3,
        3,
    ]
    for remaining in (1, 0):
        assert fresh_client.execute_command("RL.SKETCH", "k", "known", 3, 1, "1h")[:3] == [
            1,
            3,
            remaining,
        ]
    assert fresh_client.execute_command("RL.SKETCH", "k", "known", 3, 1, "1h")[0] == 0
    assert fresh_client.memory_usage("k") == stored[1]


def test_with_memory_full_a_sketch_in_shadow_mode_is_left_out(fresh_client: Redis) -> None:
    fresh_client.execute_command("RL.POLICYSET", "p", "SKETCH", 3, 1, "1h", "SHADOW")
    fresh_client.execute_command("RL.SKETCH", "k", "known", 3, 1, "1h", "SIZE", "1mb")
    fill_memory(fresh_client)
    stored = fresh_client.memory_usage("k")
    assert fresh_client.execute_command("RL.LIMIT", "k", "p", "ITEM", "new")[0] == 1
    assert fresh_client.memory_usage("k") == stored


def test_with_memory_full_a_key_gets_no_more_limits_and_ids(fresh_client: Redis) -> None:
    spec = ("FIXED", 10, "1h")
    fresh_client.execute_command("RL.TAKE", "k", *spec, "AS", "a", "ONCE", "id", "1h")
    fresh_client.execute_command("RL.TAKE", "plain", *spec)
    stored = state(fresh_client)
    fill_memory(fresh_client)
    for call in [
        ("RL.TAKE", "k", *spec, "AS", "b"),
        ("RL.TAKE", "k", *spec, "AS", "a", "SLIDING", 10, "1h"),
        ("RL.TAKE", "k", *spec, "AS", "a", "ONCE", "other", "1h"),
        ("RL.ACQUIRE", "k", 10, "1h", "holder"),
        ("RL.MTAKE", 2, "plain", "k", *spec, *spec, "AS", "b"),
        ("RL.TAKE", "plain", *spec, "SLIDING", 10, "1h"),
        ("RL.TAKE", "plain", *spec, "ONCE", "id", "1h"),
        ("RL.BAN", "plain", "1m"),
        ("RL.BAN", "missing", "1m"),
        ("RL.TAKE", "missing", *spec, *spec, "AS", "a"),
    ]:
        with pytest.raises(OutOfMemoryError):
            fresh_client.execute_command(*call)
    assert state(fresh_client) == stored


def test_with_memory_full_existing_limits_of_a_key_continue(fresh_client: Redis) -> None:
    named = ("FIXED", 10, "1h", "AS", "a")
    fresh_client.execute_command("RL.TAKE", "k", *named, "COST", 4, "ONCE", "id", "1h")
    fill_memory(fresh_client)
    for call, remaining in [
        # A repeated id charges nothing.
        (("RL.TAKE", "k", *named, "COST", 4, "ONCE", "id", "1h"), 6),
        (("RL.TAKE", "k", *named, "COST", 1), 5),
        (("RL.TAKE", "k", *named, "SETTLE", "id", 1), 8),
        (("RL.PEEK", "k", *named, "SLIDING", 10, "1h"), 8),
        (("RL.TAKE", "k", *named, "COST", -1), 9),
    ]:
        reply = fresh_client.execute_command(*call)
        assert (reply[0], reply[2]) == (1, remaining), call
    # A denied call adds neither a limit nor a ban.
    denied = ("RL.TAKE", "k", "COST", 20, *named, "SLIDING", 10, "1h", "BAN", 1, "1m", "1h")
    assert fresh_client.execute_command(*denied)[0] == 0
    assert fresh_client.execute_command("RL.BAN", "k", "1m") == 60_000
    assert fresh_client.execute_command("RL.BAN", "k", 0) == 0
    assert fresh_client.execute_command("RL.BAN", "missing", 0) == 0


def test_with_memory_full_mtake_charges_all_or_nothing(fresh_client: Redis) -> None:
    fresh_client.execute_command("RL.FIXED", "k", 10, "1h")
    stored = state(fresh_client)
    fill_memory(fresh_client)
    call = ("RL.MTAKE", 2, "k", "new", "FIXED", 10, "1h", "FIXED", 10, "1h")
    with pytest.raises(OutOfMemoryError):
        fresh_client.execute_command(*call)
    assert state(fresh_client) == stored
    # With a cost of 0 for the second key, the call creates no key.
    assert fresh_client.execute_command(*call, "COST", 0)[0] == 1
    assert fresh_client.dbsize() == 1


def test_with_memory_full_a_script_gets_the_same_error(fresh_client: Redis) -> None:
    fresh_client.execute_command("RL.FIXED", "k", 10, "1h")
    fill_memory(fresh_client)
    script = "return redis.call('RL.FIXED', KEYS[1], 10, '1h')"
    assert fresh_client.eval(script, 1, "k")[:3] == [1, 10, 8]
    with pytest.raises(ResponseError, match="maxmemory"):
        fresh_client.eval(script, 1, "new")
    assert fresh_client.dbsize() == 1


def test_keys_are_created_once_memory_is_free(fresh_client: Redis) -> None:
    fill_memory(fresh_client)
    with pytest.raises(OutOfMemoryError):
        fresh_client.execute_command("RL.FIXED", "k", 10, "1h")
    fresh_client.config_set("maxmemory", 0)
    assert fresh_client.execute_command("RL.FIXED", "k", 10, "1h")[:3] == [1, 10, 9]
