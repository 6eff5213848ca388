"""The middleware: pure ASGI, so that it neither buffers bodies nor breaks streaming."""

import logging
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ratelimit.headers import denial, fields
from ratelimit.limiter import Limiter
from ratelimit.limits import Limit

log = logging.getLogger("ratelimit")

# Who calls: "tenant", and what the keys of the limits are made of. None is not limited.
Identify = Callable[[HTTPConnection], Mapping[str, str] | None]


class RateLimitMiddleware:
    """Answers 429 in place of the application, or adds the rate limit fields to its response.

    In the shadow, limits are charged and denials logged, but all requests pass and clients see
    nothing: to try limits on real traffic.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limiter: Limiter,
        limits: Sequence[Limit],
        identify: Identify,
        shadow: bool = False,
    ) -> None:
        self._app = app
        self._limiter = limiter
        self._limits = limits
        self._identify = identify
        self._shadow = shadow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._identify(HTTPConnection(scope)) if scope["type"] == "http" else None
        if caller is None:
            await self._app(scope, receive, send)
            return
        verdict = await self._limiter.take(self._limits, caller, shared=True)
        if self._shadow:
            # An outage says nothing about the limits on trial.
            if not verdict.allowed and verdict.is_by_redis:
                log.warning("shadow: would deny %s by %s", dict(caller), verdict.denied_by)
            await self._app(scope, receive, send)
            return
        if not verdict.allowed:
            await denial(verdict)(scope, receive, send)
            return

        async def send_with_fields(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add(MutableHeaders(scope=message), fields(verdict))
            await send(message)

        await self._app(scope, receive, send_with_fields)


def _add(headers: MutableHeaders, found: Mapping[str, str]) -> None:
    for name, value in found.items():
        # A handler may have asked limits of its own. These two are lists, and hold both.
        if name in {"RateLimit", "RateLimit-Policy"}:
            headers.append(name, value)
        else:
            headers.setdefault(name, value)


def address(connection: HTTPConnection) -> str:
    """Whom a limit by address counts: an IPv4 address, or the /64 network of an IPv6 one, since
    one subscriber has all of that.

    It is the server's word that counts. Behind proxies, tell uvicorn which of them to believe
    (--forwarded-allow-ips); never read X-Forwarded-For here, which clients write what they like
    into.
    """
    host = connection.client.host if connection.client else "unknown"
    try:
        found = ip_address(host)
    except ValueError:  # a Unix socket
        return host
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped:
            return str(found.ipv4_mapped)
        return str(ip_network((int(found), 64), strict=False))
    return str(found)
