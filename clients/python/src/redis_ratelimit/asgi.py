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
    key      a function of a request's scope that returns whose limit it is, such as f"user:{...}".
             None, and an empty key: by the client's address. UNLIMITED: it has no limit. Without
             it: by the client's address.
    cost     what a request charges, or a function of its scope.
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
            await (app or _Answer(gate.denial(decision)))(scope, receive, send)
            return
        await gate.hold(decision)
        fields = _encoded(gate.fields(decision))
        response = Response(500, {})

        async def send_with_fields(message: Message) -> None:
            nonlocal response
            if message["type"] == "http.response.start":
                found = list(message.get("headers", []))
                if gate.may_refund:
                    response = Response(message["status"], _decoded(found))
                message = {**message, "headers": _with(found, fields)}
            await send(message)

        try:
            await self._app(scope, receive, send_with_fields)
        except Exception:
            # The server answers 500, unless the response had begun.
            await gate.refund(decision, response)
            raise
        await gate.refund(decision, response)


class _Answer:
    """Application that answers with a denial."""

    def __init__(self, denial: Denial) -> None:
        self._denial = denial

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        status, headers, body = self._denial
        start = {"status": status, "headers": _encoded(headers)}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": body})


def _peer(scope: Scope) -> str | None:
    found = scope.get("client")
    return str(found[0]) if found else None


def _encoded(fields: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in fields.items()]


def _decoded(fields: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in fields}


def _with(
    found: list[tuple[bytes, bytes]], fields: list[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    """Merges header fields into those of the application, which may use limits of its own. The two
    fields that are lists keep the values of both.
    """
    existing = {name.lower() for name, _ in found}
    lists = {b"ratelimit", b"ratelimit-policy"}
    return found + [pair for pair in fields if pair[0] in lists or pair[0] not in existing]
