"""State of a key: the usage of its limits, and the calls recorded by their idempotency keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from redis_ratelimit.memory.grammar import Call, Spec
from redis_ratelimit.memory.leases import Leases
from redis_ratelimit.memory.options import UNIT
from redis_ratelimit.memory.rule import LATEST, MOST, Rule, Usage
from redis_ratelimit.resp import RefusedError


@dataclass(eq=False)
class Charge:
    """Charge that may be settled. `place` identifies it where usage keeps charges apart. `low` is
    the lowest usage since.
    """

    cost: int
    place: int | None
    given_back: int
    low: int | None = None


@dataclass(eq=False)
class Part:
    """Usage of one limit of a key. Without an identity it is found by its type alone."""

    kind: str
    usage: Usage
    identity: object = None
    recovers_at: int = 0
    # Charges that may be settled, oldest first, and the units given back explicitly since.
    charges: list[Charge] = field(default_factory=list)
    given_back: int = 0

    def change(self, rule: Rule, change: int, now: int) -> None:
        """Charges `change` units, or gives them back if it is negative."""
        if self.charges:
            self._lower(rule, max(-change, 0), now)
        if change > 0:
            rule.charge(self.usage, now, change)
        else:
            rule.give_back(self.usage, now, -change)
        self._changed(rule, now)

    def _lower(self, rule: Rule, back: int, now: int) -> None:
        """Records the usage from which earlier charges can still be settled."""
        low = 0 if self.usage.unused() else rule.low(self.usage, now)
        if low is None:
            self.given_back = min(self.given_back + back, MOST)
            return
        low = max(low - back, 0)
        for charge in self.charges:
            charge.low = low if charge.low is None else min(charge.low, low)

    def _changed(self, rule: Rule, now: int) -> None:
        self.recovers_at = min(now + rule.reset(self.usage, now), LATEST)
        if self.usage.unused():
            self.usage = type(self.usage)()

    def settle(self, rule: Rule, charge: Charge, cost: int, now: int) -> None:
        """Corrects usage as if `cost` had been charged from the beginning."""
        most = MOST if charge.low is None else charge.low
        if charge.place is not None:
            since = charge.cost if self.given_back == MOST else self.given_back - charge.given_back
            most = min(most, max(charge.cost - since, 0))
        taken = self.usage.take_back(charge.place, min(max(charge.cost - cost, 0), most))
        self._lower_others(charge, taken)
        self.forget(charge)
        if cost > charge.cost:
            self.change(rule, cost - charge.cost, now)
        self._changed(rule, now)

    def _lower_others(self, settled: Charge, taken: int) -> None:
        """Lowers the recorded lows of the other charges after one was settled to a lower cost."""
        if settled.low is None:
            return
        place, settled.low = self.charges.index(settled), max(settled.low - taken, 0)
        for charge in self.charges[place + 1 :]:
            charge.low = None if charge.low is None else max(charge.low - taken, 0)
        for charge in self.charges[:place]:
            charge.low = settled.low if charge.low is None else min(charge.low, settled.low)

    def forget(self, charge: Charge) -> None:
        self.charges.remove(charge)
        if not self.charges:
            self.given_back = 0

    def move_back(self, now: int) -> None:
        for charge in self.charges:
            if charge.place is not None:
                charge.place = self.usage.moved_place(charge.place, now)
        ahead = self.usage.ahead(now)
        if ahead:
            self.usage.move_back(now)
        self.recovers_at = self.usage.moved_recovery(self.recovers_at, ahead, now)

    def stays(self, now: int) -> bool:
        return bool(self.charges) or (now < self.recovers_at and not self.usage.unused())


@dataclass
class Record:
    """Call recorded by its idempotency key."""

    expires_at: int
    hold_until: int
    forced: bool
    granted: int | None
    charges: list[tuple[Part, Charge]]
    settled: bool = False


@dataclass
class Key:
    """Value of a key. A plain key stores the usage of one limit alone."""

    plain: bool = False
    parts: list[Part] = field(default_factory=list)
    records: dict[bytes, Record] = field(default_factory=dict)
    written: int = 0
    # In milliseconds.
    expires_at: int = 0

    def _find(self, spec: Spec, taken: list[Part | None]) -> Part | None:
        kind = spec.rule.kind
        of_kind = [part for part in self.parts if part.kind == kind]
        for part in of_kind:
            if part.identity == spec.identity or (spec.rule.key is None and part.identity):
                return part
        return next((one for one in of_kind if not one.identity and one not in taken), None)

    def find_all(self, specs: list[Spec]) -> list[Part | None]:
        """Returns the stored usage for each limit of a call."""
        found: list[Part | None] = []
        for spec in specs:
            found.append(self._find(spec, found))
        return found

    def remembered(self, call: Call, now: int) -> Record | None:
        named = call.once or call.settle
        record = None if named is None else self.records.get(named[0])
        return record if record is not None and now < record.expires_at else None

    @property
    def leases(self) -> Leases | None:
        return next((one.usage for one in self.parts if isinstance(one.usage, Leases)), None)

    def ahead(self, now: int) -> int:
        if self.plain:
            return self.parts[0].usage.ahead(now)
        return max(self.written - now, 0)

    def move_back(self, now: int) -> None:
        """Shifts all timestamps after the clock was set back to `now`."""
        back = self.ahead(now)
        for part in self.parts:
            part.move_back(now)
        for record in self.records.values():
            record.expires_at -= back
            record.hold_until -= back
        self.written = min(self.written, now)

    def begin(self, now: int) -> None:
        """Begins a change: removes expired records."""
        if self.plain:
            # A plain key stores its time of recovery only as its expiry.
            self.plain, self.written = False, now
            remaining = max(self.expires_at - now // 1000, 0) * 1000
            self.parts[0].recovers_at = min(now + remaining, LATEST)
        for name, record in list(self.records.items()):
            if record.expires_at <= now:
                self.forget(record)
                del self.records[name]

    def forget(self, record: Record) -> None:
        for part, charge in record.charges:
            part.forget(charge)
        record.charges = []

    def end(self, now: int) -> None:
        self.written = now
        self.parts = [part for part in self.parts if part.stays(now)]

    def recovers_in(self, now: int) -> int:
        ends = [part.recovers_at for part in self.parts]
        ends += [record.expires_at for record in self.records.values()]
        return max(max(ends, default=0) - now, 0)

    def expire(self, reset: int, now: int) -> None:
        """Sets the expiry of a key that recovers in `reset`, unless the current one is close."""
        recovered = now + reset
        latest = (recovered + reset // 8 + UNIT) // 1000 - 1
        if not -(-recovered // 1000) + 1 <= self.expires_at <= latest:
            self.expires_at = latest

    def release(self, holders: list[bytes], now: int) -> int:
        """Releases leases and returns how many of them were held."""
        part = next((part for part in self.parts if isinstance(part.usage, Leases)), None)
        if part is None:
            if self.plain:
                raise wrong_type(self.parts[0].kind, "rl-leases")
            return 0
        assert isinstance(part.usage, Leases)
        released = part.usage.release(holders, now)
        if released:
            part.recovers_at = now + part.usage.recovers_in(now)
            if not self.plain:
                self.begin(now)
                self.end(now)
            self.expire(self.recovers_in(now), now)
        return released

    @property
    def unused(self) -> bool:
        return not self.records and all(part.usage.unused() for part in self.parts)


def wrong_type(holds: str, needs: str) -> RefusedError:
    return RefusedError(
        f"WRONGTYPE Operation against a key holding {holds}, where {needs} is needed"
    )
