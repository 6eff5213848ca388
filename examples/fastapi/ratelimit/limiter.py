"""The decision on one request: by Redis, or here while Redis is away."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ratelimit.calls import Calls, UnavailableError
from ratelimit.lease import Lease
from ratelimit.limits import PREFIX, Charge, Decision, Limit, key_of
from ratelimit.local import LocalLimits

log = logging.getLogger("ratelimit")


@dataclass(frozen=True)
class Verdict:
    """Whether a request may pass, and what each limit says."""

    allowed: bool
    # If denied: how long until the same would pass, -1 if never. While Redis is away, nobody knows:
    # how long until it is asked again.
    wait_ms: int
    charges: Sequence[Charge]
    decisions: Sequence[Decision]
    # Redis was away: this process decided, by its share of the limits.
    is_local: bool = False
    # Redis was away, and without it nothing passes.
    is_outage: bool = False

    @property
    def is_by_redis(self) -> bool:
        return not (self.is_local or self.is_outage)

    @property
    def denied_by(self) -> list[str]:
        pairs = zip(self.charges, self.decisions, strict=True)
        return [charge.limit.name for charge, decision in pairs if not decision.allowed]


class DeniedError(Exception):
    """For a handler that asks the limiter itself: the application answers with `denial`."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.denied_by)
        self.verdict = verdict


class Limiter:
    """All limits of a request in one RL.MTAKE: all are charged, or none is.

    In a cluster the keys of one call must share a slot, so those of a tenant have the tenant as
    their hash tag. A limit that all tenants share cannot be among them: it is a `Lease`, spent
    here first, and put back if the tenant's limits deny.

    `fail_open` is what to do while Redis is away: go on by limits that this process keeps, of its
    `share`; else deny everything.
    """

    def __init__(
        self,
        calls: Calls,
        *,
        shared: Sequence[Lease] = (),
        fail_open: bool = True,
        share: float = 1.0,
        prefix: str = PREFIX,
    ) -> None:
        self._calls = calls
        self._shared = shared
        self._fail_open = fail_open
        self._local = LocalLimits(share)
        self._prefix = prefix

    async def take(
        self,
        limits: Sequence[Limit],
        caller: Mapping[str, str],
        costs: Mapping[str, int] | None = None,
        *,
        shared: bool = False,
    ) -> Verdict:
        """Those limits that apply to the caller, a cost of 1 if none is given by a limit's name.
        With `shared`, those on all tenants too: once a request is enough.
        """
        costs = costs or {}
        charges = [
            Charge(key_of(self._prefix, limit, caller), limit, costs.get(limit.name, 1))
            for limit in limits
            if limit.applies_to(caller)
        ]
        leases = self._shared if shared else ()
        try:
            return await self._ask(charges, leases)
        except UnavailableError:
            return self._without_redis(charges, [lease.charge for lease in leases])

    async def _ask(self, charges: Sequence[Charge], leases: Sequence[Lease]) -> Verdict:
        taken: list[Lease] = []
        verdict = None
        try:
            for lease in leases:
                if not await lease.take():
                    verdict = _denied_by(lease)
                    return verdict
                taken.append(lease)
            verdict = await self._ask_redis(charges)
            return verdict
        finally:
            if verdict is None or not verdict.allowed:
                for lease in taken:
                    lease.put_back()

    async def _ask_redis(self, charges: Sequence[Charge]) -> Verdict:
        if not charges:
            return Verdict(True, 0, [], [])
        keys = [charge.key for charge in charges]
        specs = [word for charge in charges for word in (*charge.limit.words, "COST", charge.cost)]
        allowed, wait_ms, decisions = await self._calls(
            keys[0], "RL.MTAKE", len(keys), *keys, *specs
        )
        return Verdict(bool(allowed), wait_ms, charges, [Decision(*one) for one in decisions])

    def _without_redis(self, charges: Sequence[Charge], leased: Sequence[Charge]) -> Verdict:
        asked_again_ms = round(self._calls.breaker.pause * 1000)
        if not self._fail_open:
            return Verdict(False, asked_again_ms, [], [], is_outage=True)
        asked = [*leased, *charges]
        decisions = self._local.take(asked)
        allowed = all(decision.allowed for decision in decisions)
        wait_ms = 0 if allowed else asked_again_ms
        # A limit on all tenants is told of only where it denies, as by Redis.
        told = [
            (charge, decision)
            for charge, decision in zip(asked, decisions, strict=True)
            if not decision.allowed or charge not in leased
        ]
        return Verdict(
            allowed,
            wait_ms,
            [charge for charge, _ in told],
            [decision for _, decision in told],
            is_local=True,
        )

    async def settle(self, verdict: Verdict, name: str, used: int) -> Verdict:
        """For a cost that is known only afterwards: the difference to what was charged is given
        back, or charged on top, past the limit if need be. The verdict with what is left then.
        """
        names = [charge.limit.name for charge in verdict.charges]
        charge = verdict.charges[names.index(name)]
        difference = used - charge.cost
        if difference == 0:
            return verdict
        try:
            if verdict.is_local:
                # Where it was charged: Redis knows nothing of it, and would give others' units.
                decision = self._local.charge(charge, difference)
            else:
                decision = await self._settle_in_redis(charge, difference)
        except UnavailableError:
            # No warning: there is one for the outage, and this is one for each request under way.
            log.info("%s: not settled, %d stay charged for %d", charge.key, charge.cost, used)
            return verdict
        decisions = list(verdict.decisions)
        # It may be in debt now, but this request has passed.
        decisions[names.index(name)] = decision._replace(allowed=1)
        return replace(verdict, decisions=decisions)

    async def _settle_in_redis(self, charge: Charge, difference: int) -> Decision:
        key, limit, _ = charge
        option = ["FORCE"] if difference > 0 else []
        return Decision(
            *await self._calls(key, "RL.TAKE", key, *limit.words, "COST", difference, *option)
        )


def _denied_by(lease: Lease) -> Verdict:
    wait_ms = lease.wait_ms
    decision = Decision(0, lease.charge.limit.quota, 0, wait_ms, lease.charge.limit.window * 1000)
    return Verdict(False, wait_ms, [lease.charge], [decision])
