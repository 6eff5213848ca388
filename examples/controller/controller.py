"""Scales a policy by the p99 latency of the backend that it protects.

    python controller.py --policy backend --target-ms 500 --prometheus http://prometheus:9090 \\
        --query 'histogram_quantile(0.99, sum by (le) (rate(backend_seconds_bucket[10s])))'

Each step multiplies the scale if the backend is too slow, and otherwise adds to it: additive
increase, multiplicative decrease, which converges for any number of controllers (Chiu and Jain,
"Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in Computer Networks",
Computer Networks and ISDN Systems 17, 1989). A step costs a query to Prometheus and a call to
Redis. The search for the capacity denies requests, because it overshoots a little each time.

Each step sets the scale for a short time. If the controller stops, or loses Prometheus or Redis,
the scale soon expires to 1.
"""

import argparse
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isnan
from urllib.parse import urlencode
from urllib.request import urlopen

from redis_ratelimit import Limiter, RateLimitError

log = logging.getLogger("controller")

# p99 in milliseconds, or None if it is unknown, for example without traffic.
Measure = Callable[[], float | None]


@dataclass(frozen=True)
class Controller:
    """Adjusts a policy's scale. It is stateless: after a restart it continues from the current
    scale.
    """

    limiter: Limiter
    policy: str
    target_ms: float
    # Added per step. From 0.25 back to 1 takes 15 steps.
    increase: float = 0.05
    decrease: float = 0.7
    # Above 0: without admitted requests there is no latency to measure, and no recovery.
    min_scale: float = 0.05
    # Lifetime of a scale in seconds: several steps, so that one may be late or lost.
    scale_lifetime: float = 5
    # Seconds in which only one step counts, for any number of controllers. None for one controller.
    every: float | None = None

    def scale(self) -> float:
        """Returns the current scale; 1 if there is none or it has expired."""
        result = self.limiter.policies.get(self.policy)
        if result is None:
            raise LookupError(f"there is no policy {self.policy!r} to scale")
        return result.scale

    def step(self, p99_ms: float | None) -> float:
        """Makes a step and returns the scale. Without a latency, the scale is left to expire."""
        if p99_ms is None:
            return self.scale()
        policies = self.limiter.policies
        if p99_ms > self.target_ms:
            result = policies.multiply(
                self.policy,
                self.decrease,
                least=self.min_scale,
                every=self.every,
                time=self.scale_lifetime,
            )
        else:
            result = policies.add(
                self.policy, self.increase, every=self.every, time=self.scale_lifetime
            )
        return result.factor


def run(controller: Controller, measure: Measure, pause: Callable[[], None]) -> None:
    """Makes steps forever. An error is logged, and the next step is made as usual."""
    scale = 1.0
    while True:
        try:
            before, scale = scale, controller.step(measure())
            if scale != before:
                log.info("%s is scaled to %.3f", controller.policy, scale)
        except (RateLimitError, OSError, LookupError, ValueError) as error:
            log.warning("no step: %s", error)
        pause()


def query_prometheus(url: str, query: str) -> float | None:
    """Returns the p99 in milliseconds, from a query for seconds such as histogram_quantile."""
    with urlopen(f"{url}/api/v1/query?{urlencode({'query': query})}", timeout=2) as reply:
        result = json.load(reply)["data"]["result"]
    if not result:
        return None
    seconds = float(result[0]["value"][1])
    # NaN: there were no requests.
    return None if isnan(seconds) else seconds * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", required=True)
    parser.add_argument("--target-ms", type=float, required=True)
    parser.add_argument("--prometheus", required=True, metavar="URL")
    parser.add_argument("--query", required=True, help="the p99 in seconds")
    parser.add_argument("--redis", default=os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
    parser.add_argument("--every", type=float, default=1, metavar="SECONDS")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with Limiter.from_url(arguments.redis, timeout=1) as limiter:
        run(
            Controller(
                limiter,
                arguments.policy,
                arguments.target_ms,
                scale_lifetime=5 * arguments.every,
                # Below the pause, which is not exact.
                every=0.9 * arguments.every,
            ),
            lambda: query_prometheus(arguments.prometheus, arguments.query),
            lambda: time.sleep(arguments.every),  # the time between two steps
        )


if __name__ == "__main__":
    main()
