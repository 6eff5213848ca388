"""Middleware for WSGI applications: Flask, Django, Pyramid, Bottle.

app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter, limit=Policy("api"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from time import sleep
from typing import TYPE_CHECKING, Any, TypeAlias

from redis_ratelimit.addresses import network
from redis_ratelimit.bound import Bound
from redis_ratelimit.gate import Gate
from redis_ratelimit.limiter import Limiter
from redis_ratelimit.limits import Limit
from redis_ratelimit.quantities import Amount, Key

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

Environ: TypeAlias = dict[str, Any]


def address(environ: Environ) -> str:
    """Whom a limit by address counts: see `redis_ratelimit.addresses`.

    It is the server's word that counts. Behind proxies, tell it or werkzeug's ProxyFix which of
    them to believe; X-Forwarded-For itself clients write what they like into.
    """
    return network(environ.get("REMOTE_ADDR") or "unknown")


class RateLimitMiddleware:
    """Answers 429 in place of the application, or adds the rate limit fields to its response.

    limit    one limit, several, a policy, or a limit under a name, which brings its limiter:
             limiter.limit("api", Fixed(100, "1m")). They are charged once for each request.
    key      of a request's environment, whose limit it is, such as f"user:{...}"; None: it is not
             limited. Without it: by the client's address.
    cost     what a request charges, or a function of its environment.
    name     what the limit is called in header fields if it has no name.
    unix_reset    X-RateLimit-Reset is in seconds since 1970, not from now.

    A request that is admitted for later, as by a LeakyBucket, is held so long. A policy that the
    server does not have is an error, NoPolicyError, and no open door.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        limiter: Limiter | None = None,
        limit: Limit | Sequence[Limit] | Bound,
        key: Callable[[Environ], Key | None] = address,
        cost: Amount | Callable[[Environ], Amount] | None = None,
        name: str = "default",
        unix_reset: bool = False,
    ) -> None:
        self._app = app
        self._gate = Gate(limiter, limit, name, unix_reset)
        self._key = key
        self._cost = cost

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        key = self._key(environ)
        if key is None:
            return self._app(environ, start_response)
        cost = self._cost(environ) if callable(self._cost) else self._cost
        decision = self._gate.take(key, cost)
        if not decision.allowed:
            code, denied, body = self._gate.denial(decision)
            status = HTTPStatus(code)
            start_response(f"{status.value} {status.phrase}", list(denied.items()))
            return [body]
        if decision.wait_ms:
            sleep(decision.wait_ms / 1000)
        fields = list(self._gate.fields(decision).items())

        def start_with_fields(
            status: str, found: list[tuple[str, str]], exc_info: Any = None
        ) -> Callable[[bytes], object]:
            found = _with(found, fields)
            # Without an error, an older server knows no third argument.
            return start_response(status, found, *([exc_info] if exc_info else []))

        return self._app(environ, start_with_fields)


def _with(found: list[tuple[str, str]], fields: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """A view may have asked limits of its own. Two of the fields are lists, and hold both."""
    there = {name.lower() for name, _ in found}
    lists = {"RateLimit", "RateLimit-Policy"}
    return found + [pair for pair in fields if pair[0] in lists or pair[0].lower() not in there]
