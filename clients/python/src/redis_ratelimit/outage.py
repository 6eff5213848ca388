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

    Calls that were in flight together count as one failure, as they fail for the same reason.
    """

    _lock = forks.lock()

    def __init__(self, failures: int, pause: float, clock: Callable[[], float]) -> None:
        self.pause = pause
        self._max_failures = failures
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0
        self._failed_at = -math.inf
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        forks.forget(self, "_lock")

    @property
    def failures(self) -> int:
        return self._failures

    def allows(self) -> bool:
        if self._failures < self._max_failures:
            return True
        with self._lock:
            now = self._clock()
            if now < self._open_until:
                return False
            # This call is the probe; the next one must wait for another pause.
            self._open_until = now + self.pause
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
            self._open_until = now + self.pause


class Notice:
    """Log messages for the beginning and the end of an outage.

    An outage ends when a call succeeds after `pause` seconds without a failure, so that a server
    that fails every other call does not fill the log.
    """

    def __init__(
        self, begin_message: str, end_message: str, pause: float, clock: Callable[[], float]
    ) -> None:
        self._begin_message = begin_message
        self._end_message = end_message
        self._pause = pause
        self._clock = clock
        self._failed_at: float | None = None

    @property
    def has_begun(self) -> bool:
        return self._failed_at is not None

    def failed(self, why: str) -> None:
        if self._failed_at is None:
            log.warning("%s: %s", self._begin_message, why)
        self._failed_at = self._clock()

    def succeeded(self) -> None:
        if self._failed_at is not None and self._clock() >= self._failed_at + self._pause:
            log.warning(self._end_message)
            self._failed_at = None


# Minimum seconds between two log messages of the same error.
_LOG_INTERVAL = 60.0


class Complaint:
    """Log of errors that need an operator, with at most one message a minute per error code."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logged_at: dict[str, float] = {}

    def log_reply(self, reply: str, key: str | bytes, why: Exception) -> None:
        """Logs an error reply of the server to a call for `key`. `why` explains the reply."""
        code, now = reply.partition(" ")[0], self._clock()
        if now - self._logged_at.get(code, -_LOG_INTERVAL) >= _LOG_INTERVAL:
            self._logged_at[code] = now
            log.error("Redis refuses a call for %r: %s", key, why)
