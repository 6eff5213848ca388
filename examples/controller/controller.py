"""Scales a policy by the p99 latency of the backend that it guards.

    python controller.py --policy backend --target-ms 500 --prometheus http://prometheus:9090 \\
        --query 'histogram_quantile(0.99, sum by (le) (rate(backend_seconds_bucket[10s])))'

Each step multiplies the scale if the backend is too slow, and adds to it if it is not: additive
increase, multiplicative decrease, which converges however many share the backend (Chiu and Jain,
"Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in Computer Networks",
Computer Networks and ISDN Systems 17, 1989). What it costs: two calls a step, and the requests that
are denied while it looks for the capacity, which it overshoots a little each time.

Each step renews the scale for a short time. So whatever becomes of the controller, of its view of
the backend or of its way to Redis, the policy is soon the operator's again.
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

# The p99 in milliseconds; None if it is not known, as when nobody calls.
Measure = Callable[[], float | None]


@dataclass(frozen=True)
class Controller:
    """Adjusts a policy's scale. It is stateless: after a restart it continues from the current
    scale.
    """

    limiter: Limiter
    policy: str
    target_ms: float
    # Of the whole: from a quarter back to 1 takes 15 steps.
    increase: float = 0.05
    decrease: float = 0.7
    # Never 0: who admits nobody has nothing to measure, and would never see that it is over.
    least: float = 0.05
    # How long a scale lasts: some steps, so that one that is late or lost does no harm.
    hold: float = 5
    # Seconds in which one step counts, of however many controllers: None for one controller alone.
    every: float | None = None

    def scale(self) -> float:
        """Returns the current scale; 1 if there is none or it has ended."""
        found = self.limiter.policies.get(self.policy)
        if found is None:
            raise LookupError(f"there is no policy {self.policy!r} to scale")
        return found.scale

    def step(self, p99_ms: float | None) -> float:
        """The scale from now on. One that does not see the backend leaves the scale to lapse."""
        if p99_ms is None:
            return self.scale()
        policies = self.limiter.policies
        if p99_ms > self.target_ms:
            told = policies.multiply(
                self.policy, self.decrease, least=self.least, every=self.every, time=self.hold
            )
        else:
            told = policies.add(self.policy, self.increase, every=self.every, time=self.hold)
        return told.factor


def run(controller: Controller, measure: Measure, pause: Callable[[], None]) -> None:
    """Steps for ever. What goes wrong is in the log, and tried again at the next step."""
    scale = 1.0
    while True:
        try:
            before, scale = scale, controller.step(measure())
            if scale != before:
                log.info("%s is scaled to %.3f", controller.policy, scale)
        except (RateLimitError, OSError, LookupError, ValueError) as error:
            log.warning("no step: %s", error)
        pause()


def prometheus(url: str, query: str) -> float | None:
    """The result of a query that tells the p99 in seconds, as histogram_quantile does."""
    with urlopen(f"{url}/api/v1/query?{urlencode({'query': query})}", timeout=2) as reply:
        found = json.load(reply)["data"]["result"]
    if not found:
        return None
    seconds = float(found[0]["value"][1])
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
    words = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with Limiter.from_url(words.redis, timeout=1) as limiter:
        run(
            Controller(
                limiter,
                words.policy,
                words.target_ms,
                hold=5 * words.every,
                # A little less, as no pause is exact.
                every=0.9 * words.every,
            ),
            lambda: prometheus(words.prometheus, words.query),
            lambda: time.sleep(words.every),  # the time between two steps
        )


if __name__ == "__main__":
    main()
