"""Limits for routes of FastAPI: `@app.get("/search", dependencies=[Depends(RateLimit(search))])`.

For all routes there is `redis_ratelimit.asgi`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request, Response

from redis_ratelimit.addresses import IPV6_PREFIX, client
from redis_ratelimit.aio import Limiter
from redis_ratelimit.aio_gate import AsyncGate
from redis_ratelimit.decision import Decision, DeniedError
from redis_ratelimit.gate import LimitArgument, MaybeKey
from redis_ratelimit.headers import Denial
from redis_ratelimit.quantities import Amount


def address(request: Request, ipv6_prefix: int = IPV6_PREFIX) -> str | None:
    """Returns the name of the client: see `redis_ratelimit.asgi.address`."""
    return client(_peer(request), ipv6_prefix)


def denied(_: Request, error: Exception) -> Response:
    """Returns the response to a call that was denied, to register as a handler:
    `app.add_exception_handler(DeniedError, denied)`.
    """
    assert isinstance(error, DeniedError)  # the handler is registered for this class
    if isinstance(error, _AnsweredError):
        return error.answer
    return Response(error.body, error.status, error.headers)


class _AnsweredError(DeniedError):
    """Denial with a response of the application's own."""

    def __init__(self, decision: Decision, answer: Response) -> None:
        super().__init__(decision)
        self.answer = answer


class RateLimit:
    """Dependency that adds the rate limit fields to the response, or raises DeniedError, which
    becomes 429, or 503 if the limit cannot be checked and `on_outage` is "closed". Its value is the
    decision, or None if the request has no limit.

    limit    a bound limit: limiter.limit("search", Fixed(100, "1m")); or with `limiter` a limit, a
             rate such as "100/minute", several, or a function of the request that returns them
             (with `name`), a limit for each of several keys, or UNLIMITED.
    key      a function of the request that returns the caller, or UNLIMITED. By default, and if it
             returns None or an empty key: the client's address.
    cost     units that a request charges, or a function of the request that returns them.
    name     the name of a limit that is not bound, in its keys and in header fields.
    unix_reset    X-RateLimit-Reset is in seconds since 1970, not from now.
    ipv6_prefix   length of the IPv6 networks that are counted as one client.
    refundable    the charge can be given back: `await decision.settle(0)` in the route. To give it
             back by the response, use `refund` of the middleware in `redis_ratelimit.asgi`.
    denied   a function of the request and the `Denial` that returns a response.

    The functions may be coroutines.
    """

    def __init__(
        self,
        limit: LimitArgument,
        *,
        limiter: Limiter | None = None,
        key: Callable[[Request], MaybeKey | Awaitable[MaybeKey]] | None = None,
        cost: Amount | Callable[[Request], Amount] | None = None,
        name: str | None = None,
        unix_reset: bool = False,
        ipv6_prefix: int = IPV6_PREFIX,
        refundable: bool = False,
        denied: Callable[[Request, Denial], Response | Awaitable[Response]] | None = None,
    ) -> None:
        self._gate = AsyncGate(
            limit,
            limiter=limiter,
            key=key,
            cost=cost,
            name=name,
            unix_reset=unix_reset,
            ipv6_prefix=ipv6_prefix,
            refund=(lambda _: False) if refundable else None,
            denied=denied,
        )

    async def __call__(self, request: Request, response: Response) -> Decision | None:
        gate = self._gate
        decision = await gate.take(_peer(request), request)
        if decision is None:
            return None
        if not decision.allowed:
            # Keep the application's own handler. Without any, FastAPI would respond with 500.
            handlers, _ = request.scope.get("starlette.exception_handlers", ({}, {}))
            handlers.setdefault(DeniedError, denied)
            denial = gate.denial(decision)
            answer = await gate.answer(denial, request)
            if answer is not None:
                raise _AnsweredError(decision, answer)
            raise DeniedError(decision, denial)
        await gate.hold(decision)
        for field, value in gate.fields(decision).items():
            response.headers[field] = value
        return decision


def _peer(request: Request) -> str | None:
    return request.client.host if request.client else None
