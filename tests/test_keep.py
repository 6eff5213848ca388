"""KEEP leaves units for other callers, and NX gives a holder at most one lease."""

import pytest
from redis import Redis, ResponseError

from support.clock import Clock
from support.server import Server
from support.workload import LIMITERS, Limiter

each_limiter = pytest.mark.parametrize(
    "limiter", LIMITERS, ids=[limiter.name for limiter in LIMITERS]
)
RATES = [limiter for limiter in LIMITERS if not limiter.has_leases]
each_rate = pytest.mark.parametrize("limiter", RATES, ids=[limiter.name for limiter in RATES])


def take(redis: Redis, limiter: Limiter, cost: object, *options: object) -> list[int]:
    """Calls the limiter's own command; each call for a lease has a new holder."""
    return redis.execute_command(*limiter.for_holder(f"{cost} {options}").take("k", cost, *options))


@each_limiter
@pytest.mark.parametrize("keep", [("KEEP", 3), ("KEEP", "30%"), ("keep", "2.9999999")])
def test_a_call_with_keep_leaves_these_units_to_others(
    redis: Redis, limiter: Limiter, keep: tuple[object, ...]
) -> None:
    denied = take(redis, limiter, 8, *keep)
    assert denied[:4] == [0, 10, 7, -1], "the cost and the kept units exceed the limit"
    taken = take(redis, limiter, 7, *keep)
    # The reply shows the full limit, and the remaining units without the kept ones.
    assert taken[:3] == [1, 10, 0]
    assert take(redis, limiter, 1, *keep)[:3] == [0, 10, 0]
    assert take(redis, limiter, 1)[:3] == [1, 10, 2]
    assert take(redis, limiter, 2)[:3] == [1, 10, 0]
    assert take(redis, limiter, 2, *keep)[:3] == [0, 10, 0]


@each_limiter
def test_a_wait_with_keep_lasts_until_these_units_remain(
    redis: Redis, clock: Clock, limiter: Limiter
) -> None:
    for cost in (4, 5):
        assert take(redis, limiter, cost)[0] == 1
        clock.advance("2m")
    options = ("COST", 2, "KEEP", "10%")
    wait_ms = redis.execute_command("RL.PEEK", "k", *limiter.for_holder("new").spec, *options)[3]
    assert wait_ms > 0
    # A call with a higher cost in place of the kept units waits as long.
    assert wait_ms == redis.execute_command(*limiter.for_holder("new").peek("k", 3))[3]
    now = clock.now
    for ms, allowed in ((wait_ms - 1, 0), (wait_ms, 1)):
        clock.set(now + ms * 1000)
        reply = redis.execute_command("RL.TAKE", "k", *limiter.for_holder("new").spec, *options)
        assert reply[0] == allowed, f"after {ms} of {wait_ms} ms"


@each_rate
def test_upto_grants_the_units_that_are_not_kept(redis: Redis, limiter: Limiter) -> None:
    assert take(redis, limiter, 2)[0] == 1
    reply = take(redis, limiter, 100, "UPTO", "KEEP", "45%")
    # 8 units remain, of which 4.5 are kept: 3 whole units are granted.
    assert (reply[0], reply[1], reply[2], reply[5]) == (1, 10, 0, 3)
    reply = take(redis, limiter, 100, "UPTO", "KEEP", 5)
    assert (reply[0], reply[1], reply[2], reply[5]) == (0, 10, 0, 0)


@each_rate
def test_keep_above_the_limit_is_never_granted_and_writes_nothing(
    redis: Redis, limiter: Limiter
) -> None:
    for cost in (0, 1):
        assert take(redis, limiter, cost, "KEEP", "10.000001")[:4] == [0, 10, 0, -1]
    assert take(redis, limiter, 0, "KEEP", 10)[:4] == [1, 10, 0, 0]
    assert redis.exists("k") == 0


@each_limiter
def test_keep_does_not_change_the_stored_state(
    pair: tuple[Server, Server], limiter: Limiter
) -> None:
    """A call with KEEP stores and replicates the same state as a call without it."""
    primary_server, replica_server = pair
    with primary_server.client() as primary, replica_server.client() as replica:
        primary.execute_command(*limiter.take("k", 3, "KEEP", "20%"))
        primary.execute_command(*limiter.take("twin", 3))
        assert primary.dump("k") == primary.dump("twin")
        assert primary.pttl("k") == primary.pttl("twin")
        replica_server.wait_for_sync()
        assert replica.dump("k") == primary.dump("k")


def test_keep_of_several_keys_comes_from_the_call_or_the_spec(redis: Redis) -> None:
    call = ("RL.MTAKE", 2, "a", "b", "KEEP", "50%", "COST", 4)
    specs = ("FIXED", 10, "1h", "FIXED", 8, "1h", "KEEP", 4)
    assert redis.execute_command(*call, *specs) == [
        1,
        0,
        [[1, 10, 1, 0, 3_600_000], [1, 8, 0, 0, 3_600_000]],
    ]
    denied = redis.execute_command("RL.MPEEK", *call[1:], *specs)
    assert denied == [
        0,
        3_600_000,
        [[0, 10, 1, 3_600_000, 3_600_000], [0, 8, 0, 3_600_000, 3_600_000]],
    ]


