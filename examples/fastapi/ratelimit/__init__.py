"""Rate limiting for ASGI applications, on a Redis or Valkey with redis-ratelimit."""

from ratelimit.calls import Breaker, Calls, UnavailableError, connect
from ratelimit.headers import denial, fields
from ratelimit.lease import Lease
from ratelimit.limiter import DeniedError, Limiter, Verdict
from ratelimit.limits import Charge, Decision, Limit
from ratelimit.middleware import RateLimitMiddleware, address

__all__ = [
    "Breaker",
    "Calls",
    "Charge",
    "Decision",
    "DeniedError",
    "Lease",
    "Limit",
    "Limiter",
    "RateLimitMiddleware",
    "UnavailableError",
    "Verdict",
    "address",
    "connect",
    "denial",
    "fields",
]
