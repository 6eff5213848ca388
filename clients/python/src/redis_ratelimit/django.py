"""Limits for Django: middleware, and a decorator for views.

    MIDDLEWARE = ["redis_ratelimit.django.RateLimitMiddleware", ...]
    RATELIMIT = limiter.limit("api", Fixed(100, "1m"))

Use a limiter for asyncio (`redis_ratelimit.aio`) with ASGI, and the other limiter with WSGI.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.module_loading import import_string

from redis_ratelimit import aio
from redis_ratelimit.addresses import IPV6_PREFIX, client
from redis_ratelimit.aio_bound import AsyncBound
from redis_ratelimit.aio_gate import AsyncGate
from redis_ratelimit.decision import Decision, DeniedError
from redis_ratelimit.gate import LimitArgument, MaybeKey
from redis_ratelimit.headers import Denial
from redis_ratelimit.limiter import Limiter
from redis_ratelimit.quantities import Amount
from redis_ratelimit.rates import is_rate
from redis_ratelimit.sync_gate import Gate

KeyFunction: TypeAlias = Callable[[HttpRequest], MaybeKey]
View = TypeVar("View", bound=Callable[..., Any])


def address(request: HttpRequest, ipv6_prefix: int = IPV6_PREFIX) -> str | None:
    """Returns the name of the client: see `redis_ratelimit.addresses`. None if it has no address.

    The address is the one that the server reports. Behind proxies, configure the proxies that it
    trusts.
    """
    return client(_peer(request), ipv6_prefix)


def user(request: HttpRequest) -> str | None:
    """Returns the key of the logged-in user, or None, which limits by the client's address.
    Django's AuthenticationMiddleware must come before RateLimitMiddleware.
    """
    account = getattr(request, "user", None)
    return f"user:{account.pk}" if account is not None and account.is_authenticated else None


class _ViewLimit:
    """Limit of a view or an application, and the response to denied requests."""

    def __init__(self, limit: LimitArgument, limiter: Any, **options: Any) -> None:
        self.is_async = isinstance(limit, AsyncBound) or isinstance(limiter, aio.Limiter)
        kind = AsyncGate if self.is_async else Gate
        self.gate: Any = kind(limit, limiter=limiter, **options)

    def take(self, request: HttpRequest) -> Any:
        """Charges a request. Returns the decision, or None if the request has no limit."""
        return self.gate.take(_peer(request), request)

    def denial(self, decision: Decision, request: HttpRequest) -> Any:
        denial = self.gate.denial(decision)
        answer = self.gate.answer(denial, request)
        return _response(denial) if answer is None else answer

    def add_fields(self, response: Any, decision: Decision) -> None:
        for name, value in self.gate.fields(decision).items():
            # Keep the fields of a view with limits of its own.
            if name not in response:
                response[name] = value

    def wrap(self, serve: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a view with the limit. `serve` takes the request as its first argument."""

        def served(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            decision = self.take(request)
            if decision is None:
                return serve(request, *args, **kwargs)
            if not decision.allowed:
                return self.denial(decision, request)
            self.gate.hold(decision)
            try:
                response = serve(request, *args, **kwargs)
            except Exception:
                self.gate.refund(decision, HttpResponse(status=500))
                raise
            self.add_fields(response, decision)
            self.gate.refund(decision, response)
            return response

        async def served_async(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            decision = await self.take(request)
            if decision is None:
                return await serve(request, *args, **kwargs)
            if not decision.allowed:
                denial = self.gate.denial(decision)
                answer = await self.gate.answer(denial, request)
                return _response(denial) if answer is None else answer
            await self.gate.hold(decision)
            try:
                response = await serve(request, *args, **kwargs)
            except Exception:
                await self.gate.refund(decision, HttpResponse(status=500))
                raise
            self.add_fields(response, decision)
            await self.gate.refund(decision, response)
            return response

        is_async = iscoroutinefunction(serve)
        if is_async != self.is_async:
            needed = "redis_ratelimit.aio.Limiter" if is_async else "redis_ratelimit.Limiter"
            raise ImproperlyConfigured(f"{serve!r} needs a limit of a {needed}")
        return served_async if is_async else served


class RateLimitMiddleware:
    """Answers 429 in place of the application, or adds the rate limit fields to its response. A
    DeniedError of a view becomes 429, too.

    RATELIMIT           a bound limit, or its import path: "shop.limits.api". Or, with
                        RATELIMIT_LIMITER, a limit, a rate such as "100/minute", several, or a
                        function of the request.
    RATELIMIT_LIMITER   the limiter of a limit that is not bound, or its import path.
    RATELIMIT_NAME      the name of a limit that is not bound.
    RATELIMIT_KEY       a function of the request that returns the caller, or UNLIMITED, such as
                        `redis_ratelimit.django.user`; or its import path. By default, and if it
                        returns None or an empty key: the client's address.
    RATELIMIT_COST      units that a request charges, or a function of the request that returns
                        them.
    RATELIMIT_UNIX_RESET    X-RateLimit-Reset is in seconds since 1970, not from now.
    RATELIMIT_IPV6_PREFIX   length of the IPv6 networks that are counted as one client.
    RATELIMIT_REFUND    a function of the response: True gives the charge back.
    RATELIMIT_DENIED    a function of the request and the `Denial` that returns a response.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        is_async = iscoroutinefunction(get_response)
        view_limit = _configured()
        if not is_async or view_limit.is_async:
            self._serve = view_limit.wrap(get_response)
        else:
            # ASGI with a limiter for threads: its calls run in a thread.
            self._serve = _in_a_thread(view_limit, get_response)
        if is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        return self._serve(request)

    @staticmethod
    def process_exception(_: HttpRequest, error: Exception) -> HttpResponse | None:
        """Responds to a DeniedError that a view raised."""
        return _response(error.response) if isinstance(error, DeniedError) else None


def _configured() -> _ViewLimit:
    """Returns the limit of the settings."""
    limit = getattr(settings, "RATELIMIT", None)
    if not (isinstance(limit, str) and is_rate(limit)):
        limit = _imported(limit)
    try:
        return _ViewLimit(
            limit,
            _imported(getattr(settings, "RATELIMIT_LIMITER", None)),
            name=getattr(settings, "RATELIMIT_NAME", None),
            key=_imported(getattr(settings, "RATELIMIT_KEY", None)),
            cost=_imported(getattr(settings, "RATELIMIT_COST", None)),
            unix_reset=getattr(settings, "RATELIMIT_UNIX_RESET", False),
            ipv6_prefix=getattr(settings, "RATELIMIT_IPV6_PREFIX", IPV6_PREFIX),
            refund=_imported(getattr(settings, "RATELIMIT_REFUND", None)),
            denied=_imported(getattr(settings, "RATELIMIT_DENIED", None)),
        )
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(
            'RATELIMIT is to be a limit of a limiter: limiter.limit("api", Fixed(100, "1m")), or '
            f'"100/minute" with RATELIMIT_LIMITER: {error}'
        ) from error


def _in_a_thread(
    view_limit: _ViewLimit, get_response: Callable[[HttpRequest], Awaitable[Any]]
) -> Callable[[HttpRequest], Awaitable[Any]]:
    take = sync_to_async(view_limit.take, thread_sensitive=False)
    refund = sync_to_async(view_limit.gate.refund, thread_sensitive=False)

    async def served(request: HttpRequest) -> Any:
        decision = await take(request)
        if decision is None:
            return await get_response(request)
        if not decision.allowed:
            return view_limit.denial(decision, request)
        if decision.wait_ms:
            await asyncio.sleep(decision.wait_ms / 1000)
        response = await get_response(request)
        view_limit.add_fields(response, decision)
        if view_limit.gate.may_refund:
            await refund(decision, response)
        return response

    return served


def ratelimit(
    limit: LimitArgument,
    *,
    limiter: Limiter | aio.Limiter | None = None,
    key: KeyFunction | None = None,
    cost: Amount | Callable[[HttpRequest], Amount] | None = None,
    name: str | None = None,
    unix_reset: bool = False,
    ipv6_prefix: int = IPV6_PREFIX,
    refund: Callable[[HttpResponse], bool] | None = None,
    denied: Callable[[HttpRequest, Denial], HttpResponse] | None = None,
) -> Callable[[View], View]:
    """Decorates a view: `@ratelimit(limiter.limit("login", Fixed(5, "1m")))`. A view that is a
    coroutine function needs a limit of a limiter for asyncio.

    limit    a bound limit; or with `limiter` a limit, a rate such as "100/minute", several, or a
             function of the request that returns them (with `name`), a limit for each of several
             keys, or UNLIMITED.
    key      a function of the request that returns the caller, or UNLIMITED. By default, and if it
             returns None or an empty key: the client's address.
    cost     units that a request charges, or a function of the request that returns them.
    name     the name of a limit that is not bound, in its keys and in header fields.
    unix_reset    X-RateLimit-Reset is in seconds since 1970, not from now.
    ipv6_prefix   length of the IPv6 networks that are counted as one client.
    refund   a function of the response: True gives the charge back.
    denied   a function of the request and the `Denial` that returns a response.
    """
    view_limit = _ViewLimit(
        limit,
        limiter,
        key=key,
        cost=cost,
        name=name,
        unix_reset=unix_reset,
        ipv6_prefix=ipv6_prefix,
        refund=refund,
        denied=denied,
    )

    def limited(view: View) -> View:
        return wraps(view)(view_limit.wrap(view))  # type: ignore[return-value]

    return limited


def _peer(request: HttpRequest) -> str | None:
    peer = request.META.get("REMOTE_ADDR")
    return str(peer) if peer else None


def _response(denial: Denial) -> HttpResponse:
    return HttpResponse(denial.body, status=denial.status, headers=denial.headers)


def _imported(value: Any) -> Any:
    return import_string(value) if isinstance(value, str) else value
