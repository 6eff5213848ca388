"""Rate limits that a Redis or Valkey server with the redis-ratelimit module decides."""

from redis_ratelimit.addresses import network
from redis_ratelimit.bound import Bound
from redis_ratelimit.decision import Decision, DeniedError
from redis_ratelimit.errors import (
    CallError,
    FullError,
    LeaseLostError,
    NoPolicyError,
    RateLimitError,
    SetupError,
    UnavailableError,
)
from redis_ratelimit.gate import UNLIMITED
from redis_ratelimit.headers import Denial, fields
from redis_ratelimit.lease import Lease
from redis_ratelimit.limiter import Limiter
from redis_ratelimit.limits import (
    Ban,
    Concurrency,
    Fixed,
    LeakyBucket,
    Limit,
    Policy,
    Sketch,
    Sliding,
    SlidingLog,
    TokenBucket,
)
from redis_ratelimit.local import Local
from redis_ratelimit.memory.clock import ManualClock
from redis_ratelimit.units import Units
from redis_ratelimit.zones import zone_offset

__version__ = "0.1.0"

__all__ = [
    "UNLIMITED",
    "Ban",
    "Bound",
    "CallError",
    "Concurrency",
    "Decision",
    "Denial",
    "DeniedError",
    "Fixed",
    "FullError",
    "LeakyBucket",
    "Lease",
    "LeaseLostError",
    "Limit",
    "Limiter",
    "Local",
    "ManualClock",
    "NoPolicyError",
    "Policy",
    "RateLimitError",
    "SetupError",
    "Sketch",
    "Sliding",
    "SlidingLog",
    "TokenBucket",
    "UnavailableError",
    "Units",
    "__version__",
    "fields",
    "network",
    "zone_offset",
]
