"""Limits for Django: middleware, and a decorator for views.

    MIDDLEWARE = ["redis_ratelimit.django.RateLimitMiddleware", ...]
    RATELIMIT = limiter.limit("api", Fixed(100, "1m"))

A limiter of asyncio (`redis_ratelimit.aio`) is for applications behind ASGI, the other for WSGI.
"""

from __future__ import annotations

import time
from asyncio import sleep
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.module_loading import import_string

from redis_ratelimit.addresses import network
from redis_ratelimit.aio_bound import AsyncBound
from redis_ratelimit.bound import Bound
from redis_ratelimit.decision import Decision
from redis_ratelimit.gate import Gate
from redis_ratelimit.quantities import Amount, Key

Keyed: TypeAlias = Callable[[HttpRequest], Key | None]
View = TypeVar("View", bound=Callable[..., Any])


def address(request: HttpRequest) -> str:
    """Whom a limit by address counts: see `redis_ratelimit.addresses`.

    It is the server's word that counts. Behind proxies, tell the server which of them to believe.
    """
    return network(request.META.get("REMOTE_ADDR") or "unknown")


def user(request: HttpRequest) -> str:
    """The user who is logged in, else the address. It needs Django's AuthenticationMiddleware,
    before this one.
    """
    found = getattr(request, "user", None)
    if found is not None and found.is_authenticated:
        return f"user:{found.pk}"
    return address(request)


class _Asked:
    """The limit of a request, and what is answered to one that is denied."""

    def __init__(
        self, limit: Bound | AsyncBound, key: Keyed, cost: Any, name: str, unix_reset: bool
    ) -> None:
        self._gate = Gate(None, limit, name, unix_reset)
        self._key = key
        self._cost = cost
        self.is_async = isinstance(limit, AsyncBound)

    def take(self, request: HttpRequest) -> Any:
        """The decision; None if the request has no limit."""
        key = self._key(request)
        if key is None:
            return None
        return self._gate.take(key, self._cost(request) if callable(self._cost) else self._cost)

    def denial(self, decision: Decision) -> HttpResponse:
        status, headers, body = self._gate.denial(decision)
        return HttpResponse(body, status=status, headers=headers)

    def tell(self, response: Any, decision: Decision) -> Any:
        for name, value in self._gate.fields(decision).items():
            # A view may have limits of its own.
            if name not in response:
                response[name] = value
        return response

    def around(self, serve: Callable[..., Any]) -> Callable[..., Any]:
        """`serve` gets the request first."""

        def served(request: HttpRequest, *args: Any, **named: Any) -> Any:
            decision = self.take(request)
            if decision is None:
                return serve(request, *args, **named)
            if not decision.allowed:
                return self.denial(decision)
            if decision.wait_ms:
                time.sleep(decision.wait_ms / 1000)
            return self.tell(serve(request, *args, **named), decision)

        async def awaited(request: HttpRequest, *args: Any, **named: Any) -> Any:
            asking = self.take(request)
            if asking is None:
                return await serve(request, *args, **named)
            decision = await asking
            if not decision.allowed:
                return self.denial(decision)
            if decision.wait_ms:
                await sleep(decision.wait_ms / 1000)
            return self.tell(await serve(request, *args, **named), decision)

        is_async = iscoroutinefunction(serve)
        if is_async != self.is_async:
            needed = "redis_ratelimit.aio.Limiter" if is_async else "redis_ratelimit.Limiter"
            raise ImproperlyConfigured(f"{serve!r} needs a limit of a {needed}")
        return awaited if is_async else served


class RateLimitMiddleware:
    """Answers 429 in place of the application, or adds the rate limit fields to its response.

    RATELIMIT       a limit under a name, or where it is: "shop.limits.api".
    RATELIMIT_KEY   whose limit a request has, a function of it, or where that is; None: it is not
                    limited. By default `redis_ratelimit.django.address`.
    RATELIMIT_UNIX_RESET    X-RateLimit-Reset is in seconds since 1970, not from now.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        limit = _imported(getattr(settings, "RATELIMIT", None))
        if not isinstance(limit, (Bound, AsyncBound)):
            raise ImproperlyConfigured(
                'RATELIMIT is to be a limit under a name: limiter.limit("api", Fixed(100, "1m"))'
            )
        key = _imported(getattr(settings, "RATELIMIT_KEY", address))
        is_async = iscoroutinefunction(get_response)
        cost = getattr(settings, "RATELIMIT_COST", None)
        unix_reset = getattr(settings, "RATELIMIT_UNIX_RESET", False)
        asked = _Asked(limit, key, cost, "default", unix_reset)
        if not is_async or asked.is_async:
            self._serve = asked.around(get_response)
        else:
            # Behind ASGI with a limiter for threads: the calls of it are made by a thread.
            self._serve = _in_a_thread(asked, get_response)
        if is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        return self._serve(request)


def _in_a_thread(
    asked: _Asked, get_response: Callable[[HttpRequest], Awaitable[Any]]
) -> Callable[[HttpRequest], Awaitable[Any]]:
    take = sync_to_async(asked.take, thread_sensitive=False)

    async def served(request: HttpRequest) -> Any:
        decision = await take(request)
        if decision is None:
            return await get_response(request)
        if not decision.allowed:
            return asked.denial(decision)
        if decision.wait_ms:
            await sleep(decision.wait_ms / 1000)
        return asked.tell(await get_response(request), decision)

    return served


def ratelimit(
    limit: Bound | AsyncBound,
    *,
    key: Keyed = address,
    cost: Amount | Callable[[HttpRequest], Amount] | None = None,
    name: str = "default",
    unix_reset: bool = False,
) -> Callable[[View], View]:
    """A decorator: `@ratelimit(limiter.limit("login", Fixed(5, "1m")))`. Of a view that is a
    coroutine, the limit is of a limiter of asyncio.

    key     whose limit a request has, a function of it; None: it is not limited.
    cost    what a request charges, or a function of it.
    name    what the limit is called in header fields if it has no name.
    unix_reset    X-RateLimit-Reset is in seconds since 1970, not from now.
    """
    asked = _Asked(limit, key, cost, name, unix_reset)

    def limited(view: View) -> View:
        return wraps(view)(asked.around(view))  # type: ignore[return-value]

    return limited


def _imported(value: Any) -> Any:
    return import_string(value) if isinstance(value, str) else value
