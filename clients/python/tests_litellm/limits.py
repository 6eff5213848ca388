"""Callback that config.yaml names, with a long timeout for a busy machine."""

import os

from redis_ratelimit.aio import Limiter
from redis_ratelimit.limits import Concurrency, TokenBucket
from redis_ratelimit.litellm import RateLimits

limits = RateLimits(
    Limiter.from_url(os.environ["RATELIMIT_URL"], timeout=20),
    policies={
        "llm": [
            TokenBucket(60, 60, "1m", cost=1, name="requests"),
            TokenBucket(10_000, 10_000, "1m", name="tokens"),
            Concurrency(10, "10m", name="parallel"),
        ]
    },
)
