"""Remembered denials, and their invalidation by client tracking.

In these tests the server's clock is frozen, and the limiter's clock is moved by the test.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
from support import poll
from support.clock import Clock
from support.cluster import Cluster
from support.server import Server
from support.slot_moves import SlotMove

from limiters import FrozenClock, Make, limiters_of
from redis_ratelimit import Ban, CallError, Concurrency, Fixed, Limit, Policy, TokenBucket

LIMIT = Fixed(2, "1h")


@pytest.fixture
def now() -> FrozenClock:
    return FrozenClock()


def exhaust(limiter: Any, key: Any = "key", limit: Any = LIMIT, **options: Any) -> Any:
    """Exhausts a limit and returns the first denial."""
    while decision := limiter.take(key, limit, **options):
        pass
    return decision


def take_calls(admin: redis.Redis) -> int:
    stats = admin.info("commandstats")
    return sum(stats.get(f"cmdstat_rl.{name}", {"calls": 0})["calls"] for name in ("take", "limit"))


def wait_until_tracked(
    limiter: Any, now: FrozenClock, key: Any = "key", limit: Limit = LIMIT
) -> None:
    """Waits until a denial is tracked, so that it is remembered for more than a second."""
    arguments = (limit,), 1, None, None, None, False
    # A key is tracked from its second denial on.
    assert not limiter.take(key, limit)
    denials = getattr(limiter, "_wrapped", limiter)._denials

    def is_tracked() -> bool:
        limiter.peek("other", LIMIT)
        denied = denials._by_key.get(key, ())
        return any(one.arguments == arguments and now() + 2 < one.ends_at for one in denied)

    poll.until(is_tracked, "the denial is tracked", timeout=20)


def test_repeated_denial_is_answered_without_the_server(
    make: Make, admin: redis.Redis, now: FrozenClock
) -> None:
    limiter = make(prefix="app:", clock=now)
    first = exhaust(limiter)
    assert (first.remembered, first.degraded) == (False, False)
    wait_until_tracked(limiter, now)
    now.seconds += 2
    before = take_calls(admin)
    for _ in range(1000):
        decision = limiter.take("key", LIMIT)
        assert not decision
        assert decision.remembered
    assert take_calls(admin) == before
    assert (decision.limit, decision.remaining, decision.source) == (2, 0, "server")
    # The decision contains the remaining wait.
    assert decision.wait_ms == first.wait_ms - 2000
    assert decision.reset_ms == first.reset_ms - 2000
    # Other calls for the key, and other keys, go to the server.
    assert not limiter.take("key", LIMIT, cost=2).remembered
    assert not limiter.take("key", Fixed(2, "1h", name="own")).remembered
    assert limiter.take("another", LIMIT)


@pytest.mark.parametrize("key", ["key", b"\xff\x00key"])
@pytest.mark.parametrize("change", ["give_back", "reset", "DEL", "FLUSHALL"])
def test_give_back_and_reset_invalidate_a_denial(
    make: Make, admin: redis.Redis, now: FrozenClock, key: str | bytes, change: str
) -> None:
    limiter, other = make(prefix="app:", clock=now), make(prefix="app:")
    exhaust(limiter, key)
    wait_until_tracked(limiter, now, key)
    now.seconds += 2
    assert limiter.take(key, LIMIT).remembered
    if change == "give_back":
        other.give_back(key, LIMIT)
    elif change == "reset":
        other.reset(key)
    elif change == "DEL":
        admin.delete(b"app:" + (key if isinstance(key, bytes) else key.encode()))
    else:
        admin.flushall()
    poll.until(lambda: limiter.take(key, LIMIT).allowed, "the change is reported", timeout=20)


def test_lifted_ban_invalidates_a_denial(make: Make, now: FrozenClock) -> None:
    limiter, other = make(clock=now), make()
    other.ban("key", "1h")
    assert not limiter.take("key", LIMIT)
    wait_until_tracked(limiter, now)
    now.seconds += 2
    other.ban("key", 0)
    poll.until(lambda: limiter.take("key", LIMIT).allowed, "the change is reported", timeout=20)


def test_released_lease_invalidates_a_denial(make: Make, now: FrozenClock) -> None:
    limiter, other = make(clock=now), make()
    pool = Concurrency(1, "1h")
    assert other.take("pool", pool, holder="theirs")
    assert not limiter.take("pool", pool, holder="ours")
    assert limiter.take("pool", pool, holder="ours").remembered
    # The holder of the lease may renew it.
    assert limiter.take("pool", pool, holder="theirs")
    other.release("pool", "theirs")
    now.seconds += 2
    poll.until(
        lambda: limiter.take("pool", pool, holder="ours").allowed,
        "the change is reported",
        timeout=20,
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda limiter: limiter.give_back("key", LIMIT),
        lambda limiter: limiter.reset("key"),
        lambda limiter: limiter.settle("key", LIMIT, id="req-1", cost=0),
    ],
    ids=["give-back", "reset", "settle"],
)
def test_own_change_invalidates_a_denial_at_once(make: Make, change: Callable[..., Any]) -> None:
    limiter = make(prefix="app:")
    assert limiter.take("key", LIMIT, once="req-1")
    exhaust(limiter)
    change(limiter)
    assert limiter.take("key", LIMIT)


def test_denial_is_never_remembered_longer_than_its_wait(
    make: Make, clock: Clock, now: FrozenClock
) -> None:
    limiter = make(clock=now)
    bucket = TokenBucket(1, 1, "10s")
    exhaust(limiter, limit=bucket)
    wait_until_tracked(limiter, now, limit=bucket)
    waited = 0
    while not (decision := limiter.take("key", bucket)):
        # In steps of a prime number of milliseconds, up to the last millisecond.
        step = min(373, decision.wait_ms)
        waited += step
        clock.advance(f"{step}ms")
        now.seconds += step / 1000
    assert waited == 10_000


@pytest.fixture
def make_for_cluster(kind: str, cluster: Cluster) -> Iterator[Make]:
    for make in limiters_of(kind, f"redis://127.0.0.1:{cluster.servers[0].port}"):
        yield partial(make, cluster=True)


def test_each_node_of_a_cluster_is_tracked(
    make_for_cluster: Make, cluster: Cluster, now: FrozenClock
) -> None:
    limiter, other = make_for_cluster(clock=now), make_for_cluster()
    keys = {owner: f"{{{tag}}}" for owner, (tag, _) in cluster.tags().items()}
    for key in keys.values():
        exhaust(limiter, key)
        wait_until_tracked(limiter, now, key)
    now.seconds += 2
    for owner, key in keys.items():
        assert limiter.take(key, LIMIT).remembered
        if owner is cluster.servers[0]:
            other.give_back(key, LIMIT)
        else:
            with owner.client() as admin:
                admin.delete(key)
        passes = partial(limiter.take, key, LIMIT)
        poll.until(lambda passes=passes: passes().allowed, "the change is reported", timeout=20)


def test_denial_of_a_moved_key_is_tracked_at_the_new_node(
    make_for_cluster: Make, cluster: Cluster, now: FrozenClock
) -> None:
    limiter, other = make_for_cluster(clock=now), make_for_cluster()
    exhaust(limiter)
    wait_until_tracked(limiter, now)
    now.seconds += 2
    target = next(one for one in cluster.primaries() if one is not cluster.owner("key"))
    with SlotMove(cluster, "key", target) as move:
        move.move_keys("key")
    # The move invalidates the denial; then the new node is asked and tracked.
    poll.until(
        lambda: not limiter.take("key", LIMIT).remembered, "the denial is forgotten", timeout=20
    )
    wait_until_tracked(limiter, now)
    now.seconds += 2
    assert limiter.take("key", LIMIT).remembered
    assert other.reset("key")
    poll.until(lambda: limiter.take("key", LIMIT).allowed, "the change is reported", timeout=20)


def test_failover_of_a_node_invalidates_denials(
    make_for_cluster: Make, cluster: Cluster, now: FrozenClock
) -> None:
    limiter, other = make_for_cluster(clock=now), make_for_cluster()
    exhaust(limiter)
    wait_until_tracked(limiter, now)
    now.seconds += 2
    assert limiter.take("key", LIMIT).remembered
    cluster.fail_over(cluster.owner("key"))
    assert other.reset("key")
    poll.until(lambda: limiter.take("key", LIMIT).allowed, "the change is reported", timeout=20)


def test_policy_change_applies_within_a_second(make: Make, now: FrozenClock) -> None:
    limiter = make(clock=now)
    limiter.policies.set("plan", Fixed(1, "1h"))
    exhaust(limiter, limit=Policy("plan"))
    assert limiter.take("key", Policy("plan")).remembered
    limiter.policies.set("plan", Fixed(5, "1h"))
    now.seconds += 1
    assert limiter.take("key", Policy("plan"))


def module_calls(admin: redis.Redis) -> int:
    stats = admin.info("commandstats")
    return sum(counts["calls"] for name, counts in stats.items() if name.startswith("cmdstat_rl."))


def test_more_denied_keys_than_are_remembered_cost_a_call_each(
    make: Make, admin: redis.Redis, now: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_ratelimit.denials.MAX_KEYS", 50)
    limiter = make(clock=now)
    admin.config_resetstat()
    counted = []
    for _ in range(4):
        before = module_calls(admin)
        remembered = sum(limiter.take(f"key:{one}", Fixed(0, "1h")).remembered for one in range(60))
        if getattr(limiter, "_wrapped", limiter)._transport._trackers:
            limiter.peek("other", LIMIT)
        counted.append((remembered, module_calls(admin) - before))
    # First each key is denied once. From the second denial on, 50 keys are remembered and tracked,
    # and the other 10 keys cost a call each.
    assert [one for one, _ in counted] == [0, 50, 50, 50]
    assert counted[0][1] == 60
    assert sum(count for _, count in counted[1:]) <= 50 + 3 * (10 + 1)


def test_expired_denial_makes_room(
    make: Make, now: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_ratelimit.denials.MAX_KEYS", 2)
    limiter = make(clock=now)
    for key in ("a", "b", "c", "c"):
        assert not limiter.take(key, Fixed(0, "1h")).remembered
    now.seconds += 1
    assert not limiter.take("c", Fixed(0, "1h")).remembered
    assert limiter.take("c", Fixed(0, "1h")).remembered
    # Both denials had expired, so there is room for a second key.
    assert not limiter.take("d", Fixed(0, "1h")).remembered
    assert limiter.take("d", Fixed(0, "1h")).remembered


def test_key_is_tracked_from_its_second_denial_on(make: Make, now: FrozenClock) -> None:
    limiter = make(clock=now)
    for key in range(20):
        exhaust(limiter, f"key:{key}")
    assert not getattr(limiter, "_wrapped", limiter)._transport._trackers
    wait_until_tracked(limiter, now, "key:7")


def test_remember_denials_can_be_disabled(make: Make) -> None:
    limiter = make(remember_denials=False)
    exhaust(limiter)
    assert not limiter.take("key", LIMIT).remembered


@pytest.mark.parametrize(
    "options", [{"ban": Ban(9, "1m", "1m")}, {"once": "req-1"}, {"force": True}, {"upto": True}]
)
def test_strikes_ids_and_forced_charges_reach_the_server(
    make: Make, options: dict[str, Any]
) -> None:
    limiter = make()
    exhaust(limiter)
    assert limiter.take("key", LIMIT).remembered
    assert not limiter.take("key", LIMIT, **options).remembered


def test_lost_tracking_connection_is_reopened(
    make: Make, admin: redis.Redis, now: FrozenClock
) -> None:
    """Invalidations may be lost meanwhile, so no denial is remembered longer than a second."""
    limiter, other = make(clock=now), make()
    exhaust(limiter)
    wait_until_tracked(limiter, now)
    admin.client_kill_filter(_type="normal", skipme=True)
    poll.until(lambda: other.reset("key") or True, "the key is reset", timeout=20)
    poll.until(lambda: limiter.take("key", LIMIT).allowed, "the call passes", timeout=20)
    # After a pause it tracks again.
    started_at = time.monotonic()
    poll.until(lambda: time.monotonic() > started_at + 1.1, "the pause is over", timeout=20)
    exhaust(limiter)
    wait_until_tracked(limiter, now)


def test_account_without_client_tracking_remembers_for_a_second(
    make: Make, server: Server, admin: redis.Redis, now: FrozenClock
) -> None:
    admin.execute_command(
        "ACL", "SETUSER", "shy", "on", ">secret", "~*", "+@all", "-client|tracking"
    )
    try:
        url = f"redis://shy:secret@127.0.0.1:{server.port}"
        limiter, other = make(url, clock=now), make()
        exhaust(limiter)
        assert other.reset("key")
        # Without tracking, a denial is remembered for a second at most.
        now.seconds += 1
        assert limiter.take("key", LIMIT)
    finally:
        admin.execute_command("ACL", "DELUSER", "shy")


def set_forced(admin: redis.Redis) -> None:
    admin.execute_command("RL.POLICYSET", "plan", "FIXED", 1, "1h", "FORCE")


def test_denial_of_a_policy_with_force_is_never_remembered(
    make: Make, admin: redis.Redis, now: FrozenClock
) -> None:
    limiter = make(clock=now)
    set_forced(admin)
    exhaust(limiter, limit=Policy("plan"))
    for options in ({}, {"each": True}, {"cost": 300}, {}):
        assert not limiter.take("key", Policy("plan"), **options).remembered
    assert limiter.take("key", Policy("plan"), each=True).forced
    # Every call was charged, 306 units in total.
    used = admin.execute_command("RL.LIMIT", "key", "plan", "COST", -304)
    assert used[2] == 0
    assert admin.execute_command("RL.LIMIT", "key", "plan", "COST", -2)[2] == 1


def test_policy_that_gets_force_applies_within_two_seconds(
    make: Make, admin: redis.Redis, now: FrozenClock
) -> None:
    limiter = make(clock=now)
    limiter.policies.set("plan", Fixed(1, "1h"))
    exhaust(limiter, limit=Policy("plan"))
    assert limiter.take("key", Policy("plan")).remembered
    set_forced(admin)
    now.seconds += 2
    for _ in range(3):
        assert not limiter.take("key", Policy("plan")).remembered


def test_policy_is_checked_for_force_once_a_second(
    make: Make, admin: redis.Redis, now: FrozenClock
) -> None:
    limiter = make(clock=now)
    limiter.policies.set("plan", Fixed(0, "1h"))
    admin.config_resetstat()
    for key in range(10):
        assert not limiter.take(f"key:{key}", Policy("plan")).remembered
        assert limiter.take(f"key:{key}", Policy("plan")).remembered
    assert take_calls(admin) == 10 + 1


@pytest.mark.parametrize("options", [{}, {"cost": 5}, {"each": True}])
def test_wait_and_units_refuse_a_policy_with_force(
    make: Make, admin: redis.Redis, now: FrozenClock, options: dict[str, Any]
) -> None:
    limiter = make(clock=now)
    set_forced(admin)
    with pytest.raises(CallError, match="FORCE"):
        limiter.take("key", Policy("plan"), wait=1.0, **options)
    with (
        limiter.units("key", Policy("plan"), batch=10) as units,
        pytest.raises(CallError, match="FORCE"),
    ):
        units.take()
    assert not admin.exists("key"), "nothing was charged"
    # Without FORCE, `wait` and units work with policies.
    limiter.policies.set("plan", Fixed(3, "1h"))
    now.seconds += 1
    assert limiter.take("other", Policy("plan"), wait=1.0)
    with limiter.units("other", Policy("plan"), batch=2) as units:
        assert units.take()
