"""Leases of a concurrency limit."""

from __future__ import annotations

from typing import NamedTuple

from redis_ratelimit.memory.rule import (
    AFTER,
    ALLOWED_NOW,
    LATEST,
    NEVER_ALLOWED,
    Rule,
    Usage,
    Verdict,
)


class Lease(NamedTuple):
    expires_at: int
    units: int
    # Fencing token.
    token: int | None


class Leases(Usage):
    """Leases by holder."""

    def __init__(self) -> None:
        self.written = 0
        self.leases: dict[bytes, Lease] = {}

    def live(self, now: int) -> dict[bytes, Lease]:
        """Returns the leases that have not expired, in the order of their expiry."""
        time = min(max(now, self.written), LATEST)
        by_expiry = sorted((lease.expires_at, holder) for holder, lease in self.leases.items())
        return {
            holder: self.leases[holder] for expires_at, holder in by_expiry if time < expires_at
        }

    def tidy(self, now: int) -> None:
        self.leases, self.written = self.live(now), now

    def release(self, holders: list[bytes], now: int) -> int:
        present = [holder for holder in dict.fromkeys(holders) if holder in self.live(now)]
        for holder in present:
            del self.leases[holder]
        if present:
            self.tidy(now)
        return len(present)

    def recovers_in(self, now: int) -> int:
        last_expiry = max((lease.expires_at for lease in self.leases.values()), default=0)
        return max(last_expiry - max(now, self.written), 0)

    def is_unused(self) -> bool:
        return not self.leases

    def ahead(self, now: int) -> int:
        return max(self.written - now, 0)

    def move_back(self, now: int) -> None:
        back, live = self.ahead(now), self.live(self.written)
        self.leases = {
            holder: lease._replace(expires_at=lease.expires_at - back)
            for holder, lease in live.items()
        }
        self.written = min(self.written, now)

    def take_back(self, place: int | None, units: int) -> int:
        del place, units
        return 0


class Concurrency(Rule):
    """Concurrency limit. `behind` is `True` if earlier waiters must be granted first."""

    kind = "rl-leases"
    usage = Leases

    def __init__(self, limit: int, ttl: int, holder: bytes) -> None:
        super().__init__(limit, None)
        self.ttl, self.holder = ttl, holder
        self.behind = False
        self.token: int | None = None

    def present(self, usage: Leases, now: int) -> int:
        return sum(lease.units for lease in usage.live(now).values())

    def verdict(self, usage: Leases, now: int, cost: int) -> Verdict:
        own_lease = usage.live(now).get(self.holder)
        others = self.present(usage, now) - (own_lease.units if own_lease else 0)
        # With NX a holder waits for the end of its own lease.
        is_blocked = self.nx and own_lease is not None
        renews = own_lease is not None and cost <= own_lease.units
        if (renews or others + cost <= self.limit) and not is_blocked:
            return (AFTER, 1000) if self.behind and not renews and cost else ALLOWED_NOW
        if cost > self.limit:
            return NEVER_ALLOWED
        for holder, lease in usage.live(now).items():
            if holder == self.holder:
                is_blocked = False
            else:
                others -= lease.units
            if not is_blocked and others + cost <= self.limit:
                return (AFTER, max(lease.expires_at - max(now, usage.written), 0))
        return NEVER_ALLOWED

    def reset(self, usage: Leases, now: int) -> int:
        return usage.recovers_in(now)

    def charge(self, usage: Leases, now: int, cost: int) -> None:
        usage.tidy(now)
        lease = usage.leases.get(self.holder)
        token = self.token if lease is None or lease.token is None else lease.token
        usage.leases[self.holder] = Lease(min(now + self.ttl, LATEST), cost, token)

    def give_back(self, usage: Leases, now: int, units: int) -> None:
        """Does nothing, as only a holder can release its lease, and only as a whole."""

    def settleable_usage(self, usage: Leases, now: int) -> int:
        del usage, now
        return 0
