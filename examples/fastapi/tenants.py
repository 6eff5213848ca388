"""The limits of tenants: all of a request's in one call, behind one that all tenants share."""

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

# What every key begins with.
PREFIX = "rl"

# "tenant", and what the keys of its limits are made of.
Caller = Mapping[str, str]

# By whose they are: "user:{user}" applies to callers of whom the user is known.
Limits = Mapping[str, Limit]


def key_of(whose: str, caller: Caller) -> str:
    """`rl:{tenant}:limit:whose`. Only what is between the braces decides the slot in a cluster."""
    names = {field: _escaped(name) for field, name in caller.items()}
    return f"{PREFIX}:{{{names['tenant']}}}:{whose.format_map(names)}"


def keyed(limits: Limits, caller: Caller) -> dict[str, Limit]:
    """Returns the limits that apply to the caller, by key."""
    return {
        key_of(whose, caller): limit
        for whose, limit in limits.items()
        if {field for _, field, _, _ in Formatter().parse(whose) if field} <= caller.keys()
    }


def _escaped(name: str) -> str:
    """No two names become one, and none brings braces or colons along, and with them another's key:
    as JavaScript's encodeURIComponent does. An empty name would make an empty tag, which is none.
    """
    return quote(name, safe="!~*'()", errors="surrogatepass") or "%"


def denial(decision: Decision) -> Response:
    status, headers, body = Denial.of(decision)
    return Response(body, status, headers)


class RateLimitMiddleware:
    """Answers 429 in place of the application, or adds the rate limit fields to its response.

    In a cluster the keys of one call must share a slot, so those of a tenant have the tenant as
    their hash tag. The limit that all tenants share cannot be among them: `units` of it are leased
    and spent first.

    In the shadow, limits are charged and denials logged, but all requests pass and clients see
    nothing: to try limits on real traffic.
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
        # Units of requests that their tenants denied, for the next ones: never more than there are
        # requests at once.
        self._put_back: list[Decision] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._identify(HTTPConnection(scope)) if scope["type"] == "http" else None
        if caller is None:  # it is not limited
            await self._app(scope, receive, send)
            return
        if self._shadow:
            await self._try(caller)
            await self._app(scope, receive, send)
            return
        limits = keyed(self._limits, caller)
        decision = await self._take(limits)
        if not decision:
            await denial(decision)(scope, receive, send)
            return

        async def send_with_fields(message: Message) -> None:
            if message["type"] == "http.response.start" and limits:
                _add(MutableHeaders(scope=message), fields(decision))
            await send(message)

        await self._app(scope, receive, send_with_fields)

    async def _try(self, caller: Caller) -> None:
        """Whatever goes wrong in the shadow is no request's business. The limiter logs it."""
        with suppress(RateLimitError):
            decision = await self._take(keyed(self._limits, caller))
            # An outage says nothing about the limits on trial.
            if not decision and decision.source == "server":
                by = [one.name for one in decision.each if not one] or [decision.limits[0].name]
                log.warning("shadow: would deny %s by %s", dict(caller), by)

    async def _take(self, limits: dict[str, Limit]) -> Decision:
        """Charges a request. Of the global limit clients are told only where it denies."""
        unit = self._put_back.pop() if self._put_back else await self._units.take()
        if not unit:
            return unit
        passes = not limits
        try:
            # Without an id, which each key would have to remember for each request.
            decision = await self._limiter.take_all(limits, once=False) if limits else unit
            passes = decision.allowed
        finally:
            if not passes:
                self._put_back.append(unit)
        return decision


def _add(there: MutableHeaders, found: Mapping[str, str]) -> None:
    for name, value in found.items():
        # A handler may have asked limits of its own. These two are lists, and hold both.
        if name in {"RateLimit", "RateLimit-Policy"}:
            there.append(name, value)
        else:
            there.setdefault(name, value)
