"""Evaluation, charging and reply of a call at one key."""

from __future__ import annotations

from dataclasses import dataclass

from redis_ratelimit.memory.grammar import Call, Spec
from redis_ratelimit.memory.key import Charge, Key, Part, Record, wrong_type
from redis_ratelimit.memory.leases import Leases
from redis_ratelimit.memory.options import UNIT, Request, refused
from redis_ratelimit.memory.rule import (
    AFTER,
    ALLOWED,
    AT_ONCE,
    LATEST,
    NEVER_EVER,
    Usage,
    Verdict,
)

_MOST_PARTS = 16


@dataclass
class Decision:
    verdict: Verdict
    limit: int
    remaining: int
    reset: int
    granted: int | None = None

    def row(self) -> list[int]:
        row = [int(self.verdict[0] == ALLOWED), self.limit // UNIT, self.remaining // UNIT]
        row += [wait_ms(self.verdict), -(-self.reset // 1000)]
        return row if self.granted is None else [*row, self.granted // UNIT]


def wait_ms(verdict: Verdict) -> int:
    """Returns the wait of a verdict in milliseconds, or -1 if the call never passes."""
    return -1 if verdict == NEVER_EVER else -(-verdict[1] // 1000)


@dataclass
class Evaluation:
    """Verdict of one limit on a call, before anything is changed."""

    spec: Spec
    part: Part | None
    verdict: Verdict
    # Units to charge, or to give back if negative.
    change: int = 0
    granted: int | None = None

    @property
    def forced(self) -> bool:
        return self.spec.request.mode == "FORCE"

    @property
    def denies(self) -> bool:
        return not self.forced and self.verdict[0] != ALLOWED

    @property
    def usage(self) -> Usage:
        return self.spec.rule.usage() if self.part is None else self.part.usage


class Visit:
    """Call at one key: evaluated, then charged if all keys of the call allow it."""

    def __init__(self, call: Call, key: Key, now: int) -> None:
        if key.plain and len(call.specs) == 1 and call.specs[0].rule.kind != key.parts[0].kind:
            raise wrong_type(key.parts[0].kind, call.specs[0].rule.kind)
        self.call, self.key, self.now = call, key, now
        self.record = key.remembered(call, now)
        found = zip(call.specs, key.find_all(call.specs), strict=True)
        self.evaluations = [self._evaluate(spec, part) for spec, part in found]
        granted = [one.granted for one in self.evaluations if one.granted is not None]
        self.granted = min(granted, default=None)
        for one in self.evaluations:
            if one.granted is not None and self.granted is not None:
                one.granted = one.change = self.granted
        self.outcome = self._outcome()
        self.charged = False

    def _evaluate(self, spec: Spec, part: Part | None) -> Evaluation:
        request = spec.request
        if self.record is not None:
            request = Request("TAKE", 0)
            spec = Spec(spec.rule, request, spec.kept, spec.name, spec.own_cost)
            spec.rule.nx = False
        found = Evaluation(spec, part, AT_ONCE)
        rule, usage, now, cost = spec.rule, found.usage, self.now, request.cost
        if request.mode == "BACK":
            found.change = 0 if usage.unused() else -cost
            return found
        needed = {"UPTO": UNIT, "PAST": 1}.get(request.mode, cost)
        found.verdict = rule.verdict(usage, now, needed)
        kind, wait = found.verdict
        if request.mode == "MAXWAIT" and kind == AFTER:
            most = request.max_wait
            found.verdict = (ALLOWED, wait) if wait <= most else (AFTER, wait - most)
        passes = found.verdict[0] == ALLOWED
        if request.mode == "UPTO":
            units = rule.remaining(usage, now) // UNIT * UNIT
            found.granted = cost = min(units, cost) if passes else 0
        found.change = cost if passes or request.mode == "FORCE" else 0
        return found

    def _outcome(self) -> str:
        if self.call.settle is not None:
            if self.record is None:
                return "UNKNOWN"
            return "SETTLED" if self.record.settled else "SETTLES"
        if self.record is not None:
            return "REPEATED"
        denied = self.call.purpose != "BACK" and any(one.denies for one in self.evaluations)
        return "DENIED" if denied else "PASSES"

    @property
    def denies(self) -> bool:
        return self.outcome == "DENIED"

    @property
    def knows(self) -> bool:
        return self.outcome in {"REPEATED", "SETTLES", "SETTLED"}

    @property
    def changes(self) -> bool:
        if self.outcome == "SETTLES":
            return True
        return self.outcome == "PASSES" and any(one.change for one in self.evaluations)

    @property
    def _remembers(self) -> bool:
        return self.call.once is not None and self.outcome == "PASSES" and self.changes

    def check_room(self) -> None:
        if self.key.plain or not self.changes:
            return
        new = sum(one.part is None and one.change > 0 for one in self.evaluations)
        charged = [one.part for one in self.evaluations if one.change > 0]
        stay = sum(part.stays(self.now) or part in charged for part in self.key.parts)
        if self.outcome == "PASSES" and new and stay + new > _MOST_PARTS:
            raise refused(f"the key has {_MOST_PARTS} limits, as many as one key may have")

    def commit(self) -> None:
        """Applies the changes and sets the expiry of the key."""
        key, now, self.charged = self.key, self.now, True
        missing = not key.parts and not key.records
        changing = [one for one in self.evaluations if one.change]
        if missing and self.call.plain:
            # A call that charges nothing creates no key, so there is a change.
            rule = changing[0].spec.rule
            changing[0].part = Part(rule.kind, rule.usage())
            key.parts, key.plain = [changing[0].part], True
        stays_plain = (
            not self._remembers
            and self.outcome == "PASSES"
            and all(one.part is not None and one.spec.name is None for one in changing)
        )
        if key.plain and stays_plain:
            for one in changing:
                assert one.part is not None
                one.part.change(one.spec.rule, one.change, now)
                key.expire(one.part.recovers_at - now, now)
            key.parts = [part for part in key.parts if not part.usage.unused()]
            return
        key.begin(now)
        if self.outcome == "SETTLES":
            self._settle()
        else:
            self._charge_all(changing)
        key.end(now)
        for one, part in zip(self.evaluations, key.find_all(self.call.specs), strict=True):
            one.part = part
        key.expire(key.recovers_in(now), now)

    def _charge_all(self, changing: list[Evaluation]) -> None:
        key, now, charges = self.key, self.now, list[tuple[Part, Charge]]()
        for one in changing:
            if one.part is None:
                one.part = Part(one.spec.rule.kind, one.spec.rule.usage())
                key.parts.append(one.part)
            part = one.part
            part.identity = part.identity or one.spec.identity
            part.change(one.spec.rule, one.change, now)
            if self._remembers and one.change > 0 and not isinstance(part.usage, Leases):
                charge = Charge(one.change, part.usage.place(), part.given_back)
                part.charges.append(charge)
                charges.append((part, charge))
        if self._remembers and self.call.once is not None:
            name, ttl = self.call.once
            holds = [one.verdict[1] for one in self.evaluations if one.verdict[0] == ALLOWED]
            key.records[name] = Record(
                expires_at=min(now + ttl, LATEST),
                hold_until=min(now + max(holds, default=0), LATEST),
                forced=any(one.forced for one in self.evaluations),
                granted=self.granted,
                charges=charges,
            )

    def _settle(self) -> None:
        record, settle = self.record, self.call.settle
        assert record is not None
        assert settle is not None
        charges, record.charges, record.settled = record.charges, [], True
        for part, charge in charges:
            one = next((one for one in self.evaluations if one.part is part), None)
            if one is None or one.spec.own_cost or settle[1] == charge.cost:
                part.forget(charge)
            else:
                part.settle(one.spec.rule, charge, settle[1], self.now)

    def decisions(self) -> list[Decision]:
        """Returns the decision of each limit, with the current usage."""
        return [
            self._decision(one, spec)
            for one, spec in zip(self.evaluations, self.call.specs, strict=True)
        ]

    def _decision(self, one: Evaluation, spec: Spec) -> Decision:
        rule, usage, now, verdict = spec.rule, one.usage, self.now, one.verdict
        if one.forced and verdict[0] != ALLOWED:
            charged = self.charged or not one.change
            after = 0 if charged else one.change
            verdict = (AFTER, rule.debt_after(usage, now, after))
        verdict = self._overridden(verdict, spec)
        granted = None
        if spec.request.mode == "UPTO":
            granted = one.granted or 0
            if self.record is not None and self.outcome == "REPEATED":
                granted = self.record.granted
                if granted is None:
                    granted = spec.request.cost if verdict[0] == ALLOWED else 0
        limit, remaining = rule.limit + spec.kept, rule.remaining(usage, now)
        return Decision(verdict, limit, remaining, rule.reset(usage, now), granted)

    def _overridden(self, verdict: Verdict, spec: Spec) -> Verdict:
        """Returns the verdict of a limit, which a settlement, a repeated call or a give-back
        overrides.
        """
        if self.outcome == "UNKNOWN":
            return NEVER_EVER
        if self.outcome in {"SETTLES", "SETTLED"}:
            return AT_ONCE
        if self.outcome == "REPEATED" and self.record is not None:
            forces = any(one.request.mode == "FORCE" for one in self.call.specs)
            past = spec.request.mode == "FORCE" or not forces
            if self.record.forced and verdict[0] != ALLOWED and past:
                return verdict
            return (ALLOWED, max(self.record.hold_until - self.now, 0))
        return AT_ONCE if self.call.purpose == "BACK" else verdict

    def combined(self, each: list[Decision]) -> Decision:
        """Returns the combined decision of all limits."""
        pairs = list(zip(each, self.evaluations, strict=True))
        denying = [
            decision
            for decision, one in pairs
            if (one.denies if self.denies else decision.verdict[0] != ALLOWED)
        ]
        if denying:
            verdict = max(decision.verdict for decision in denying)
            governing = next(decision for decision in denying if decision.verdict == verdict)
        else:
            verdict = max(decision.verdict for decision in each)
            governing = each[0]
            least = self._cost(0)
            for place, candidate in enumerate(each):
                if candidate.remaining * least < governing.remaining * self._cost(place):
                    governing, least = candidate, self._cost(place)
        decision = Decision(verdict, governing.limit, governing.remaining, governing.reset)
        most = next((s.request.cost for s in self.call.specs if s.request.mode == "UPTO"), None)
        if most is not None:
            decision.granted = self._granted(most, verdict)
        return decision

    def _cost(self, place: int) -> int:
        request = self.call.specs[place].request
        return UNIT if request.mode in {"BACK", "PAST"} else request.cost or UNIT

    def _granted(self, most: int, verdict: Verdict) -> int:
        if self.outcome == "PASSES":
            return most if self.granted is None else self.granted
        if self.outcome == "REPEATED" and self.record is not None:
            if self.record.granted is not None:
                return self.record.granted
            return most if verdict[0] == ALLOWED else 0
        return 0
