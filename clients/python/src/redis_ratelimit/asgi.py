"""Middleware for ASGI applications: FastAPI, Starlette, Litestar, Quart, Django.

app.add_middleware(RateLimitMiddleware, limiter=limiter, limit="100/minute")
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from redis_ratelimit.addresses import IPV6_PREFIX, client
from redis_ratelimit.aio import Limiter
from redis_ratelimit.aio_gate import AsyncGate
from redis_ratelimit.gate import LimitArgument, MaybeKey, Response
from redis_ratelimit.headers import Denial
from redis_ratelimit.quantities import Amount

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def address(scope: Scope, ipv6_prefix: int = IPV6_PREFIX) -> str | None:
    """Returns the name of the client: see `redis_ratelimit.addresses`. None if it has no address.

    The address is the one that the server reports. Behind proxies, configure the proxies that it
    trusts, for uvicorn by --forwarded-allow-ips: clients can forge X-Forwarded-For.
    """
    return client(_peer(scope), ipv6_prefix)


class RateLimitMiddleware:
    """Answers 429 in place of the application, or adds the rate limit fields to its response.

    limit    a limit, a rate such as "100/minute", several, a policy, or a limit that is bound to
             its limiter: limiter.limit("api", Fixed(100, "1m")). They are charged once for each
             request. Or a function of the scope that returns one of these (with `name`), a limit
             for each of several keys ({f"user:{user}": "10/second", f"all:{team}": "1000/minute"}),
             or UNLIMITED.
    key      a function of the scope that returns the caller, such as f"user:{...}", or UNLIMITED.
             By default, and if it returns None or an empty key: the client's address.
    cost     units that a request charges, or a function of the scope that returns them.
    name     the name of a limit that is not bound, in its keys and in header fields.
    unix_reset    X-RateLimit-Reset is in seconds since 1970, not from now.
    ipv6_prefix   length of the IPv6 networks that are counted as one client.
    refund   a function of the response (`status_code`, `headers`): True gives the charge back.
    denied   a function of the scope and the `Denial` that returns an ASGI application, such as a
             response of Starlette, to answer a request that is denied.

    The functions may be coroutines, except `refund`. An allowed request with a wait, as with a
    LeakyBucket, is delayed. WebSockets are passed on. A missing policy raises NoPolicyError instead
    of allowing the request.
    """

    def __init__(
        self,
        app: App,
        *,
        limit: LimitArgument,
        limiter: Limiter | None = None,
        key: Callable[[Scope], MaybeKey | Awaitable[MaybeKey]] | None = None,
        cost: Amount | Callable[[Scope], Amount] | None = None,
        name: str | None = None,
        unix_reset: bool = False,
        ipv6_prefix: int = IPV6_PREFIX,
        refund: Callable[[Response], bool] | None = None,
        denied: Callable[[Scope, Denial], App | Awaitable[App]] | None = None,
    ) -> None:
        self._app = app
        self._gate = AsyncGate(
            limit,
            limiter=limiter,
            key=key,
            cost=cost,
            name=name,
            unix_reset=unix_reset,
            ipv6_prefix=ipv6_prefix,
            refund=refund,
            denied=denied,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gate = self._gate
        decision = None
        if scope["type"] == "http":
            decision = await gate.take(_peer(scope), scope)
        if decision is None:
            await self._app(scope, receive, send)
            return
        if not decision.allowed:
            app = await gate.answer(gate.denial(decision), scope)
            await (app or _DenialApp(gate.denial(decision)))(scope, receive, send)
            return
        await gate.hold(decision)
        fields = _encoded(gate.fields(decision))
        response = Response(500, {})

        async def send_with_fields(message: Message) -> None:
            nonlocal response
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))
                if gate.may_refund:
                    response = Response(message["status"], _decoded(headers))
                message = {**message, "headers": _merged(headers, fields)}
            await send(message)

        try:
            await self._app(scope, receive, send_with_fields)
        except Exception:
            # The server answers 500, unless the response had begun.
            await gate.refund(decision, response)
            raise
        await gate.refund(decision, response)


class _DenialApp:
    """ASGI application that answers with a denial."""

    def __init__(self, denial: Denial) -> None:
        self._denial = denial

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        status, headers, body = self._denial
        start = {"status": status, "headers": _encoded(headers)}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": body})


def _peer(scope: Scope) -> str | None:
    host_and_port = scope.get("client")
    return str(host_and_port[0]) if host_and_port else None


def _encoded(fields: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in fields.items()]


def _decoded(fields: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in fields}


def _merged(
    headers: list[tuple[bytes, bytes]], fields: list[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    """Adds the rate limit fields to the headers of the application, which may have fields of limits
    of its own: these are kept, and only the lists RateLimit and RateLimit-Policy are extended.
    """
    existing = {name.lower() for name, _ in headers}
    lists = {b"ratelimit", b"ratelimit-policy"}
    return headers + [field for field in fields if field[0] in lists or field[0] not in existing]
