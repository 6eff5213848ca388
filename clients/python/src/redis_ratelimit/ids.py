"""Which calls bring an idempotency key, by which the server charges them once.

A call whose reply was lost is sent again. Without an idempotency key it may be charged twice, which
can only deny too much. So a call brings one where that would matter.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, TypeAlias
from uuid import uuid4

from redis_ratelimit.limits import Concurrency, Limit, Policy
from redis_ratelimit.quantities import Amount, Duration, Key, Word, duration, seconds

# None: an id of the call's own where charging it twice would matter. True: one in any case. False:
# none, and the call is not sent again. Else an id of the caller's.
Once: TypeAlias = bool | Key | None

# Charging a call twice matters above this share of a limit, and above one unit.
MATTERS = 0.01

# How long a charge of several units can be settled, unless the call says otherwise.
SETTLED_WITHIN = "1m"

# How long an id of the caller's is remembered, unless the call says otherwise.
OWN = "10m"

# A policy with a CONCURRENCY limit says so to a call that has no id: the id is the holder.
NEEDS_ID = "the policy has a CONCURRENCY limit"


def to_be_settled(once: Once, ttl: Duration | None) -> tuple[Once, Duration | None]:
    """Returns the id and its ttl, of a charge that the caller may settle."""
    if once is False:
        raise ValueError("a refundable charge has an id: once must not be False")
    if isinstance(once, (str, bytes)):
        return once, ttl
    return True, SETTLED_WITHIN if ttl is None else ttl


class Id(NamedTuple):
    """What a call is charged by once."""

    id: Key
    # For how long the server remembers it.
    ttl: str
    seconds: float
    # It was made up for this one call.
    is_ours: bool

    def words(self) -> list[Word]:
        return ["ONCE", self.id, self.ttl]


class Ids:
    """`may_have` False: no call has an id that does not ask for it. `remembered` is for how many
    seconds the server remembers the id of a call that is not settled: a little longer than it is
    sent again.
    """

    def __init__(self, *, may_have: bool, remembered: float) -> None:
        # Whether a call without an id may be sent again, too.
        self.may_have = may_have
        self._remembered = remembered
        self._remembered_word = duration(remembered, "ttl")
        # Policies with a concurrency limit.
        self._held: set[Key] = set()

    def of(
        self,
        limits: Collection[Limit],
        once: Once,
        ttl: Duration | None,
        cost: Amount,
        holder: Key | None,
    ) -> Id | None:
        """The id of a call, if it needs one."""
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
                # How much it allows, only the server knows.
                if self._held and any(name in self._held for name in limit.names):
                    return True
            elif units > limit.quota * MATTERS:
                return True
            if holder is None and isinstance(limit, Concurrency):
                return True
        return False

    def learn(self, limits: Collection[Limit]) -> None:
        """These policies have a concurrency limit."""
        for limit in limits:
            if isinstance(limit, Policy):
                self._held.update(limit.names)
