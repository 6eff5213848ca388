"""Evaluation, charging and reply of a call at one key."""

from __future__ import annotations

from dataclasses import dataclass

from redis_ratelimit.memory.grammar import Call, Spec
from redis_ratelimit.memory.key import Charge, Component, Key, Record, wrong_type
from redis_ratelimit.memory.leases import Leases
from redis_ratelimit.memory.options import UNIT, Request, refusal
from redis_ratelimit.memory.rule import (
    AFTER,
    ALLOWED,
    ALLOWED_NOW,
    LATEST,
    NEVER_ALLOWED,
    Usage,
    Verdict,
)

_MAX_COMPONENTS = 16


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
    return -1 if verdict == NEVER_ALLOWED else -(-verdict[1] // 1000)


@dataclass
class Evaluation:
    """Verdict of one limit on a call, before anything is changed."""

    spec: Spec
    component: Component | None
    verdict: Verdict
    # Units to charge, or to give back if negative.
    change: int = 0
    granted: int | None = None

    @property
    def is_forced(self) -> bool:
        return self.spec.request.mode == "FORCE"

    @property
    def denies(self) -> bool:
        return not self.is_forced and self.verdict[0] != ALLOWED

    @property
    def usage(self) -> Usage:
        return self.spec.rule.usage() if self.component is None else self.component.usage


class Visit:
    """Call at one key: evaluated, then charged if all keys of the call allow it."""

    def __init__(self, call: Call, key: Key, now: int) -> None:
        if (
            key.is_plain
            and len(call.specs) == 1
            and call.specs[0].rule.kind != key.components[0].kind
        ):
            raise wrong_type(key.components[0].kind, call.specs[0].rule.kind)
        self.call, self.key, self.now = call, key, now
        self.record = key.find_record(call, now)
        pairs = zip(call.specs, key.find_all(call.specs), strict=True)
        self.evaluations = [self._evaluate(spec, component) for spec, component in pairs]
        granted = [one.granted for one in self.evaluations if one.granted is not None]
        self.granted = min(granted, default=None)
        for one in self.evaluations:
            if one.granted is not None and self.granted is not None:
                one.granted = one.change = self.granted
        self.outcome = self._outcome()
        self.charged = False

    def _evaluate(self, spec: Spec, component: Component | None) -> Evaluation:
        request = spec.request
        if self.record is not None:
            request = Request("TAKE", 0)
            spec = Spec(spec.rule, request, spec.kept, spec.name, spec.has_own_cost)
            spec.rule.nx = False
        evaluation = Evaluation(spec, component, ALLOWED_NOW)
        rule, usage, now, cost = spec.rule, evaluation.usage, self.now, request.cost
        if request.mode == "BACK":
            evaluation.change = 0 if usage.is_unused() else -cost
            return evaluation
        needed = {"UPTO": UNIT, "PAST": 1}.get(request.mode, cost)
        evaluation.verdict = rule.verdict(usage, now, needed)
        kind, wait = evaluation.verdict
        if request.mode == "MAXWAIT" and kind == AFTER:
            excess = wait - request.max_wait
            evaluation.verdict = (ALLOWED, wait) if excess <= 0 else (AFTER, excess)
        passes = evaluation.verdict[0] == ALLOWED
        if request.mode == "UPTO":
            units = rule.remaining(usage, now) // UNIT * UNIT
            evaluation.granted = cost = min(units, cost) if passes else 0
        evaluation.change = cost if passes or request.mode == "FORCE" else 0
        return evaluation

    def _outcome(self) -> str:
        if self.call.settle is not None:
            if self.record is None:
                return "UNKNOWN"
            return "SETTLED" if self.record.is_settled else "SETTLES"
        if self.record is not None:
            return "REPEATED"
        denied = self.call.purpose != "BACK" and any(one.denies for one in self.evaluations)
        return "DENIED" if denied else "PASSES"

    @property
    def denies(self) -> bool:
        return self.outcome == "DENIED"

    @property
    def knows_id(self) -> bool:
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
        if self.key.is_plain or not self.changes:
            return
        new_count = sum(one.component is None and one.change > 0 for one in self.evaluations)
        charged = [one.component for one in self.evaluations if one.change > 0]
        kept_count = sum(
            component.is_kept(self.now) or component in charged for component in self.key.components
        )
        if self.outcome == "PASSES" and new_count and kept_count + new_count > _MAX_COMPONENTS:
            raise refusal(f"the key has {_MAX_COMPONENTS} limits, as many as one key may have")

    def commit(self) -> None:
        """Applies the changes and sets the expiry of the key."""
        key, now, self.charged = self.key, self.now, True
        is_missing = not key.components and not key.records
        changing = [one for one in self.evaluations if one.change]
        if is_missing and self.call.is_plain:
            # A call that charges nothing creates no key, so there is a change.
            rule = changing[0].spec.rule
            changing[0].component = Component(rule.kind, rule.usage())
            key.components, key.is_plain = [changing[0].component], True
        stays_plain = (
            not self._remembers
            and self.outcome == "PASSES"
            and all(one.component is not None and one.spec.name is None for one in changing)
        )
        if key.is_plain and stays_plain:
            for one in changing:
                assert one.component is not None
                one.component.change(one.spec.rule, one.change, now)
                key.expire(one.component.recovers_at - now, now)
            key.components = [
                component for component in key.components if not component.usage.is_unused()
            ]
            return
        key.begin(now)
        if self.outcome == "SETTLES":
            self._settle()
        else:
            self._charge_all(changing)
        key.end(now)
        for one, component in zip(self.evaluations, key.find_all(self.call.specs), strict=True):
            one.component = component
        key.expire(key.recovers_in(now), now)

    def _charge_all(self, changing: list[Evaluation]) -> None:
        key, now, charges = self.key, self.now, list[tuple[Component, Charge]]()
        for one in changing:
            if one.component is None:
                one.component = Component(one.spec.rule.kind, one.spec.rule.usage())
                key.components.append(one.component)
            component = one.component
            component.identity = component.identity or one.spec.identity
            component.change(one.spec.rule, one.change, now)
            if self._remembers and one.change > 0 and not isinstance(component.usage, Leases):
                charge = Charge(one.change, component.usage.place(), component.given_back)
                component.charges.append(charge)
                charges.append((component, charge))
        if self._remembers and self.call.once is not None:
            name, ttl = self.call.once
            holds = [one.verdict[1] for one in self.evaluations if one.verdict[0] == ALLOWED]
            key.records[name] = Record(
                expires_at=min(now + ttl, LATEST),
                hold_until=min(now + max(holds, default=0), LATEST),
                is_forced=any(one.is_forced for one in self.evaluations),
                granted=self.granted,
                charges=charges,
            )

    def _settle(self) -> None:
        record, settle = self.record, self.call.settle
        assert record is not None
        assert settle is not None
        charges, record.charges, record.is_settled = record.charges, [], True
        for component, charge in charges:
            one = next((one for one in self.evaluations if one.component is component), None)
            if one is None or one.spec.has_own_cost or settle[1] == charge.cost:
                component.forget(charge)
            else:
                component.settle(one.spec.rule, charge, settle[1], self.now)

    def decisions(self) -> list[Decision]:
        """Returns the decision of each limit, with the current usage."""
        return [
            self._decision(one, spec)
            for one, spec in zip(self.evaluations, self.call.specs, strict=True)
        ]

    def _decision(self, evaluation: Evaluation, spec: Spec) -> Decision:
        rule, usage, now, verdict = spec.rule, evaluation.usage, self.now, evaluation.verdict
        if evaluation.is_forced and verdict[0] != ALLOWED:
            charged = self.charged or not evaluation.change
            pending_change = 0 if charged else evaluation.change
            verdict = (AFTER, rule.debt_after(usage, now, pending_change))
        verdict = self._reported_verdict(verdict, spec)
        granted = None
        if spec.request.mode == "UPTO":
            granted = evaluation.granted or 0
            if self.record is not None and self.outcome == "REPEATED":
                granted = self.record.granted
                if granted is None:
                    granted = spec.request.cost if verdict[0] == ALLOWED else 0
        limit, remaining = rule.limit + spec.kept, rule.remaining(usage, now)
        return Decision(verdict, limit, remaining, rule.reset(usage, now), granted)

    def _reported_verdict(self, verdict: Verdict, spec: Spec) -> Verdict:
        """Returns the verdict to report for a limit with this verdict: a settlement, a repeated
        call and a give-back have verdicts of their own.
        """
        if self.outcome == "UNKNOWN":
            return NEVER_ALLOWED
        if self.outcome in {"SETTLES", "SETTLED"}:
            return ALLOWED_NOW
        if self.outcome == "REPEATED" and self.record is not None:
            forces = any(one.request.mode == "FORCE" for one in self.call.specs)
            may_be_denied = spec.request.mode == "FORCE" or not forces
            if self.record.is_forced and verdict[0] != ALLOWED and may_be_denied:
                return verdict
            return (ALLOWED, max(self.record.hold_until - self.now, 0))
        return ALLOWED_NOW if self.call.purpose == "BACK" else verdict

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
            governing_cost = self._cost(0)
            for index, candidate in enumerate(each):
                cost = self._cost(index)
                if candidate.remaining * governing_cost < governing.remaining * cost:
                    governing, governing_cost = candidate, cost
        decision = Decision(verdict, governing.limit, governing.remaining, governing.reset)
        requests = [spec.request for spec in self.call.specs]
        upto = next((request.cost for request in requests if request.mode == "UPTO"), None)
        if upto is not None:
            decision.granted = self._granted(upto, verdict)
        return decision

    def _cost(self, index: int) -> int:
        request = self.call.specs[index].request
        return UNIT if request.mode in {"BACK", "PAST"} else request.cost or UNIT

    def _granted(self, upto: int, verdict: Verdict) -> int:
        """Returns the units that a call for up to `upto` units was granted."""
        if self.outcome == "PASSES":
            return upto if self.granted is None else self.granted
        if self.outcome == "REPEATED" and self.record is not None:
            if self.record.granted is not None:
                return self.record.granted
            return upto if verdict[0] == ALLOWED else 0
        return 0
