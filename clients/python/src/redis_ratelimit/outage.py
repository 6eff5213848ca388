"""What keeps an outage of the server from becoming one of the application."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from redis_ratelimit import forks

log = logging.getLogger("redis_ratelimit")


class Breaker:
    """Stops asking who does not answer: after some failures in a row, nobody asks for a while.
    Then one caller does, and if that fails too, nobody for a while again.

    Calls that were under way when another failed fail of the same: that counts once.
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
            # This caller finds out; the next may not before its own pause is over.
            self._closed_until = now + self.pause
            return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, sent_at: float) -> None:
        """Of a call that was sent at that time."""
        with self._lock:
            now = self._clock()
            if sent_at >= self._failed_at:
                self._failures += 1
                self._failed_at = now
            self._closed_until = now + self.pause


class Notice:
    """A line in the log when an outage begins and one when it is over, however many calls there
    are.

    It is over when a call succeeds and for a `pause` none has failed: a server of which every
    other call fails would fill the log.
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


# Seconds.
_REPEATED = 60.0


class Complaint:
    """A line in the log for what somebody has to mend: at once, and each minute it goes on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: dict[str, float] = {}

    def of(self, reply: str, key: str | bytes, why: Exception) -> None:
        """The reply is the server's. It begins with a code, and of each there is one line."""
        code, now = reply.partition(" ")[0], self._clock()
        if now - self._told.get(code, -_REPEATED) >= _REPEATED:
            self._told[code] = now
            log.error("Redis refuses a call for %r: %s", key, why)
