"""Middleware for WSGI applications: Flask, Django, Pyramid, Bottle.

app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter, limit="100/minute")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

from redis_ratelimit.addresses import IPV6_PREFIX, client
from redis_ratelimit.gate import LimitArgument, MaybeKey, Response
from redis_ratelimit.headers import Denial
from redis_ratelimit.limiter import Limiter
from redis_ratelimit.quantities import Amount
from redis_ratelimit.sync_gate import Gate

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

Environ: TypeAlias = dict[str, Any]


def address(environ: Environ, ipv6_prefix: int = IPV6_PREFIX) -> str | None:
    """Returns the name of the client: see `redis_ratelimit.addresses`. None if it has no address.

    The address is the one that the server reports. Behind proxies, configure the proxies that it,
    or werkzeug's ProxyFix, trusts: clients can forge X-Forwarded-For.
    """
    return client(environ.get("REMOTE_ADDR"), ipv6_prefix)


class RateLimitMiddleware:
    """Answers 429 in place of the application, or adds the rate limit fields to its response.

    limit    a limit, a rate such as "100/minute", several, a policy, or a limit that is bound to
             its limiter: limiter.limit("api", Fixed(100, "1m")). They are charged once for each
             request. Or a function of the environment that returns one of these (with `name`), a
             limit for each of several keys ({f"user:{user}": "10/second", f"all:{team}":
             "1000/minute"}), or UNLIMITED.
    key      a function of the environment that returns the caller, such as f"user:{...}", or
             UNLIMITED. By default, and if it returns None or an empty key: the client's address.
    cost     units that a request charges, or a function of the environment that returns them.
    name     the name of a limit that is not bound, in its keys and in header fields.
    unix_reset    X-RateLimit-Reset is in seconds since 1970, not from now.
    ipv6_prefix   length of the IPv6 networks that are counted as one client.
    refund   a function of the response (`status_code`, `headers`): True gives the charge back.
    denied   a function of the environment and the `Denial` that returns a WSGI application, such as
             a response of Flask, to answer a request that is denied.

    An allowed request with a wait, as with a LeakyBucket, is delayed. A missing policy raises
    NoPolicyError instead of allowing the request.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        limit: LimitArgument,
        limiter: Limiter | None = None,
        key: Callable[[Environ], MaybeKey] | None = None,
        cost: Amount | Callable[[Environ], Amount] | None = None,
        name: str | None = None,
        unix_reset: bool = False,
        ipv6_prefix: int = IPV6_PREFIX,
        refund: Callable[[Response], bool] | None = None,
        denied: Callable[[Environ, Denial], WSGIApplication] | None = None,
    ) -> None:
        self._app = app
        self._gate = Gate(
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

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        gate = self._gate
        decision = gate.take(environ.get("REMOTE_ADDR"), environ)
        if decision is None:
            return self._app(environ, start_response)
        if not decision.allowed:
            denial = gate.denial(decision)
            app = gate.answer(denial, environ)
            if app is not None:
                body: Iterable[bytes] = app(environ, start_response)
                return body
            status = HTTPStatus(denial.status)
            start_response(f"{status.value} {status.phrase}", list(denial.headers.items()))
            return [denial.body]
        gate.hold(decision)
        fields = list(gate.fields(decision).items())

        def start_with_fields(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None
        ) -> Callable[[bytes], object]:
            if gate.may_refund:
                by_name = {name.lower(): value for name, value in headers}
                gate.refund(decision, Response(int(status.split(" ", 1)[0]), by_name))
            merged = _merged(headers, fields)
            # Older servers accept no third argument.
            return start_response(status, merged, *([exc_info] if exc_info else []))

        try:
            return self._app(environ, start_with_fields)
        except Exception:
            # The server answers 500.
            gate.refund(decision, Response(500, {}))
            raise


def _merged(headers: list[tuple[str, str]], fields: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Adds the rate limit fields to the headers of the application, which may have fields of limits
    of its own: these are kept, and only the lists RateLimit and RateLimit-Policy are extended.
    """
    existing = {name.lower() for name, _ in headers}
    lists = {"RateLimit", "RateLimit-Policy"}
    return headers + [
        field for field in fields if field[0] in lists or field[0].lower() not in existing
    ]
