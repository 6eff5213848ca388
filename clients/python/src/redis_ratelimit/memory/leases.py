"""Leases of a concurrency limit."""

from __future__ import annotations

from redis_ratelimit.memory.rule import (
    AFTER,
    AT_ONCE,
    LATEST,
    NEVER_EVER,
    Rule,
    Usage,
    Verdict,
)


class Leases(Usage):
    """Leases by holder: expiry, units and fencing token."""

    def __init__(self) -> None:
        self.written = 0
        self.leases: dict[bytes, tuple[int, int, int | None]] = {}

    def live(self, now: int) -> dict[bytes, tuple[int, int, int | None]]:
        """Returns the leases that have not expired, in the order of their expiry."""
        at = min(max(now, self.written), LATEST)
        found = [(lease[0], holder, lease) for holder, lease in self.leases.items()]
        return {holder: lease for ends, holder, lease in sorted(found) if at < ends}

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
        last = max((ends for ends, _, _ in self.leases.values()), default=0)
        return max(last - max(now, self.written), 0)

    def unused(self) -> bool:
        return not self.leases

    def ahead(self, now: int) -> int:
        return max(self.written - now, 0)

    def move_back(self, now: int) -> None:
        back, live = self.ahead(now), self.live(self.written)
        self.leases = {
            holder: (ends - back, units, token) for holder, (ends, units, token) in live.items()
        }
        self.written = min(self.written, now)

    def take_back(self, place: int | None, units: int) -> int:
        del place, units
        return 0


class Concurrency(Rule):
    """Concurrency limit. `behind` is `True` if earlier waiters come first."""

    kind = "rl-leases"
    usage = Leases

    def __init__(self, limit: int, ttl: int, holder: bytes) -> None:
        super().__init__(limit, None)
        self.ttl, self.holder = ttl, holder
        self.behind = False
        self.token: int | None = None

    def present(self, usage: Leases, now: int) -> int:
        return sum(units for _, units, _ in usage.live(now).values())

    def verdict(self, usage: Leases, now: int, cost: int) -> Verdict:
        own = usage.live(now).get(self.holder)
        others = self.present(usage, now) - (own[1] if own else 0)
        own_way = self.nx and own is not None
        renews = own is not None and cost <= own[1]
        if (renews or others + cost <= self.limit) and not own_way:
            return (AFTER, 1000) if self.behind and not renews and cost else AT_ONCE
        if cost > self.limit:
            return NEVER_EVER
        for holder, (ends, units, _) in usage.live(now).items():
            if holder == self.holder:
                own_way = False
            else:
                others -= units
            if not own_way and others + cost <= self.limit:
                return (AFTER, max(ends - max(now, usage.written), 0))
        return NEVER_EVER

    def reset(self, usage: Leases, now: int) -> int:
        return usage.recovers_in(now)

    def charge(self, usage: Leases, now: int, cost: int) -> None:
        usage.tidy(now)
        lease = usage.leases.get(self.holder)
        token = self.token if lease is None or lease[2] is None else lease[2]
        usage.leases[self.holder] = (min(now + self.ttl, LATEST), cost, token)

    def give_back(self, usage: Leases, now: int, units: int) -> None:
        """Does nothing, as only a holder can release its lease, and only as a whole."""

    def low(self, usage: Leases, now: int) -> int:
        del usage, now
        return 0
