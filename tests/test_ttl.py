"""No key expires before its limiter has recovered, and each is gone at most an eighth of that time
and a second later.

- `EXPIRE`, `PERSIST`, `DEL` and `RESTORE` by hand do what they say. The next charge corrects a TTL.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from support import poll
from support.clock import START_US, UNITS_US, Clock
from support.expiry import check_expiry, expires_at
from support.workload import (
    LIMITERS,
    Limiter,
    each_limiter,
    state,
)

pytestmark = pytest.mark.every_server

HOUR_MS = 3_600_000


@each_limiter
@pytest.mark.parametrize("cost", ["0.000001", 1, 10])
def test_a_first_charge_sets_the_expiry_to_the_recovery(
    cost: str | int, limiter: Limiter, redis: Redis, clock: Clock
) -> None:
    reply = redis.execute_command(*limiter.take("k", cost))
    assert reply[0] == 1
    check_expiry(redis, clock, reply[4])


def test_throttle_and_mtake_set_the_expiry_too(redis: Redis, clock: Clock) -> None:
    *_, reset_s = redis.execute_command("RL.THROTTLE", "throttled", 9, 10, 3600, 4)
    check_expiry(redis, clock, reset_s * 1000, "throttled")
    specs = [word for limiter in LIMITERS for word in limiter.words(2)]
    names = [limiter.name for limiter in LIMITERS]
    _, _, decisions = redis.execute_command("RL.MTAKE", len(names), *names, *specs)
    for name, decision in zip(names, decisions, strict=True):
        check_expiry(redis, clock, decision[4], name)


@each_limiter
def test_every_further_charge_keeps_the_expiry_within_its_bounds(
    limiter: Limiter, redis: Redis, clock: Clock
) -> None:
    for number in range(40):
        reply = redis.execute_command(*limiter.for_holder(f"{number}").take("k", "0.3"))
        if reply[0]:
            check_expiry(redis, clock, reply[4])
        clock.advance("117s")


@each_limiter
def test_an_expiry_that_is_late_but_within_its_bounds_is_left_alone(
    limiter: Limiter, redis: Redis
) -> None:
    redis.execute_command(*limiter.take("k", 5))
    before = expires_at(redis)
    redis.execute_command(*limiter.for_holder("other").take("k", "0.000001"))
    assert expires_at(redis) == before


durations = st.sampled_from(["1ms", "999us", "1s", "1m", "1h", "30d", "3650d"])
costs = st.sampled_from([["COST", "-2"], ["COST", "-0.5"], ["COST", "5", "FORCE"], ["COST", "1"]])
moves = st.one_of(
    st.just(0),
    st.integers(0, 10**6),
    st.integers(0, 10**4).map(lambda seconds: seconds * 10**6),
    st.integers(-(10**8), 0),
)
calls = st.lists(st.tuples(moves, durations, costs), min_size=1, max_size=12)


@each_limiter
@settings(max_examples=25)
@given(calls)
def test_no_sequence_of_charges_lets_a_key_expire_before_its_recovery(
    limiter: Limiter, redis: Redis, clock: Clock, calls: list[tuple[int, str, list[str]]]
) -> None:
    redis.flushall()
    clock.set(START_US)
    algorithm, *rest = limiter.spec
    for number, (move, duration, cost) in enumerate(calls):
        clock.advance(move)
        words = [duration if word == "1h" else word for word in rest]
        if limiter.has_leases:
            words[2] = f"holder {number % 3}"
            if cost[1].startswith("-"):
                redis.execute_command("RL.RELEASE", "k", words[2])
                assert redis.pttl("k") != -1
                continue
        # A limit so high that it denies no charge. That of a bucket must be lower, as otherwise it
        # takes too long to recover.
        words[0] = 100 if algorithm.endswith("BUCKET") else 10**12
        options = cost[:2] if limiter.has_leases else cost
        *_, reset_ms = redis.execute_command("RL.TAKE", "k", algorithm, *words, *options)
        if redis.exists("k"):
            check_expiry(redis, clock, reset_ms)
        else:
            assert reset_ms == 0


@each_limiter
def test_calls_without_change_keep_the_expiry(limiter: Limiter, redis: Redis, clock: Clock) -> None:
    redis.execute_command(*limiter.take("k", 7))
    before = state(redis)
    clock.advance("3m")
    other = limiter.for_holder("other")
    calls = [
        other.take("k", 9),
        other.take("k", 11),
        other.peek("k"),
        other.peek("k", 9),
        ("RL.MTAKE", 2, "k", "missing", *other.words(1), "FIXED", 0, "1h"),
        ("RL.MPEEK", 1, "k", *other.words(1)),
        ("RL.INFO", "k"),
    ]
    if limiter.has_leases:
        calls += [("RL.RELEASE", "k", "nobody")]
    else:
        calls += [limiter.take("k", 0), limiter.take("k", 0, "FORCE"), limiter.take("k", "-0")]
    for call in calls:
        redis.execute_command(*call)
        assert state(redis) == before, call


@each_limiter
def test_a_charge_mends_a_key_without_an_expiry(
    limiter: Limiter, redis: Redis, clock: Clock
) -> None:
    redis.execute_command(*limiter.take("k", 7))
    redis.persist("k")
    assert expires_at(redis) == -1
    redis.execute_command(*limiter.for_holder("other").take("k", 9))
    assert expires_at(redis) == -1
    reply = redis.execute_command(*limiter.for_holder("other").take("k", 1))
    check_expiry(redis, clock, reply[4])


@each_limiter
def test_a_charge_mends_a_key_that_was_restored_without_an_expiry(
    limiter: Limiter, redis: Redis, clock: Clock
) -> None:
    redis.execute_command(*limiter.take("k", 7))
    redis.restore("k", 0, redis.dump("k"), replace=True)
    assert expires_at(redis) == -1
    reply = redis.execute_command(*limiter.for_holder("other").take("k", 1))
    check_expiry(redis, clock, reply[4])


@each_limiter
def test_a_charge_mends_an_expiry_that_was_set_too_early_or_too_late(
    limiter: Limiter, redis: Redis, clock: Clock
) -> None:
    *_, reset_ms = redis.execute_command(*limiter.take("k", 7))
    latest_ms = reset_ms * 9 // 8 + 1000
    for wrong_ms in (1, reset_ms - 1, latest_ms + 2, 1000 * HOUR_MS):
        redis.pexpire("k", wrong_ms)
        *_, reset_ms = redis.execute_command(*limiter.take("k", "0.000001"))
        check_expiry(redis, clock, reset_ms)


def test_a_give_back_mends_a_key_without_an_expiry(redis: Redis, clock: Clock) -> None:
    for limiter in LIMITERS:
        redis.execute_command(*limiter.take(limiter.name, 3))
        redis.execute_command(*limiter.for_holder("other").take(limiter.name, 3))
        redis.persist(limiter.name)
        redis.execute_command(*limiter.give_back(limiter.name, 2))
        *_, reset_ms = redis.execute_command(*limiter.peek(limiter.name))
        check_expiry(redis, clock, reset_ms, limiter.name)


@pytest.mark.parametrize(
    ("limiter", "expected_reset_ms"),
    [
        # 10 units take an hour to recover, and the 2 that remain charged a fifth of it.
        pytest.param(LIMITERS[0], HOUR_MS // 10 * 2, id="TOKENBUCKET"),
        pytest.param(LIMITERS[1], HOUR_MS // 10 * 2, id="LEAKYBUCKET"),
    ],
)
def test_a_give_back_shortens_the_life_of_a_bucket(
    limiter: Limiter, expected_reset_ms: int, redis: Redis, clock: Clock
) -> None:
    redis.execute_command(*limiter.take("k", 9))
    *_, reset_ms = redis.execute_command(*limiter.take("k", -7))
    assert reset_ms == expected_reset_ms
    check_expiry(redis, clock, reset_ms)


def test_a_release_shortens_the_life_of_a_lease_table(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.ACQUIRE", "k", 10, "1h", "long")
    redis.execute_command("RL.ACQUIRE", "k", 10, "1m", "short")
    redis.execute_command("RL.RELEASE", "k", "long")
    check_expiry(redis, clock, 60_000)


def test_a_key_with_several_limits_expires_with_the_longest(redis: Redis, clock: Clock) -> None:
    take = ("RL.TAKE", "k")
    redis.execute_command(*take, "FIXED", 10, "1m", "SLIDINGLOG", 10, "1h")
    check_expiry(redis, clock, 3_600_000)
    redis.execute_command(*take, "FIXED", 10, "1m", "ONCE", "id", "2h")
    check_expiry(redis, clock, 7_200_000)
    redis.execute_command("RL.BAN", "k", "3h")
    check_expiry(redis, clock, 10_800_000)
    redis.execute_command("RL.BAN", "k", 0)
    check_expiry(redis, clock, 7_200_000)
    redis.execute_command(*take, "FIXED", 1, "1m", "BAN", 3, "5h", "1s")
    check_expiry(redis, clock, 18_000_000)


def test_a_shorter_window_shortens_the_life_of_a_key(redis: Redis, clock: Clock) -> None:
    for limiter in LIMITERS[2:-1]:
        redis.execute_command(*limiter.take("k", 5))
        shorter = [word if word != "1h" else "1m" for word in limiter.take("k", 1)]
        *_, reset_ms = redis.execute_command(*shorter)
        assert reset_ms <= 2 * 61_000
        check_expiry(redis, clock, reset_ms)
        redis.delete("k")


@each_limiter
def test_a_key_exists_until_the_last_millisecond_before_its_recovery(
    limiter: Limiter, redis: Redis, clock: Clock
) -> None:
    *_, reset_ms = redis.execute_command(*limiter.take("k", 7))
    clock.advance((reset_ms - 1) * 1000)
    assert redis.exists("k")
    assert redis.execute_command(*limiter.peek("k"))[4] == 1
    clock.advance(1000)
    assert redis.execute_command(*limiter.peek("k"))[2:] == [10, 0, 0]


@each_limiter
def test_an_idle_key_is_gone_after_its_recovery_and_the_slack(
    limiter: Limiter, redis: Redis, clock: Clock
) -> None:
    *_, reset_ms = redis.execute_command(*limiter.take("k", 7))
    # A key is expired for the server when its last millisecond is over.
    clock.advance(reset_ms * 1000 * 9 // 8 + 1_001_000)
    assert not redis.exists("k")
    assert redis.dbsize() == 0


def test_unused_keys_are_removed_in_the_background(redis: Redis, clock: Clock) -> None:
    for limiter in LIMITERS:
        for number in range(10):
            redis.execute_command(*limiter.take(f"{limiter.name} {number}", 7))
    clock.advance("3h")
    poll.until(lambda: redis.dbsize() == 0, "all have expired")


def test_the_longest_recovery_has_an_expiry(redis: Redis, clock: Clock) -> None:
    # A debt beyond the maximum time saturates at 365000 days.
    for cost in (1, 10**12):
        reply = redis.execute_command("RL.TOKENBUCKET", "k", 1, 1, "3650d", "COST", cost, "FORCE")
        check_expiry(redis, clock, reply[4])
    assert reply[4] == 365_000 * UNITS_US["d"] // 1000
    for command in ("FIXED", "SLIDING", "SLIDINGLOG"):
        reply = redis.execute_command(f"RL.{command}", command, 10, "3650d")
        check_expiry(redis, clock, reply[4], command)


def test_the_shortest_recovery_has_an_expiry(redis: Redis, clock: Clock) -> None:
    clock.advance(1)
    for limiter in LIMITERS:
        words = [word if word != "1h" else "1us" for word in limiter.take(limiter.name, 1)]
        *_, reset_ms = redis.execute_command(*words)
        assert reset_ms == 1
        check_expiry(redis, clock, reset_ms, limiter.name)
