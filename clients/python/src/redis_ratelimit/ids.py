"""Choice of the calls that bring an idempotency key, so that the server charges them once.

A call whose reply was lost is resent. Without an idempotency key it may be charged twice, which can
only deny too much. A call brings an idempotency key where that would matter.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, TypeAlias
from uuid import uuid4

from redis_ratelimit.limits import Concurrency, Limit, Policy
from redis_ratelimit.quantities import Amount, Duration, Key, Word, duration, seconds

# None: a generated id where charging twice would matter. True: always a generated id. False: no id,
# and the call is not resent. Otherwise the caller's id.
Once: TypeAlias = bool | Key | None

# Charging a call twice matters above this share of a limit, and above one unit.
NEGLIGIBLE_SHARE = 0.01

# Default time within which a charge of several units can be settled.
SETTLED_WITHIN = "1m"

# Default lifetime of an idempotency key that the caller chose.
CALLERS_ID_TTL = "10m"

# Start of the server's error for a policy with a CONCURRENCY limit and a call without an
# idempotency key, which names the holder.
NEEDS_ID = "the policy has a CONCURRENCY limit"


def to_be_settled(once: Once, ttl: Duration | None) -> tuple[Once, Duration | None]:
    """Returns `once` and `ttl` of a charge that the caller may settle."""
    if once is False:
        raise ValueError("a refundable charge has an id: once must not be False")
    if isinstance(once, (str, bytes)):
        return once, ttl
    return True, SETTLED_WITHIN if ttl is None else ttl


class Id(NamedTuple):
    """Idempotency key of a call."""

    id: Key
    # Lifetime on the server.
    ttl: str
    seconds: float
    # `True` if this package generated the id, and not the caller.
    is_ours: bool

    def words(self) -> list[Word]:
        return ["ONCE", self.id, self.ttl]


class Ids:
    """Generator of idempotency keys.

    Without `by_default`, only calls that ask for a key get one. `lifetime`, in seconds, applies to
    the keys of calls that are not settled: a little longer than such a call is resent.
    """

    def __init__(self, *, by_default: bool, lifetime: float) -> None:
        # Also decides if a call without a key may be resent.
        self.by_default = by_default
        self._lifetime = lifetime
        self._lifetime_word = duration(lifetime, "ttl")
        self._concurrency_policies: set[Key] = set()

    def for_call(
        self,
        limits: Collection[Limit],
        once: Once,
        ttl: Duration | None,
        cost: Amount,
        holder: Key | None,
    ) -> Id | None:
        """Returns the idempotency key of a call, or None if it needs none."""
        if isinstance(once, (str, bytes)):
            ttl = CALLERS_ID_TTL if ttl is None else ttl
            return Id(once, duration(ttl, "ttl"), seconds(ttl), False)
        if once is None:
            if not self.by_default or cost == 0:
                return None
            if ttl is None and not self._is_needed(limits, cost, holder):
                return None
        elif once is False:
            return None
        elif once is not True:
            raise TypeError(f"once must be True, False, an id or None, not {once!r}")
        if ttl is None and cost <= 1:
            return Id(uuid4().hex, self._lifetime_word, self._lifetime, True)
        ttl = SETTLED_WITHIN if ttl is None else ttl
        return Id(uuid4().hex, duration(ttl, "ttl"), seconds(ttl), True)

    def _is_needed(self, limits: Collection[Limit], cost: Amount, holder: Key | None) -> bool:
        for limit in limits:
            units = float(cost if limit.cost is None else limit.cost)
            if units > 1:
                return True
            if isinstance(limit, Policy):
                # Only the server knows the limits of a policy.
                if not self._concurrency_policies.isdisjoint(limit.names):
                    return True
            elif units > limit.quota * NEGLIGIBLE_SHARE:
                return True
            if holder is None and isinstance(limit, Concurrency):
                return True
        return False

    def record_concurrency_policies(self, limits: Collection[Limit]) -> None:
        """Records that these policies have a concurrency limit."""
        for limit in limits:
            if isinstance(limit, Policy):
                self._concurrency_policies.update(limit.names)
