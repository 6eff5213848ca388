"""Claims of the chart, checked on the repeatable simulation."""

from statistics import mean, median

import pytest
from redis import Redis
from simulation import (
    CAPACITY,
    DIES_AT,
    END,
    OFFERED,
    SLOW_CAPACITY,
    SLOW_FROM,
    SLOW_UNTIL,
    TARGET_MS,
    Second,
    server_with_clock,
    simulate_all,
)

from support.clock import Clock

Runs = dict[str, list[Second]]


@pytest.fixture(scope="module")
def runs() -> Runs:
    with server_with_clock() as (server, clock), server.client() as redis:
        return simulate_all(redis, clock)


def seconds(runs: Runs, name: str, begin: int, end: int) -> list[Second]:
    """Returns the seconds of a run that end after `begin` and not after `end`."""
    (run_seconds,) = [run for title, run in runs.items() if name in title]
    return [second for second in run_seconds if begin < second.at <= end]


def test_healthy_backend_is_not_scaled(runs: Runs) -> None:
    for second in seconds(runs, "with a", 0, SLOW_FROM):
        assert second.admitted == second.offered
        assert second.scale == 1


def test_scale_and_latency_fall_while_the_backend_is_slow(runs: Runs) -> None:
    slow = seconds(runs, "with a", SLOW_FROM, SLOW_UNTIL)
    assert min(second.scale for second in slow) < SLOW_CAPACITY / CAPACITY
    # The queue of the first seconds is empty then.
    after_queue = slow[10:]
    assert median(second.p99_ms for second in after_queue) < TARGET_MS
    assert max(second.p99_ms for second in after_queue) < 3 * TARGET_MS
    # Enough requests are still admitted.
    assert mean(second.admitted for second in after_queue) > SLOW_CAPACITY / 2


def test_scale_recovers_with_the_backend(runs: Runs) -> None:
    for second in seconds(runs, "with a", SLOW_UNTIL + 20, END):
        assert second.scale == 1
        assert second.admitted == second.offered
        assert second.p99_ms < TARGET_MS


def test_without_a_controller_the_queue_outlasts_its_cause(runs: Runs) -> None:
    unscaled = seconds(runs, "without", 0, END)
    assert all(second.scale == 1 for second in unscaled)
    assert unscaled[SLOW_UNTIL - 1].p99_ms > 20 * TARGET_MS
    # 20 seconds after the backend has recovered.
    assert unscaled[SLOW_UNTIL + 19].p99_ms > TARGET_MS


def test_scale_of_a_dead_controller_expires(runs: Runs) -> None:
    after_death = seconds(runs, "dies", DIES_AT - 1, END)
    assert after_death[0].scale < 1
    # The last step was a second earlier, with a lifetime of five.
    assert [second.scale < 1 for second in after_death[:4]] == [True] * 4
    assert all(second.scale == 1 for second in after_death[4:])
    # All requests pass under the unscaled policy, although the backend is still slow.
    unscaled = seconds(runs, "dies", DIES_AT + 5, SLOW_UNTIL)
    assert all(second.admitted == second.offered for second in unscaled)


def test_simulation_is_repeatable(runs: Runs, redis: Redis, clock: Clock) -> None:
    assert simulate_all(redis, clock) == runs


def test_offered_rate_is_as_documented(runs: Runs) -> None:
    assert mean(second.offered for second in seconds(runs, "without", 0, END)) == pytest.approx(
        OFFERED, rel=0.05
    )
