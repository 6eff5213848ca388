"""The decision on one request: by Redis, or here while Redis is away."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from ratelimit.calls import Calls, UnavailableError
from ratelimit.lease import Lease
from ratelimit.limits import PREFIX, Charge, Decision, Limit, key_of
from ratelimit.local import LocalLimits

log = logging.getLogger("ratelimit")

# Sends a call: `Calls`, or its `resend`.
Send = Callable[..., Awaitable[list]]

# How long a reservation can be settled: longer than any request takes.
RESERVED_FOR = "10m"


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
    # Of a reservation: what Redis knows it by.
    id: str | None = None

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
    """All limits of a request in one call: all are charged, or none is.

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
        *,
        shared: bool = False,
    ) -> Verdict:
        """One unit of those limits that apply to the caller, each on a key of its own. With
        `shared`, those on all tenants too: once a request is enough.
        """
        charges = self._charges(limits, caller, 1)
        leases = self._shared if shared else ()
        try:
            return await self._ask(charges, leases)
        except UnavailableError:
            return self._without_redis(charges, [lease.charge for lease in leases])

    async def take_on_one_key(
        self, limits: Sequence[Limit], caller: Mapping[str, str], *, ban: str = ""
    ) -> Verdict:
        """One unit of limits that share their key. `ban` is `strikes window block`: whoever was
        denied so often within such a window is denied everything for so long.
        """
        charges = self._charges(limits, caller, 1)
        try:
            return await self._ask_key(
                self._calls, charges, [], ["BAN", *ban.split()] if ban else []
            )
        except UnavailableError:
            return self._without_redis(charges)

    async def reserve(
        self, limits: Sequence[Limit], caller: Mapping[str, str], estimate: int
    ) -> Verdict:
        """What a request may cost, of limits that share their key; `settle` says what it did."""
        charges = self._charges(limits, caller, estimate)
        # Of our own making: an id that was charged passes freely.
        identity = uuid4().hex
        options = ["COST", estimate, "ONCE", identity, RESERVED_FOR]
        try:
            verdict = await self._ask_key(self._calls.resend, charges, options)
        except UnavailableError:
            return self._without_redis(charges)
        return replace(verdict, id=identity)

    async def settle(self, verdict: Verdict, used: int) -> Verdict:
        """What a reservation turned out to cost: usage becomes what it would be had that been
        charged at once. The verdict with what is left then.
        """
        if verdict.is_local:
            # Where it was charged: Redis does not know it.
            decisions = [self._local.settle(charge, used) for charge in verdict.charges]
        else:
            options = ["SETTLE", verdict.id, used]
            try:
                settled = await self._ask_key(self._calls.resend, verdict.charges, options)
            except UnavailableError:
                # No warning: the outage has one, and this is one for each request under way.
                log.info("%s: not settled for %d", verdict.id, used)
                return verdict
            decisions = settled.decisions
        # It may be in debt now, but this request has passed.
        return replace(verdict, decisions=[one._replace(allowed=1) for one in decisions])

    def _charges(
        self, limits: Sequence[Limit], caller: Mapping[str, str], cost: int
    ) -> list[Charge]:
        return [
            Charge(key_of(self._prefix, limit, caller), limit, limit.cost or cost)
            for limit in limits
            if limit.applies_to(caller)
        ]

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
        specs = [word for charge in charges for word in charge.limit.words]
        return _verdict(charges, await self._calls(keys[0], "RL.MTAKE", len(keys), *keys, *specs))

    async def _ask_key(
        self,
        send: Send,
        charges: Sequence[Charge],
        options: Sequence[object],
        ban: Sequence[str] = (),
    ) -> Verdict:
        if not charges:
            return Verdict(True, 0, [], [])
        (key,) = {charge.key for charge in charges}
        specs = [word for charge in charges for word in charge.limit.words_of_part]
        return _verdict(charges, await send(key, "RL.TAKE", key, "EACH", *options, *specs, *ban))

    def _without_redis(self, charges: Sequence[Charge], leased: Sequence[Charge] = ()) -> Verdict:
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


def _verdict(charges: Sequence[Charge], reply: list) -> Verdict:
    allowed, wait_ms, decisions = reply
    # With EACH the name of the limit is the last. They come in the order in which they were asked.
    decided = [Decision(*integers[:5]) for integers in decisions]
    return Verdict(bool(allowed), wait_ms, charges, decided)


def _denied_by(lease: Lease) -> Verdict:
    wait_ms = lease.wait_ms
    decision = Decision(0, lease.charge.limit.quota, 0, wait_ms, lease.charge.limit.window * 1000)
    return Verdict(False, wait_ms, [lease.charge], [decision])
