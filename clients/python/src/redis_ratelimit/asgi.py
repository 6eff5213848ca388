"""Middleware for ASGI applications: FastAPI, Starlette, Litestar, Quart, Django.

app.add_middleware(RateLimitMiddleware, limiter=limiter, limit=Policy("api"), key=address)
"""

from __future__ import annotations

import inspect
from asyncio import sleep
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

from redis_ratelimit.addresses import network
from redis_ratelimit.aio import Limiter
from redis_ratelimit.aio_bound import AsyncBound
from redis_ratelimit.gate import Gate
from redis_ratelimit.limits import Limit
from redis_ratelimit.quantities import Amount, Key

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def address(scope: Scope) -> str:
    """Whom a limit by address counts: see `redis_ratelimit.addresses`.

    It is the server's word that counts. Behind proxies, tell it which of them to believe, such as
    uvicorn by --forwarded-allow-ips; X-Forwarded-For itself clients write what they like into.
    """
    client = scope.get("client")
    return network(client[0] if client else "unknown")


class RateLimitMiddleware:
    """Answers 429 in place of the application, or adds the rate limit fields to its response.

    limit    one limit, several, a policy, or a limit under a name, which brings its limiter:
             limiter.limit("api", Fixed(100, "1m")). They are charged once for each request.
    key      of a request's scope, whose limit it is, such as f"user:{...}"; None: it is not
             limited. It may be awaitable. Without it: by the client's address.
    cost     what a request charges, or a function of its scope.
    name     what the limit is called in header fields if it has no name.
    unix_reset    X-RateLimit-Reset is in seconds since 1970, not from now.

    A request that is admitted for later, as by a LeakyBucket, is held so long. WebSockets are
    passed on. A policy that the server does not have is an error, NoPolicyError, and no open door.
    """

    def __init__(
        self,
        app: App,
        *,
        limiter: Limiter | None = None,
        limit: Limit | Sequence[Limit] | AsyncBound,
        key: Callable[[Scope], Key | Awaitable[Key | None] | None] = address,
        cost: Amount | Callable[[Scope], Amount] | None = None,
        name: str = "default",
        unix_reset: bool = False,
    ) -> None:
        self._app = app
        self._gate = Gate(limiter, limit, name, unix_reset)
        self._key = key
        self._cost = cost

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = await self._key_of(scope) if scope["type"] == "http" else None
        if key is None:
            await self._app(scope, receive, send)
            return
        cost = self._cost(scope) if callable(self._cost) else self._cost
        decision = await self._gate.take(key, cost)
        if not decision.allowed:
            status, denied, body = self._gate.denial(decision)
            start = {"status": status, "headers": _encoded(denied)}
            await send({"type": "http.response.start", **start})
            await send({"type": "http.response.body", "body": body})
            return
        if decision.wait_ms:
            await sleep(decision.wait_ms / 1000)
        fields = _encoded(self._gate.fields(decision))

        async def send_with_fields(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = list(message.get("headers", []))
                message = {**message, "headers": _with(found, fields)}
            await send(message)

        await self._app(scope, receive, send_with_fields)

    async def _key_of(self, scope: Scope) -> Key | None:
        key = self._key(scope)
        return await key if inspect.isawaitable(key) else key


def _encoded(fields: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in fields.items()]


def _with(
    found: list[tuple[bytes, bytes]], fields: list[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    """A handler may have asked limits of its own. Two of the fields are lists, and hold both."""
    there = {name.lower() for name, _ in found}
    lists = {b"ratelimit", b"ratelimit-policy"}
    return found + [pair for pair in fields if pair[0] in lists or pair[0] not in there]
