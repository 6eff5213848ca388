"""Throttles for Django REST framework.

    REST_FRAMEWORK = {
        "DEFAULT_THROTTLE_CLASSES": ["redis_ratelimit.rest_framework.UserRateThrottle"],
        "DEFAULT_THROTTLE_RATES": {"user": "100/min"},
    }
    RATELIMIT_LIMITER = Limiter.from_url("redis://localhost:6379")

The throttles by rates are the framework's own, with the server in place of the cache. A rate is a
SlidingLog, as the framework defines it, and exact for any number of processes.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from rest_framework import throttling

from redis_ratelimit.addresses import UNKNOWN, client, network
from redis_ratelimit.bound import Bound
from redis_ratelimit.decision import Decision
from redis_ratelimit.gate import UNLIMITED, MaybeKey
from redis_ratelimit.limiter import Limiter
from redis_ratelimit.limits import SlidingLog


class _Addressed(throttling.BaseThrottle):
    """Throttle that names clients by their addresses."""

    def get_ident(self, request: Any) -> str:
        """Returns the name of the client, by the framework's NUM_PROXIES, without ports and invalid
        addresses.
        """
        return _client(self, request) or UNKNOWN


def _client(throttle: Any, request: Any) -> str | None:
    ident = str(throttling.BaseThrottle.get_ident(throttle, request) or "")
    names = filter(None, map(network, ident.split(",")))
    return ",".join(names) or client(request.META.get("REMOTE_ADDR"))


class Throttle(_Addressed):
    """Throttle with a bound limit, which a subclass sets.

        class Searches(Throttle):
            limit = limiter.limit("search", TokenBucket(20, 1, "1s"))

    `key` returns the caller of a request, by default the user. None and an empty key stand for the
    client's address, and UNLIMITED for no limit.
    """

    limit: Bound
    decision: Decision | None = None

    def key(self, request: Any, view: Any) -> MaybeKey:
        del view
        if request.user and request.user.is_authenticated:
            return f"user:{request.user.pk}"
        return None

    def allow_request(self, request: Any, view: Any) -> bool:
        key = self.key(request, view)
        if key is UNLIMITED:
            self.decision = None
            return True
        if key is None or key in {"", b""}:
            key = self.limit.key_of_client(_client(self, request))
        else:
            key = self.limit.key_of(key)
        self.decision = self.limit._take(key, {})
        return self.decision.allowed

    def wait(self) -> float | None:
        """Returns the seconds until the request passes, or None if that is unknown."""
        return None if self.decision is None else self.decision.wait


class _ByRate(_Addressed, throttling.SimpleRateThrottle):
    """Framework's throttle with the server in place of the cache."""

    limiter: Limiter | None = None
    decision: Decision | None = None

    def allow_request(self, request: Any, view: Any) -> bool:
        if self.rate is None:
            return True
        self.key = self.get_cache_key(request, view)
        if self.key is None:
            return True
        limit = SlidingLog(self.num_requests, self.duration)
        self.decision = (self.limiter or _limiter()).take(self.key, limit)
        return self.throttle_success() if self.decision.allowed else self.throttle_failure()

    def throttle_success(self) -> bool:
        # The framework's method would write the request into the cache.
        return True

    def wait(self) -> float | None:
        return None if self.decision is None else self.decision.wait


class AnonRateThrottle(_ByRate, throttling.AnonRateThrottle):
    """Throttle by DEFAULT_THROTTLE_RATES["anon"], for each address of anonymous users."""


class UserRateThrottle(_ByRate, throttling.UserRateThrottle):
    """Throttle by DEFAULT_THROTTLE_RATES["user"], for each user, or else each address."""


class ScopedRateThrottle(_ByRate, throttling.ScopedRateThrottle):
    """Throttle by the rate of the view's `throttle_scope`."""

    def allow_request(self, request: Any, view: Any) -> bool:
        self.scope = getattr(view, self.scope_attr, None)
        if not self.scope:
            return True
        self.rate = self.get_rate()
        self.num_requests, self.duration = self.parse_rate(self.rate)
        return _ByRate.allow_request(self, request, view)


def _limiter() -> Limiter:
    limiter = getattr(settings, "RATELIMIT_LIMITER", None)
    limiter = import_string(limiter) if isinstance(limiter, str) else limiter
    if not isinstance(limiter, Limiter):
        raise ImproperlyConfigured("RATELIMIT_LIMITER is to be a redis_ratelimit.Limiter")
    return limiter
