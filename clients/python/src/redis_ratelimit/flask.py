"""Limits for views of Flask: `@app.get("/search")`, and under it `@ratelimit(search)`.

For a whole application there is `redis_ratelimit.wsgi`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import sleep
from typing import Any, TypeVar

from flask import Response, after_this_request, request

from redis_ratelimit.addresses import network
from redis_ratelimit.bound import Bound
from redis_ratelimit.gate import Gate
from redis_ratelimit.quantities import Amount, Key

View = TypeVar("View", bound=Callable[..., Any])


def address() -> str:
    """Whom a limit by address counts: see `redis_ratelimit.wsgi.address`."""
    return network(request.remote_addr or "unknown")


def ratelimit(
    limit: Bound,
    *,
    key: Callable[[], Key | None] = address,
    cost: Amount | Callable[[], Amount] | None = None,
    name: str = "default",
    unix_reset: bool = False,
) -> Callable[[View], View]:
    """A decorator, under that of the route. A request over the limit gets 429 in place of the view,
    or 503 if the limit cannot be checked and `on_outage` is "closed".

    limit    a limit under a name: limiter.limit("search", Fixed(100, "1m")).
    key      whose limit the request has; None: it is not limited. It may look at `flask.request`.
    cost     what a request charges, or a function that says it.
    name     what the limit is called in header fields if it has no name.
    unix_reset    X-RateLimit-Reset is in seconds since 1970, not from now.
    """
    gate = Gate(None, limit, name, unix_reset)

    def limited(view: View) -> View:
        @wraps(view)
        def served(*args: Any, **named: Any) -> Any:
            who = key()
            if who is None:
                return view(*args, **named)
            decision = gate.take(who, cost() if callable(cost) else cost)
            if not decision.allowed:
                status, headers, body = gate.denial(decision)
                return Response(body, status, headers)
            if decision.wait_ms:
                sleep(decision.wait_ms / 1000)

            @after_this_request
            def told(response: Response) -> Response:
                for field, value in gate.fields(decision).items():
                    response.headers.setdefault(field, value)
                return response

            return view(*args, **named)

        return served  # type: ignore[return-value]

    return limited
