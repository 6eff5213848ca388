"""Limits for views of Flask: `@app.get("/search")`, and under it `@ratelimit(search)`.

For a whole application there is `redis_ratelimit.wsgi`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from flask import Response, after_this_request, request

from redis_ratelimit.addresses import IPV6_PREFIX, client
from redis_ratelimit.decision import DeniedError
from redis_ratelimit.gate import LimitArgument, MaybeKey
from redis_ratelimit.headers import Denial
from redis_ratelimit.limiter import Limiter
from redis_ratelimit.quantities import Amount
from redis_ratelimit.sync_gate import Gate

View = TypeVar("View", bound=Callable[..., Any])


def address(ipv6_prefix: int = IPV6_PREFIX) -> str | None:
    """Returns the name of the client of `flask.request`: see `redis_ratelimit.wsgi.address`."""
    return client(request.remote_addr, ipv6_prefix)


def denied(error: DeniedError) -> Response:
    """Returns the response to a call that was denied, to register as a handler:
    `app.register_error_handler(DeniedError, denied)`.
    """
    return _response(error.response)


def _response(denial: Denial) -> Response:
    return Response(denial.body, denial.status, denial.headers)


def ratelimit(
    limit: LimitArgument,
    *,
    limiter: Limiter | None = None,
    key: Callable[[], MaybeKey] | None = None,
    cost: Amount | Callable[[], Amount] | None = None,
    name: str | None = None,
    unix_reset: bool = False,
    ipv6_prefix: int = IPV6_PREFIX,
    refund: Callable[[Response], bool] | None = None,
    denied: Callable[[Denial], Any] | None = None,
) -> Callable[[View], View]:
    """Decorates a view, below the decorator of the route. A request over the limit gets 429 in
    place of the view, or 503 if the limit cannot be checked and `on_outage` is "closed".

    limit    a bound limit: limiter.limit("search", Fixed(100, "1m")); or with `limiter` a limit, a
             rate such as "100/minute", several, or a function that returns them (with `name`), a
             limit for each of several keys, or UNLIMITED.
    key      a function that returns the caller, or UNLIMITED. By default, and if it returns None or
             an empty key: the client's address.
    cost     units that a request charges, or a function that returns them.
    name     the name of a limit that is not bound, in its keys and in header fields.
    unix_reset    X-RateLimit-Reset is in seconds since 1970, not from now.
    ipv6_prefix   length of the IPv6 networks that are counted as one client.
    refund   a function of the response: True gives the charge back.
    denied   a function of the `Denial` that returns what a view would, to answer a request that is
             denied.

    The functions may use `flask.request`.
    """
    gate = Gate(
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

    def limited(view: View) -> View:
        @wraps(view)
        def served(*args: Any, **kwargs: Any) -> Any:
            decision = gate.take(request.remote_addr)
            if decision is None:
                return view(*args, **kwargs)
            if not decision.allowed:
                denial = gate.denial(decision)
                answer = gate.answer(denial)
                return _response(denial) if answer is None else answer
            gate.hold(decision)

            @after_this_request
            def add_fields(response: Response) -> Response:
                for field, value in gate.fields(decision).items():
                    response.headers.setdefault(field, value)
                gate.refund(decision, response)
                return response

            return view(*args, **kwargs)

        return served  # type: ignore[return-value]

    return limited