def test_options_before_the_spec_apply_to_it(redis: Redis) -> None:
    call = ("RL.TAKE", "k", "COST", 4, "KEEP", "50%", "FIXED", 10, "1h")
    assert redis.execute_command(*call) == [1, 10, 1, 0, 3_600_000]
    assert redis.execute_command("RL.PEEK", *call[1:])[:3] == [0, 10, 1]
    assert redis.execute_command(*call, "COST", 1) == [1, 10, 0, 0, 3_600_000]


@pytest.mark.parametrize("option", [("FORCE",), ("COST", "-1")])
def test_keep_does_not_apply_to_force_and_give_backs(redis: Redis, option: tuple[str, ...]) -> None:
    with pytest.raises(
        ResponseError, match="unexpected 'KEEP', which cannot be combined with FORCE, SETTLE"
    ):
        redis.execute_command("RL.FIXED", "k", 10, "1h", "KEEP", 1, *option)
    assert redis.exists("k") == 0


# Leases


def test_a_renewal_ignores_keep(redis: Redis) -> None:
    acquire = ("RL.ACQUIRE", "k", 10, "60s")
    assert redis.execute_command(*acquire, "a", "COST", 9)[0] == 1
    assert redis.execute_command(*acquire, "a", "COST", 9, "KEEP", 5)[:3] == [1, 10, 0]
    assert redis.execute_command(*acquire, "b", "KEEP", 1)[:4] == [0, 10, 0, 60_000]


def test_a_peek_by_the_holder_keeps_its_lease(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.ACQUIRE", "k", 10, "60s", "a", "COST", 9)
    before = redis.dump("k")
    clock.advance("10s")
    # A renewal ignores KEEP, and so does a peek by the holder.
    words = ("CONCURRENCY", 10, "60s", "a", "KEEP", 11)
    assert redis.execute_command("RL.TAKE", "k", "COST", 0, *words) == [1, 10, 0, 0, 50_000]
    words = ("CONCURRENCY", 10, "60s", "b", "KEEP", 11)
    assert redis.execute_command("RL.TAKE", "k", "COST", 0, *words)[:4] == [0, 10, 0, -1]
    assert redis.dump("k") == before


def test_a_holder_has_one_lease_at_most_with_nx(redis: Redis, clock: Clock) -> None:
    acquire = ("RL.ACQUIRE", "k", 2, "60s", "a", "NX")
    assert redis.execute_command(*acquire) == [1, 2, 1, 0, 60_000]
    clock.advance("10s")
    before = redis.dump("k"), redis.pttl("k")
    assert redis.execute_command(*acquire) == [0, 2, 1, 50_000, 50_000]
    assert redis.execute_command("RL.PEEK", "k", "CONCURRENCY", 2, "1s", "a", "nx")[0] == 0
    assert (redis.dump("k"), redis.pttl("k")) == before
    # Another holder gets a lease, and a renewal needs no NX.
    assert redis.execute_command(*acquire[:4], "b", "NX")[0] == 1
    assert redis.execute_command(*acquire[:5]) == [1, 2, 0, 0, 60_000]
    assert redis.execute_command("RL.RELEASE", "k", "a") == 1
    assert redis.execute_command(*acquire) == [1, 2, 0, 0, 60_000]


def test_nx_waits_for_its_own_lease_and_for_room(redis: Redis, clock: Clock) -> None:
    for holder, ttl in (("a", "10s"), ("b", "20s"), ("c", "30s")):
        redis.execute_command("RL.ACQUIRE", "k", 3, ttl, holder)
    acquire = ("RL.ACQUIRE", "k", 3, "60s", "a", "NX")
    for cost, wait_ms in ((1, 10_000), (2, 20_000), (3, 30_000)):
        now = clock.now
        for ms, allowed in ((0, 0), (wait_ms - 1, 0), (wait_ms, 1)):
            clock.set(now + ms * 1000)
            reply = redis.execute_command("RL.PEEK", "k", "CONCURRENCY", *acquire[2:], "COST", cost)
            assert (reply[0], reply[3]) == (allowed, wait_ms - ms)
        clock.set(now)
    assert redis.execute_command(*acquire, "COST", 4)[3] == -1


def test_nx_that_denies_one_of_several_keys_denies_the_call(redis: Redis) -> None:
    redis.execute_command("RL.ACQUIRE", "lock", 1, "60s", "me")
    call = ("RL.MTAKE", 2, "lock", "rate", "CONCURRENCY", 1, "60s", "me", "NX", "FIXED", 5, "1h")
    assert redis.execute_command(*call)[:2] == [0, 60_000]
    assert redis.exists("rate") == 0
