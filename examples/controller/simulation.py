"""Simulates a backend that is slow for a while behind a policy, with and without a controller.

The policy is on a real server, whose clock the simulation moves. 80 simulated seconds take one or
two, and each run is the same.
"""

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil, inf
from pathlib import Path

from controller import Controller
from redis import Redis
from redis_ratelimit import Limiter, TokenBucket

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support import binaries  # noqa: E402
from support.clock import START_US, UNITS_US, Clock, build_library  # noqa: E402
from support.server import Server  # noqa: E402

END, SLOW_FROM, SLOW_UNTIL = 80, 20, 50
# Requests a second.
OFFERED, CAPACITY, SLOW_CAPACITY = 80, 120, 40
WORKERS = 6
TARGET_MS = 500
POLICY, LIMIT = "backend", TokenBucket(20, 100, "1s")
# Timeout of a call in seconds, long enough for a busy machine.
TIMEOUT = 20
# Time at which the controller dies.
DIES_AT = 35


def capacity(at: float) -> int:
    return SLOW_CAPACITY if SLOW_FROM <= at < SLOW_UNTIL else CAPACITY


class Backend:
    """Workers with a queue. Queued requests never time out."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        # Times at which workers are free.
        self._free_at = [0.0] * WORKERS
        # End and latency of each running request.
        self._running: list[tuple[float, float]] = []

    def add_request(self, at: float) -> None:
        start = max(at, self._free_at[0])
        end = start + self._generator.gammavariate(4, WORKERS / capacity(start) / 4)
        heapreplace(self._free_at, end)
        heappush(self._running, (end, end - at))

    def p99_ms(self, until: float) -> float | None:
        """Returns the p99 of the requests that have ended since the last call."""
        latencies = []
        while self._running and self._running[0][0] <= until:
            latencies.append(heappop(self._running)[1])
        if not latencies:
            return None
        return 1000 * sorted(latencies)[ceil(0.99 * len(latencies)) - 1]


@dataclass(frozen=True)
class Second:
    """Measurements of the second that ends at `at`, and the scale after it."""

    at: int
    offered: int
    admitted: int
    p99_ms: float | None
    scale: float


def request_times(generator: random.Random) -> Iterator[float]:
    at = 0.0
    while (at := at + generator.expovariate(OFFERED)) < END:
        yield at


def simulate(redis: Redis, limiter: Limiter, clock: Clock, alive_until: float) -> list[Second]:
    """Simulates second by second. The controller steps after each second until it dies."""
    redis.flushall()
    clock.reset()
    limiter.policies.delete(POLICY)
    limiter.policies.set(POLICY, LIMIT)
    controller = Controller(limiter, POLICY, TARGET_MS)
    backend = Backend(random.Random(2))
    # Times of requests (False) and of ends of seconds (True).
    events = [(at, False) for at in request_times(random.Random(1))]
    events += [(float(at), True) for at in range(1, END + 1)]
    heapify(events)
    seconds: list[Second] = []
    offered = admitted = 0
    while events:
        at, is_end = heappop(events)
        clock.set(START_US + round(at * UNITS_US["s"]))
        if is_end:
            p99_ms = backend.p99_ms(at)
            scale = controller.step(p99_ms) if at < alive_until else controller.scale()
            seconds.append(Second(round(at), offered, admitted, p99_ms, scale))
            offered = admitted = 0
            continue
        offered += 1
        # One limit for all callers of the backend. 0: no delay.
        if redis.execute_command("RL.DELAY", "{backend}:all", POLICY) == 0:
            admitted += 1
            backend.add_request(at)
    return seconds


RUNS = {
    "without a controller": 0,
    "with a controller": inf,
    f"it dies at {DIES_AT} s": DIES_AT,
}


def simulate_all(redis: Redis, clock: Clock) -> dict[str, list[Second]]:
    with Limiter(redis, timeout=TIMEOUT) as limiter:
        return {
            name: simulate(redis, limiter, clock, alive_until) for name, alive_until in RUNS.items()
        }


@contextmanager
def server_with_clock() -> Iterator[tuple[Server, Clock]]:
    binary = binaries.to_run(os.environ.get("SERVER"))
    with tempfile.TemporaryDirectory(prefix="ratelimit-") as directory:
        clock = Clock(build_library(Path(directory)), Path(directory, "clock"))
        with Server(binary, clock=clock, module_args="policies yes") as server:
            yield server, clock


def main() -> None:
    with server_with_clock() as (server, clock), server.client() as redis:
        runs = simulate_all(redis, clock)
    print(f"{OFFERED} requests a second are offered. The backend can do {CAPACITY}, but "
          f"{SLOW_CAPACITY} from {SLOW_FROM} s to {SLOW_UNTIL} s.\n")  # fmt: skip
    print(" " * 8 + "".join(f"{name:^33}" for name in runs))
    print("seconds " + "  admitted     p99 ms     scale  " * len(runs))
    for seconds in zip(*runs.values(), strict=True):
        if seconds[0].at % 4 == 0:
            columns = (f"{run.admitted:10} {run.p99_ms or 0:10.0f} {run.scale:9.2f}  "
                       for run in seconds)  # fmt: skip
            print(f"{seconds[0].at:7} " + "".join(columns))


if __name__ == "__main__":
    main()
