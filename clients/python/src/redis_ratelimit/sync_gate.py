# Generated from aio_gate.py by scripts/make_sync.py: edit that file, and run `make sync`.

"""Limits of requests, for threads."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from redis_ratelimit.decision import Decision
from redis_ratelimit.errors import RateLimitError
from redis_ratelimit.gate import UNLIMITED, BaseGate
from redis_ratelimit.headers import Denial
from redis_ratelimit.threads import resolved


class Gate(BaseGate):
    __doc__ = BaseGate.__doc__

    def take(self, address: str | None, *request: Any) -> Decision | None:
        """Charges a request from an address. Returns None if it has no limit."""
        limits: Any = self._bound
        if limits is None:
            limits = resolved(self._limit_of(*request))
            if limits is UNLIMITED:
                return None
        caller = None if self._key is None else resolved(self._key(*request))
        charge = self._charge(limits, caller, address)
        if charge is None:
            return None
        cost = self._cost
        if callable(cost):
            cost = resolved(cost(*request))
        options = self._options(charge, cost)
        bound: Any = charge.bound
        decision: Decision
        if bound is None:
            decision = self._limiter.take_all(charge.limits, **options)
        else:
            decision = bound._take(charge.key, options)
        return decision

    def hold(self, decision: Decision) -> None:
        """Delays an allowed request for `Decision.wait`, as a leaky bucket requires."""
        if decision.wait_ms:
            limiter: Any = self._limiter if self._bound is None else self._bound.limiter
            limiter._transport.sleep(decision.wait_ms / 1000)

    def answer(self, denial: Denial, *request: Any) -> Any:
        """Returns the response of the application's `denied` function, or None without one."""
        denied = self._denied
        return None if denied is None else resolved(denied(*request, denial))

    def refund(self, decision: Decision, response: Any) -> None:
        """Gives the charge back if the application's `refund` function returns `True`."""
        if self.is_refunded(decision, response):
            # The request was served. If the refund fails, the usage recovers by itself.
            with suppress(RateLimitError, ValueError):
                decision.settle(0)
