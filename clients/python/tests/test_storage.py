"""The storage under limits' own strategies, for threads and asyncio."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import limits
import limits.aio.strategies
import limits.strategies
import pytest
import redis
from limits.errors import ConfigurationError
from limits.storage import storage_from_string
from support.clock import Clock

from redis_ratelimit.storage import AsyncRateLimitStorage, RateLimitStorage
from storages import LONG_TIMEOUTS, NOW, STRATEGIES, TEN, StorageFactory

# Decisions


def test_exactly_ten_hits_pass(strategy: Any) -> None:
    assert [strategy.hit(TEN, "alice") for _ in range(12)] == [True] * 10 + [False] * 2
    assert strategy.hit(TEN, "bob")


def test_hit_charges_its_cost(strategy: Any) -> None:
    assert strategy.hit(TEN, cost=6)
    assert not strategy.hit(TEN, cost=5)
    assert strategy.hit(TEN, cost=4)
    assert not strategy.hit(TEN, "other", cost=11)


def test_denied_hit_charges_and_writes_nothing(strategy: Any, admin: redis.Redis) -> None:
    strategy.hit(TEN, cost=6)
    written = admin.info("replication")["master_repl_offset"]
    changes = admin.info("persistence")["rdb_changes_since_last_save"]
    assert not strategy.hit(TEN, cost=5)
    assert strategy.get_window_stats(TEN).remaining == 4
    assert admin.info("persistence")["rdb_changes_since_last_save"] == changes
    assert admin.info("replication")["master_repl_offset"] == written


def test_strategy_test_predicts_a_hit_without_charging(strategy: Any) -> None:
    for cost in (7, 2, 2, 1, 1):
        expected = strategy.test(TEN, cost=cost)
        assert strategy.test(TEN, cost=cost) == expected
        assert strategy.hit(TEN, cost=cost) == expected


def test_hit_is_one_command(strategy: Any, admin: redis.Redis) -> None:
    strategy.hit(TEN)
    admin.config_resetstat()
    for _ in range(12):
        strategy.hit(TEN)
    calls = {name: stat["calls"] for name, stat in admin.info("commandstats").items()}
    assert calls.pop("cmdstat_rl.take") == 12
    assert set(calls) <= {"cmdstat_info", "cmdstat_config|resetstat", "cmdstat_config"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_threads_get_exactly_the_limit(name: str, uri: str) -> None:
    storage = storage_from_string(uri, **LONG_TIMEOUTS)
    assert isinstance(storage, RateLimitStorage)
    strategy = limits.strategies.STRATEGIES[name](storage)
    limit = limits.parse("100/hour")
    with ThreadPoolExecutor(8) as threads:
        hits = list(threads.map(lambda _: strategy.hit(limit, "all"), range(400)))
    storage.storage.close()
    assert sum(hits) == 100


def test_tasks_get_exactly_the_limit(uri: str) -> None:
    limit = limits.parse("100/hour")

    async def allowed_count(name: str) -> int:
        storage = storage_from_string(f"async+{uri}", **LONG_TIMEOUTS)
        assert isinstance(storage, AsyncRateLimitStorage)
        strategy = limits.aio.strategies.STRATEGIES[name](storage)
        passed_hits = await asyncio.gather(*(strategy.hit(limit, "all") for _ in range(400)))
        await storage.storage.aclose()
        return sum(passed_hits)

    assert [asyncio.run(allowed_count(name)) for name in STRATEGIES] == [100, 100, 100]


# Passing of time


def test_fixed_window_opens_with_the_first_hit(
    factory: StorageFactory, storage: Any, clock: Clock, now: float
) -> None:
    strategy = factory.strategy("fixed-window", storage)
    assert strategy.get_window_stats(TEN) == (now, 10)
    strategy.hit(TEN, cost=4)
    clock.advance("20s")
    strategy.hit(TEN, cost=6)
    assert strategy.get_window_stats(TEN) == (now + 40, 0)
    clock.advance("39.999999s")
    assert not strategy.hit(TEN)
    clock.advance("1us")
    assert strategy.get_window_stats(TEN) == (now, 10)
    assert strategy.hit(TEN, cost=10)


def test_moving_window_drops_the_oldest_hits(
    factory: StorageFactory, storage: Any, clock: Clock, now: float
) -> None:
    strategy = factory.strategy("moving-window", storage)
    assert strategy.get_window_stats(TEN) == (now + 60, 10)
    strategy.hit(TEN, cost=4)
    clock.advance("20s")
    strategy.hit(TEN, cost=5)
    # The four are the first to leave the window, in 40 seconds.
    assert strategy.get_window_stats(TEN) == (now + 40, 1)
    strategy.hit(TEN)
    assert strategy.get_window_stats(TEN) == (now + 40, 0)
    clock.advance("39.999999s")
    assert not strategy.hit(TEN)
    clock.advance("1us")
    assert strategy.get_window_stats(TEN) == (now + 20, 4)
    assert strategy.hit(TEN, cost=4)
    assert not strategy.hit(TEN)


def test_sliding_window_weights_the_previous_window(
    factory: StorageFactory, storage: Any, clock: Clock, now: float
) -> None:
    strategy = factory.strategy("sliding-window-counter", storage)
    assert strategy.get_window_stats(TEN) == (now, 10)
    strategy.hit(TEN, cost=10)
    assert strategy.get_window_stats(TEN) == (pytest.approx(now + 60), 0)
    # Half of the previous window overlaps: 5 of its 10 count.
    clock.advance("90s")
    assert strategy.get_window_stats(TEN) == (now + 0.001, 5)
    assert strategy.hit(TEN, cost=5)
    assert not strategy.hit(TEN)
    # The count is rounded down, as limits promises: to 9 as soon as it is below 10.
    clock.advance("1ms")
    assert strategy.get_window_stats(TEN) == (now + 6, 1)
    assert strategy.hit(TEN)
    assert not strategy.hit(TEN)


def test_reset_at_the_end_of_a_sliding_window_is_not_now(
    factory: StorageFactory, storage: Any, now: float
) -> None:
    strategy = factory.strategy("sliding-window-counter", storage)
    strategy.hit(TEN)
    assert strategy.get_window_stats(TEN).reset_time == pytest.approx(now + 60)


# Keys


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.31, 0.5, 0.93, 0.999])
def test_client_passes_after_retry_after(
    name: str,
    factory: StorageFactory,
    uri: str,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    fraction: float,
) -> None:
    """Computes Retry-After as Flask-Limiter does, a few milliseconds later."""
    strategy = factory.strategy(name, factory.storage(uri, whole_seconds=True))
    if fraction > 0.99 and "sliding" in name:
        pytest.skip("limits takes it modulo the window, and a second has passed meanwhile")
    now = NOW + fraction
    monkeypatch.setattr(time, "time", lambda: now)
    limit = limits.parse("3/5 second")
    for pause in ("0.15s", "0.9s", "0.35s"):
        while strategy.hit(limit):
            clock.advance(pause)
        reset_at = int(strategy.get_window_stats(limit).reset_time + 1)
        retry_after = int(reset_at - (now + 0.004))
        clock.advance(f"{retry_after}s")
        assert strategy.hit(limit)


def test_clear_resets_one_key_only(strategy: Any) -> None:
    strategy.hit(TEN, "alice", cost=10)
    strategy.hit(TEN, "bob", cost=10)
    strategy.clear(TEN, "alice")
    assert strategy.get_window_stats(TEN, "alice").remaining == 10
    assert not strategy.hit(TEN, "bob")
    strategy.clear(TEN, "nobody")


def test_reset_deletes_and_counts_keys_with_the_prefix(
    factory: StorageFactory, storage: Any, uri: str, admin: redis.Redis
) -> None:
    for number in range(1500):
        storage.acquire_entry(f"user/{number}", 10, 60)
    admin.set("LIMITS:else", 1)
    other = factory.storage(uri, key_prefix="OTHER")
    other.acquire_entry("user", 10, 60)
    assert storage.reset() == 1500
    assert storage.reset() == 0
    assert len(admin.keys()) == 2
    assert other.reset() == 1


def test_prefix_is_not_a_pattern(factory: StorageFactory, uri: str) -> None:
    star, brackets = factory.storage(uri, key_prefix="*"), factory.storage(uri, key_prefix="[a]")
    for storage in (star, brackets, factory.storage(uri, key_prefix="a")):
        storage.acquire_entry("user", 10, 60)
    assert (star.reset(), brackets.reset()) == (1, 1)


def test_changed_strategy_starts_with_no_usage(factory: StorageFactory, storage: Any) -> None:
    for name in STRATEGIES:
        assert factory.strategy(name, storage).hit(TEN, cost=10)
    factory.strategy("fixed-window", storage).clear(TEN)
    assert [factory.strategy(name, storage).hit(TEN) for name in STRATEGIES] == [True, True, True]


@pytest.mark.parametrize("limit", ["0/minute", "7/2 second", "3 per 5 month", "2/year"])
def test_every_granularity_of_limits_is_accepted(strategy: Any, limit: str) -> None:
    item = limits.parse(limit)
    assert [strategy.hit(item) for _ in range(item.amount + 1)] == [True] * item.amount + [False]
    assert strategy.get_window_stats(item).remaining == 0


def test_identifiers_are_any_text(strategy: Any) -> None:
    for name in ("{a}", "}{", "10/1/minute", "a b\r\n*", "é", "x" * 10_000):
        assert strategy.hit(TEN, name, cost=10)
        assert not strategy.hit(TEN, name)


def test_custom_granularity_has_a_window(
    factory: StorageFactory, storage: Any, clock: Clock
) -> None:
    class PerFortnight(limits.RateLimitItem):
        GRANULARITY = limits.limits.Granularity(14 * 86_400, "fortnight")

    try:
        strategy = factory.strategy("fixed-window", storage)
        assert strategy.hit(PerFortnight(1))
        clock.advance("13d")
        assert not strategy.hit(PerFortnight(1))
        clock.advance("1d")
        assert strategy.hit(PerFortnight(1))
    finally:
        del limits.limits.GRANULARITIES["fortnight"]


@pytest.mark.parametrize("key", ["", "user", "user/10/minute", "user/10/1/parsec"])
def test_fixed_window_needs_the_key_of_an_item(storage: Any, key: str) -> None:
    with pytest.raises(ConfigurationError, match=r"RateLimitItem\.key_for"):
        storage.incr(key, 60)
    with pytest.raises(ConfigurationError, match=r"RateLimitItem\.key_for"):
        storage.get(key)
