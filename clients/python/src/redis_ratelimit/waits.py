"""Waits of denied calls."""

from __future__ import annotations

from collections.abc import Sequence
from random import uniform
from typing import Any

from redis_ratelimit.call import MAX_DURATION
from redis_ratelimit.decision import NEVER, Decision
from redis_ratelimit.ids import Once
from redis_ratelimit.limits import Limit, TokenBucket

# Error text for a policy with FORCE, which would charge each attempt.
FORCED_POLICY = (
    "the policy has a limit with FORCE, which charges denied calls: not with `wait` or units"
)

# Seconds after its start for which a reservation can still be given back.
REFUNDABLE_AFTER_START = 60.0


def can_reserve(limits: Sequence[Limit], *, once: Once, excludes_max_wait: bool) -> bool:
    """Returns `True` if a call that waits can reserve units by MAXWAIT. All limits must be token
    buckets, and the call needs an idempotency key, by which an unused reservation is given back. A
    limit with a cost of its own would keep its charge. `excludes_max_wait` is `True` if an option
    of the call excludes MAXWAIT.
    """
    return (
        not excludes_max_wait
        and once is not False
        and all(type(limit) is TokenBucket and limit.cost is None for limit in limits)
    )


def bounded(wait: float) -> float:
    """Returns the wait in seconds, bounded by the longest duration that the server accepts."""
    return min(wait, float(MAX_DURATION))


def without_reservation(decision: Decision, wait: float) -> Decision:
    """Returns a denial with the wait that it would have without a reservation."""
    if decision.wait_ms == NEVER or decision.source != "server":
        return decision
    return decision.but(wait_ms=decision.wait_ms + round(wait * 1000))


def pause(decision: Decision, attempts: int, remaining: float) -> float | None:
    """Returns the seconds until the next attempt, or None if no attempt can pass in time.

    The random part grows with the number of attempts and spreads callers that were denied together,
    as only one of them may pass at a time.
    """
    if decision.wait is None or decision.degraded:
        return None
    # Another call may come first, so do not retry at once.
    wait = max(decision.wait, 0.001)
    return None if wait > remaining else min(wait * uniform(1, 1 + attempts), remaining)


def hoist_cost(limits: tuple[Limit, ...], cost: Any) -> tuple[tuple[Limit, ...], Any]:
    """Returns the limits and the cost of a call that may be settled. If a single limit has a cost,
    it becomes the cost of the call, as settling does not change the costs of limits.
    """
    if len(limits) != 1 or limits[0].cost is None:
        return limits, cost
    return (limits[0].without_cost(),), limits[0].cost
