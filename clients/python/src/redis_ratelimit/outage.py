"""Circuit breaker and log messages for outages of the server."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from redis_ratelimit import forks

log = logging.getLogger("redis_ratelimit")


class Breaker:
    """Circuit breaker: after `failures` consecutive failures, no call is sent for `pause` seconds.
    Then one call is sent as a probe, and if it fails, none for another `pause`.

    Calls that were in flight when another failed fail for the same reason, which counts once.
    """

    _lock = forks.lock()

    def __init__(self, failures: int, pause: float, clock: Callable[[], float]) -> None:
        self.pause = pause
        self._most = failures
        self._clock = clock
        self._failures = 0
        self._closed_until = 0.0
        self._failed_at = -math.inf
        self.forked()
        forks.knows(self)

    def forked(self) -> None:
        forks.forget(self, "_lock")

    @property
    def failures(self) -> int:
        return self._failures

    def allows(self) -> bool:
        if self._failures < self._most:
            return True
        with self._lock:
            now = self._clock()
            if now < self._closed_until:
                return False
            # This call is the probe; the next one must wait for another pause.
            self._closed_until = now + self.pause
            return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, sent_at: float) -> None:
        """Counts the failure of a call that was sent at `sent_at`."""
        with self._lock:
            now = self._clock()
            if sent_at >= self._failed_at:
                self._failures += 1
                self._failed_at = now
            self._closed_until = now + self.pause


class Notice:
    """Log messages for the begin and the end of an outage, one each.

    An outage ends when a call succeeds after `pause` seconds without a failure. Otherwise a server
    that fails every other call would fill the log.
    """

    def __init__(self, begun: str, over: str, pause: float, clock: Callable[[], float]) -> None:
        self._begins = begun
        self._over = over
        self._pause = pause
        self._clock = clock
        self._failed_at: float | None = None

    @property
    def begun(self) -> bool:
        return self._failed_at is not None

    def failed(self, why: str) -> None:
        if self._failed_at is None:
            log.warning("%s: %s", self._begins, why)
        self._failed_at = self._clock()

    def succeeded(self) -> None:
        if self._failed_at is not None and self._clock() >= self._failed_at + self._pause:
            log.warning(self._over)
            self._failed_at = None


# Minimum seconds between two log messages of the same error.
_REPEATED = 60.0


class Complaint:
    """Log messages for errors that need an operator: at once, and then once a minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logged_at: dict[str, float] = {}

    def of(self, reply: str, key: str | bytes, why: Exception) -> None:
        """Logs an error reply of the server, at most once a minute for each error code."""
        code, now = reply.partition(" ")[0], self._clock()
        if now - self._logged_at.get(code, -_REPEATED) >= _REPEATED:
            self._logged_at[code] = now
            log.error("Redis refuses a call for %r: %s", key, why)
