"""Limits of a tenant, charged in one call, and a global limit that all tenants share."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from string import Formatter
from urllib.parse import quote

from redis_ratelimit import Decision, Denial, Limit, RateLimitError, fields
from redis_ratelimit.aio import Limiter
from redis_ratelimit.units import AsyncUnits
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("tenants")

# Prefix of every key.
PREFIX = "rl"

# Fields of a caller for the keys of its limits. "tenant" is required.
Caller = Mapping[str, str]

# Limits by the template of their key: "user:{user}" applies to callers with a known user.
Limits = Mapping[str, Limit]


def key_of(template: str, caller: Caller) -> str:
    """Returns `rl:{tenant}:...`. The part in braces alone decides the slot in a cluster."""
    names = {field: _escaped(name) for field, name in caller.items()}
    return f"{PREFIX}:{{{names['tenant']}}}:{template.format_map(names)}"


def limits_by_key(limits: Limits, caller: Caller) -> dict[str, Limit]:
    """Returns the limits that apply to the caller, by key."""
    return {
        key_of(template, caller): limit
        for template, limit in limits.items()
        if {field for _, field, _, _ in Formatter().parse(template) if field} <= caller.keys()
    }


def _escaped(name: str) -> str:
    """Escapes a name like JavaScript's encodeURIComponent. Different names stay different, and none
    contains braces or colons. An empty name becomes %, because {} is not a hash tag.
    """
    return quote(name, safe="!~*'()", errors="surrogatepass") or "%"


def denial(decision: Decision) -> Response:
    status, headers, body = Denial.of(decision)
    return Response(body, status, headers)


class RateLimitMiddleware:
    """Responds 429 instead of the application, or adds rate limit fields to its response.

    In a cluster the keys of one call must share a slot, so the keys of a tenant have the tenant as
    their hash tag. The limit that all tenants share is in another slot: the middleware first spends
    one of its `units`, which are taken in batches.

    In shadow mode, limits are charged and denials logged, but all requests pass and responses have
    no rate limit fields. This tests limits on real traffic.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limiter: Limiter,
        limits: Limits,
        units: AsyncUnits,
        identify: Callable[[HTTPConnection], Caller | None],
        shadow: bool = False,
    ) -> None:
        self._app = app
        self._limiter = limiter
        self._limits = limits
        self._units = units
        self._identify = identify
        self._shadow = shadow
        # Global units of requests that their tenant's limits denied, kept for the next requests.
        self._spare_units: list[Decision] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._identify(HTTPConnection(scope)) if scope["type"] == "http" else None
        if caller is None:  # not limited
            await self._app(scope, receive, send)
            return
        if self._shadow:
            await self._charge_in_shadow_mode(caller)
            await self._app(scope, receive, send)
            return
        limits = limits_by_key(self._limits, caller)
        decision = await self._take(limits)
        if not decision:
            await denial(decision)(scope, receive, send)
            return

        async def send_with_fields(message: Message) -> None:
            if message["type"] == "http.response.start" and limits:
                _add_fields(MutableHeaders(scope=message), fields(decision))
            await send(message)

        await self._app(scope, receive, send_with_fields)

    async def _charge_in_shadow_mode(self, caller: Caller) -> None:
        """Charges a request in shadow mode. Errors do not affect it; the limiter logs them."""
        with suppress(RateLimitError):
            decision = await self._take(limits_by_key(self._limits, caller))
            # Decisions during an outage are not decisions of these limits.
            if not decision and decision.source == "server":
                denying = [limit.name for limit in decision.each if not limit]
                names = denying or [decision.limits[0].name]
                log.warning("shadow: would deny %s by %s", dict(caller), names)

    async def _take(self, limits: dict[str, Limit]) -> Decision:
        """Charges a request. Clients see the global limit only if it denies."""
        unit = self._spare_units.pop() if self._spare_units else await self._units.take()
        if not unit:
            return unit
        passes = not limits
        try:
            # Without an idempotency key, because each key would have to store it for each request.
            decision = await self._limiter.take_all(limits, once=False) if limits else unit
            passes = decision.allowed
        finally:
            if not passes:
                self._spare_units.append(unit)
        return decision


def _add_fields(headers: MutableHeaders, added: Mapping[str, str]) -> None:
    for name, value in added.items():
        # A handler may have added fields of its own limits. These two fields are lists.
        if name in {"RateLimit", "RateLimit-Policy"}:
            headers.append(name, value)
        else:
            headers.setdefault(name, value)
