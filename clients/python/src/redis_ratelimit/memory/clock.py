"""Clock for tests."""

from __future__ import annotations

import threading
import time
from datetime import datetime

from redis_ratelimit.quantities import Duration, seconds


class ManualClock:
    """Clock that stands still until it is moved, for `Limiter.local(clock=...)`. It starts at
    `now`: seconds since 1970, or a datetime. Calls with `wait` advance it.
    """

    def __init__(self, now: float | datetime | None = None) -> None:
        self._lock = threading.Lock()
        self._micros = 0
        self.set(time.time() if now is None else now)

    def __call__(self) -> float:
        return self._micros / 1_000_000

    def advance(self, duration: Duration) -> None:
        """Moves the clock by seconds, or by a duration such as "1m"."""
        micros = round(seconds(duration) * 1_000_000)
        with self._lock:
            self._micros += micros

    def set(self, now: float | datetime) -> None:
        """Sets the clock to an instant, earlier or later."""
        self._micros = round((now.timestamp() if isinstance(now, datetime) else now) * 1_000_000)
