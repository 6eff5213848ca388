"""Choice of the calls that bring an idempotency key, so that the server charges them once.

A call whose reply was lost is resent. Without an idempotency key it may be charged twice, which can
only deny too much. So a call brings a key where that would matter.
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
MATTERS = 0.01

# Default time within which a charge of several units can be settled.
SETTLED_WITHIN = "1m"

# Default lifetime of an id of the caller's.
OWN = "10m"

# Error text of a policy with a CONCURRENCY limit for a call without an id, which names the holder.
NEEDS_ID = "the policy has a CONCURRENCY limit"


def to_be_settled(once: Once, ttl: Duration | None) -> tuple[Once, Duration | None]:
    """Returns the id and its ttl, of a charge that the caller may settle."""
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
    # `True` if it was generated for this call.
    is_ours: bool

    def words(self) -> list[Word]:
        return ["ONCE", self.id, self.ttl]


class Ids:
    """Generator of idempotency keys.

    Without `may_have`, only calls that ask for a key get one. `remembered` is the lifetime in
    seconds of the key of a call that is not settled: a little longer than it is resent.
    """

    def __init__(self, *, may_have: bool, remembered: float) -> None:
        # `True` also if a call without an id may be resent.
        self.may_have = may_have
        self._remembered = remembered
        self._remembered_word = duration(remembered, "ttl")
        self._concurrency_policies: set[Key] = set()

    def of(
        self,
        limits: Collection[Limit],
        once: Once,
        ttl: Duration | None,
        cost: Amount,
        holder: Key | None,
    ) -> Id | None:
        """Returns the idempotency key of a call, if it needs one."""
        if isinstance(once, (str, bytes)):
            ttl = OWN if ttl is None else ttl
            return Id(once, duration(ttl, "ttl"), seconds(ttl), False)
        if once is None:
            if not self.may_have or cost == 0:
                return None
            if ttl is None and not self._is_needed(limits, cost, holder):
                return None
        elif once is False:
            return None
        elif once is not True:
            raise TypeError(f"once must be True, False, an id or None, not {once!r}")
        if ttl is None and cost <= 1:
            return Id(uuid4().hex, self._remembered_word, self._remembered, True)
        ttl = SETTLED_WITHIN if ttl is None else ttl
        return Id(uuid4().hex, duration(ttl, "ttl"), seconds(ttl), True)

    def _is_needed(self, limits: Collection[Limit], cost: Amount, holder: Key | None) -> bool:
        for limit in limits:
            units = float(cost if limit.cost is None else limit.cost)
            if units > 1:
                return True
            if isinstance(limit, Policy):
                # Only the server knows the size of its limits.
                if not self._concurrency_policies.isdisjoint(limit.names):
                    return True
            elif units > limit.quota * MATTERS:
                return True
            if holder is None and isinstance(limit, Concurrency):
                return True
        return False

    def learn(self, limits: Collection[Limit]) -> None:
        """Records that these policies have a concurrency limit."""
        for limit in limits:
            if isinstance(limit, Policy):
                self._concurrency_policies.update(limit.names)
