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
    key      a function of a request's environment that returns whose limit it is, such as
             f"user:{...}". None, and an empty key: by the client's address. UNLIMITED: it has no
             limit. Without it: by the client's address.
    cost     what a request charges, or a function of its environment.
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
                answered: Iterable[bytes] = app(environ, start_response)
                return answered
            status = HTTPStatus(denial.status)
            start_response(f"{status.value} {status.phrase}", list(denial.headers.items()))
            return [denial.body]
        gate.hold(decision)
        fields = list(gate.fields(decision).items())

        def start_with_fields(
            status: str, found: list[tuple[str, str]], exc_info: Any = None
        ) -> Callable[[bytes], object]:
            if gate.may_refund:
                headers = {name.lower(): value for name, value in found}
                gate.refund(decision, Response(int(status.split(" ", 1)[0]), headers))
            found = _with(found, fields)
            # Older servers accept no third argument.
            return start_response(status, found, *([exc_info] if exc_info else []))

        try:
            return self._app(environ, start_with_fields)
        except Exception:
            # The server answers 500.
            gate.refund(decision, Response(500, {}))
            raise


def _with(found: list[tuple[str, str]], fields: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Merges header fields into those of the application, which may use limits of its own. The two
    fields that are lists keep the values of both.
    """
    existing = {name.lower() for name, _ in found}
    lists = {"RateLimit", "RateLimit-Policy"}
    return found + [pair for pair in fields if pair[0] in lists or pair[0].lower() not in existing]
