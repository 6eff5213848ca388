"""A step back of the clock makes no key expire before its limiter has recovered.

- The longer of two aligned windows on one key that end at the same instant may be forgotten early.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from conftest import Pair
from support.clock import START_US, UNITS_US, Clock
from support.expiry import check_expiry, expires_at
from support.server import Server
from support.workload import (
    LIMITERS,
    Limiter,
    Word,
    each_limiter,
    each_limiter_on_one_server,
    state,
)

pytestmark = pytest.mark.every_server


@each_limiter
def test_after_a_step_back_of_the_clock_a_denied_call_mends_the_expiry(
    limiter: Limiter, redis: Redis, clock: Clock
) -> None:
    redis.execute_command(*limiter.take("k", 10))
    for back in ("-1s", "-1h", "-300d"):
        clock.advance(back)
        reply = redis.execute_command(*limiter.for_holder("other").take("k", 1))
        assert reply[0] == 0
        check_expiry(redis, clock, reply[4])
        assert redis.pttl("k") * 1000 <= limiter.recovery * 9 // 8 + 1_000_000


@pytest.mark.parametrize("numkeys", [0, 1], ids=["RL.TAKE", "RL.MTAKE"])
def test_charge_after_a_step_back_does_not_reuse_the_old_expiry(
    numkeys: int, redis: Redis, clock: Clock
) -> None:
    bucket = ("TOKENBUCKET", 10, 1, "1s", "COST")

    def take(cost: Word) -> None:
        names = ("RL.MTAKE", 1, "k") if numkeys else ("RL.TAKE", "k")
        redis.execute_command(*names, *bucket, cost)

    take(10)
    clock.advance("5s")
    take(3)
    # 8 units are used, which recover in 8 s. The expiry is an eighth and a second later, minus a
    # spare millisecond.
    assert expires_at(redis) == clock.now // 1000 + 10_000 - 1
    clock.advance(-50_000)
    take("0.1")
    # 8.1 units are used. The old expiry would be within bounds, but was computed by the earlier
    # clock.
    assert expires_at(redis) == (clock.now + 8_100_000 * 9 // 8 + 1_000_000) // 1000 - 1


@each_limiter
def test_a_denied_call_in_mtake_mends_every_expiry_after_a_step_back(
    limiter: Limiter, redis: Redis, clock: Clock
) -> None:
    redis.execute_command(*limiter.take("a", 2))
    redis.execute_command(*limiter.take("b", 9))
    clock.advance("-30d")
    other = limiter.for_holder("other")
    call = ("RL.MTAKE", 2, "a", "b", *other.words(2), *other.words(2))
    allowed, _, decisions = redis.execute_command(*call)
    assert allowed == 0
    for key, decision in zip("ab", decisions, strict=True):
        check_expiry(redis, clock, decision[4], key)


MINUTE = 60 * UNITS_US["s"]


@pytest.mark.parametrize("charged_at_s", [1, 30, 58])
@pytest.mark.parametrize(
    "words",
    [
        ("FIXED", 10, "60s", "ALIGNED"),
        # Other limits, which recover at another time.
        ("FIXED", 10, "1h", "ALIGNED"),
        ("FIXED", 10, "1h"),
        ("FIXED", 10, "1s"),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_after_a_step_back_an_aligned_window_is_remembered_to_its_end(
    words: tuple[Word, ...], charged_at_s: int, redis: Redis, clock: Clock
) -> None:
    begin = START_US // MINUTE * MINUTE
    clock.set(begin + charged_at_s * UNITS_US["s"])
    charge = ("RL.FIXED", "k", 10, "60s", "ALIGNED", "COST", 10)
    assert redis.execute_command(*charge)[0] == 1
    for us_after_begin in (charged_at_s * UNITS_US["s"] - 1, UNITS_US["s"] // 2, 1):
        clock.set(begin + us_after_begin)
        *_, reset_ms = redis.execute_command("RL.TAKE", "k", *words)
        assert expires_at(redis) * 1000 >= max(begin + MINUTE, clock.now + (reset_ms - 1) * 1000)
    clock.set(begin + MINUTE - 1)
    assert redis.execute_command(*charge)[0] == 0, "the limit is granted twice in one window"


@each_limiter_on_one_server
def test_a_promoted_replica_whose_clock_is_behind_forgets_nothing_too_early(
    limiter: Limiter, fresh_server: Callable[..., Server], clock: Clock, tmp_path: Path
) -> None:
    behind = Clock(clock.library, tmp_path / "clock")
    clock.set(START_US // UNITS_US["h"] * UNITS_US["h"] + 59 * MINUTE)
    behind.set(clock.now - 47 * MINUTE)
    primary = fresh_server()
    replica = primary.replica(clock=behind)
    primary.client().execute_command(*limiter.take("k", 10))
    replica.wait_for_sync()
    promoted = replica.client()
    promoted.execute_command("REPLICAOF", "NO", "ONE")
    denied = promoted.execute_command(*limiter.for_holder("other").take("k", 1))
    assert denied[0] == 0
    check_expiry(promoted, behind, denied[4])
    reset_us = denied[4] * 1000
    behind.advance(reset_us - 2000)
    assert promoted.execute_command(*limiter.for_holder("other").take("k", 10))[0] == 0


@each_limiter_on_one_server
def test_many_steps_back_below_a_millisecond_do_not_add_up(
    limiter: Limiter, redis: Redis, clock: Clock
) -> None:
    redis.execute_command(*limiter.take("k", 10))
    denied = limiter.for_holder("other").take("k", 1)
    for _ in range(3000):
        clock.advance(-999)
        *_, reset_ms = redis.execute_command(*denied)
    check_expiry(redis, clock, reset_ms)


@pytest.mark.parametrize("expires_in_s", [60, 90_000_000_000], ids=["soon", "far off"])
def test_an_external_expiry_neither_frees_nor_diverges_after_a_step_back(
    expires_in_s: int, pair: Pair, clock: Clock
) -> None:
    # Moved back with the clock, the first expiry would lie in the past. The second is later than
    # the maximum in an effect.
    with pair.primary.client() as primary, pair.replica.client() as replica:
        for limiter in LIMITERS:
            primary.execute_command(*limiter.take(limiter.name, 10))
        clock.advance("-30m")
        for limiter in LIMITERS:
            primary.expire(limiter.name, expires_in_s)
            for _ in range(2):
                reply = primary.execute_command(*limiter.for_holder("other").take(limiter.name, 1))
                assert reply[0] == 0, limiter.name
            check_expiry(primary, clock, reply[4], limiter.name)
        pair.replica.wait_for_sync()
        assert state(replica) == state(primary)
