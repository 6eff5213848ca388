"""State of a key: the usage of its limits, and the calls recorded by their idempotency keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from redis_ratelimit.memory.grammar import Call, Spec
from redis_ratelimit.memory.leases import Leases
from redis_ratelimit.memory.options import UNIT
from redis_ratelimit.memory.rule import LATEST, MAX_USAGE, Rule, Usage
from redis_ratelimit.resp import RefusedError


@dataclass(eq=False)
class Charge:
    """Charge that may be settled."""

    cost: int
    # Identity of the charge in usage that keeps charges apart.
    place: int | None
    # Units that had been given back to the component before this charge.
    given_back: int
    # Lowest usage since this charge, where usage does not keep charges apart.
    lowest_usage: int | None = None


@dataclass(eq=False)
class Component:
    """Usage of one limit of a key. Without an identity it is found by its kind alone."""

    kind: str
    usage: Usage
    identity: object = None
    recovers_at: int = 0
    # Charges that may be settled, oldest first, and the units given back by calls since the first.
    charges: list[Charge] = field(default_factory=list)
    given_back: int = 0

    def change(self, rule: Rule, change: int, now: int) -> None:
        """Charges `change` units, or gives them back if it is negative."""
        if self.charges:
            self._record_lowest_usage(rule, max(-change, 0), now)
        if change > 0:
            rule.charge(self.usage, now, change)
        else:
            rule.give_back(self.usage, now, -change)
        self._changed(rule, now)

    def _record_lowest_usage(self, rule: Rule, given_back: int, now: int) -> None:
        """Records the usage up to which earlier charges can still be settled, before a change that
        gives back `given_back` units.
        """
        usage = 0 if self.usage.is_unused() else rule.settleable_usage(self.usage, now)
        if usage is None:
            self.given_back = min(self.given_back + given_back, MAX_USAGE)
            return
        usage = max(usage - given_back, 0)
        for charge in self.charges:
            charge.lowest_usage = (
                usage if charge.lowest_usage is None else min(charge.lowest_usage, usage)
            )

    def _changed(self, rule: Rule, now: int) -> None:
        self.recovers_at = min(now + rule.reset(self.usage, now), LATEST)
        if self.usage.is_unused():
            self.usage = type(self.usage)()

    def settle(self, rule: Rule, charge: Charge, cost: int, now: int) -> None:
        """Corrects usage as if `cost` had been charged from the beginning."""
        max_taken = MAX_USAGE if charge.lowest_usage is None else charge.lowest_usage
        if charge.place is not None:
            given_back_since = (
                charge.cost if self.given_back == MAX_USAGE else self.given_back - charge.given_back
            )
            max_taken = min(max_taken, max(charge.cost - given_back_since, 0))
        taken = self.usage.take_back(charge.place, min(max(charge.cost - cost, 0), max_taken))
        self._lower_other_charges(charge, taken)
        self.forget(charge)
        if cost > charge.cost:
            self.change(rule, cost - charge.cost, now)
        self._changed(rule, now)

    def _lower_other_charges(self, settled: Charge, taken: int) -> None:
        """Lowers the `lowest_usage` of the other charges after one was settled to a lower cost."""
        if settled.lowest_usage is None:
            return
        settled.lowest_usage = max(settled.lowest_usage - taken, 0)
        index = self.charges.index(settled)
        for charge in self.charges[index + 1 :]:
            if charge.lowest_usage is not None:
                charge.lowest_usage = max(charge.lowest_usage - taken, 0)
        for charge in self.charges[:index]:
            if charge.lowest_usage is None:
                charge.lowest_usage = settled.lowest_usage
            else:
                charge.lowest_usage = min(charge.lowest_usage, settled.lowest_usage)

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

    def is_kept(self, now: int) -> bool:
        return bool(self.charges) or (now < self.recovers_at and not self.usage.is_unused())


@dataclass
class Record:
    """Call recorded by its idempotency key."""

    expires_at: int
    hold_until: int
    is_forced: bool
    granted: int | None
    charges: list[tuple[Component, Charge]]
    is_settled: bool = False


@dataclass
class Key:
    """Value of a key. A plain key stores the usage of one limit alone."""

    is_plain: bool = False
    components: list[Component] = field(default_factory=list)
    records: dict[bytes, Record] = field(default_factory=dict)
    written: int = 0
    # Expiry in milliseconds since 1970; 0 for a key that is not stored.
    expires_at: int = 0

    def _find(self, spec: Spec, excluded: list[Component | None]) -> Component | None:
        kind = spec.rule.kind
        of_kind = [component for component in self.components if component.kind == kind]
        for component in of_kind:
            if component.identity == spec.identity or (
                spec.rule.key is None and component.identity
            ):
                return component
        return next((one for one in of_kind if not one.identity and one not in excluded), None)

    def find_all(self, specs: list[Spec]) -> list[Component | None]:
        """Returns the component of each limit of a call, or None if it is not stored."""
        components: list[Component | None] = []
        for spec in specs:
            components.append(self._find(spec, components))
        return components

    def find_record(self, call: Call, now: int) -> Record | None:
        id_and_value = call.once or call.settle
        record = None if id_and_value is None else self.records.get(id_and_value[0])
        return record if record is not None and now < record.expires_at else None

    @property
    def leases(self) -> Leases | None:
        return next((one.usage for one in self.components if isinstance(one.usage, Leases)), None)

    def ahead(self, now: int) -> int:
        if self.is_plain:
            return self.components[0].usage.ahead(now)
        return max(self.written - now, 0)

    def move_back(self, now: int) -> None:
        """Shifts all timestamps after the clock was set back to `now`."""
        shift = self.ahead(now)
        for component in self.components:
            component.move_back(now)
        for record in self.records.values():
            record.expires_at -= shift
            record.hold_until -= shift
        self.written = min(self.written, now)

    def begin(self, now: int) -> None:
        """Begins a change: removes expired records."""
        if self.is_plain:
            # A plain key stores its time of recovery only as its expiry.
            self.is_plain, self.written = False, now
            remaining = max(self.expires_at - now // 1000, 0) * 1000
            self.components[0].recovers_at = min(now + remaining, LATEST)
        for name, record in list(self.records.items()):
            if record.expires_at <= now:
                self.forget(record)
                del self.records[name]

    def forget(self, record: Record) -> None:
        for component, charge in record.charges:
            component.forget(charge)
        record.charges = []

    def end(self, now: int) -> None:
        self.written = now
        self.components = [component for component in self.components if component.is_kept(now)]

    def recovers_in(self, now: int) -> int:
        recovery_times = [component.recovers_at for component in self.components]
        recovery_times += [record.expires_at for record in self.records.values()]
        return max(max(recovery_times, default=0) - now, 0)

    def expire(self, reset: int, now: int) -> None:
        """Sets the expiry of a key that recovers in `reset`, but keeps one slightly after that."""
        recovers_at = now + reset
        latest = (recovers_at + reset // 8 + UNIT) // 1000 - 1
        if not -(-recovers_at // 1000) + 1 <= self.expires_at <= latest:
            self.expires_at = latest

    def release(self, holders: list[bytes], now: int) -> int:
        """Releases leases and returns how many of them were held."""
        component = next(
            (component for component in self.components if isinstance(component.usage, Leases)),
            None,
        )
        if component is None:
            if self.is_plain:
                raise wrong_type(self.components[0].kind, "rl-leases")
            return 0
        assert isinstance(component.usage, Leases)
        released = component.usage.release(holders, now)
        if released:
            component.recovers_at = now + component.usage.recovers_in(now)
            if not self.is_plain:
                self.begin(now)
                self.end(now)
            self.expire(self.recovers_in(now), now)
        return released

    @property
    def is_unused(self) -> bool:
        return not self.records and all(
            component.usage.is_unused() for component in self.components
        )


def wrong_type(actual_kind: str, needed_kind: str) -> RefusedError:
    return RefusedError(
        f"WRONGTYPE Operation against a key holding {actual_kind}, where {needed_kind} is needed"
    )
