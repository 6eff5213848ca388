"""Limits for routes of FastAPI: `@app.get("/search", dependencies=[Depends(RateLimit(search))])`.

For all routes there is `redis_ratelimit.asgi`.
"""

from __future__ import annotations

import json
from asyncio import sleep
from collections.abc import Awaitable, Callable
from inspect import isawaitable

from fastapi import HTTPException, Request, Response

from redis_ratelimit.addresses import network
from redis_ratelimit.aio_bound import AsyncBound
from redis_ratelimit.decision import Decision
from redis_ratelimit.gate import Gate
from redis_ratelimit.quantities import Amount, Key


def address(request: Request) -> str:
    """Whom a limit by address counts: see `redis_ratelimit.asgi.address`."""
    return network(request.client.host if request.client else "unknown")


class RateLimit:
    """A dependency. It adds the rate limit fields to the response, or raises HTTPException: 429, or
    503 if the limit cannot be checked and `on_outage` is "closed". Its value is the decision; None:
    the request is not limited.

    limit    a limit under a name, of a limiter of asyncio: limiter.limit("api", Fixed(100, "1m")).
    key      whose limit a request has, a function of it, which may be awaitable; None: it is not
             limited. Without it: by the client's address.
    cost     what a request charges, or a function of it.
    name     what the limit is called in header fields if it has no name.
    unix_reset    X-RateLimit-Reset is in seconds since 1970, not from now.
    """

    def __init__(
        self,
        limit: AsyncBound,
        *,
        key: Callable[[Request], Key | Awaitable[Key | None] | None] = address,
        cost: Amount | Callable[[Request], Amount] | None = None,
        name: str = "default",
        unix_reset: bool = False,
    ) -> None:
        self._gate = Gate(None, limit, name, unix_reset)
        self._key = key
        self._cost = cost

    async def __call__(self, request: Request, response: Response) -> Decision | None:
        found = self._key(request)
        key = await found if isawaitable(found) else found
        if key is None:
            return None
        cost = self._cost(request) if callable(self._cost) else self._cost
        decision: Decision = await self._gate.take(key, cost)
        if not decision.allowed:
            status, headers, body = self._gate.denial(decision)
            # FastAPI makes a body of its own of the detail.
            for name in ("Content-Type", "Content-Length"):
                del headers[name]
            raise HTTPException(status, detail=json.loads(body), headers=headers)
        if decision.wait_ms:
            await sleep(decision.wait_ms / 1000)
        for name, value in self._gate.fields(decision).items():
            response.headers[name] = value
        return decision
