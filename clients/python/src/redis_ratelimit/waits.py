"""Waiting of calls that are denied."""

from __future__ import annotations

from collections.abc import Sequence
from random import uniform
from typing import Any

from redis_ratelimit.call import LONGEST
from redis_ratelimit.decision import NEVER, Decision
from redis_ratelimit.ids import Once
from redis_ratelimit.limits import Limit, TokenBucket

# Of a policy whose denied calls are charged: each attempt would charge once more.
FORCED = "the policy has a limit with FORCE, which charges denied calls: not with `wait` or units"

# Seconds for which a reservation can be given back after its turn.
AFTER_ITS_TURN = 60.0


def reserves(limits: Sequence[Limit], *, once: Once, excluded: bool) -> bool:
    """Returns `True` if a call that waits can reserve its turn by MAXWAIT: of token buckets alone,
    and with an id, by which a turn that is not used is given back. A limit with a cost of its own
    keeps its charge. `excluded` is that an option of the call excludes MAXWAIT.
    """
    return (
        not excluded
        and once is not False
        and all(type(limit) is TokenBucket and limit.cost is None for limit in limits)
    )


def longest(wait: float) -> float:
    """Returns the wait in seconds that the server takes as a duration."""
    return min(wait, float(LONGEST))


def without_reservation(decision: Decision, wait: float) -> Decision:
    """Returns a denial with the wait of a call that reserves nothing."""
    if decision.wait_ms == NEVER or decision.source != "server":
        return decision
    return decision.but(wait_ms=decision.wait_ms + round(wait * 1000))


def pause(decision: Decision, attempts: int, left: float) -> float | None:
    """Returns for how long to wait before the next attempt, in seconds; None if there is no use.

    Callers that were denied together come back spread over a time that grows with their attempts:
    of all that come at once, one may pass.
    """
    if decision.wait is None or decision.degraded:
        return None
    # Others may come first: a wait of 0 is none.
    least = max(decision.wait, 0.001)
    return None if least > left else min(least * uniform(1, 1 + attempts), left)


def hoisted(limits: tuple[Limit, ...], cost: Any) -> tuple[tuple[Limit, ...], Any]:
    """Returns the limits and the cost of a call that may be settled. The cost of a single limit
    becomes that of the call: what a limit charges by itself is never given back.
    """
    if len(limits) != 1 or limits[0].cost is None:
        return limits, cost
    return (limits[0].without_cost(),), limits[0].cost
