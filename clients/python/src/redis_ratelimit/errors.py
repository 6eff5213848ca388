"""What can go wrong, as exceptions of this package."""

from __future__ import annotations

from redis_ratelimit.decision import Decision

MODULE_MISSING = (
    "the redis-ratelimit module is not loaded: start the server with "
    "--loadmodule /path/to/libredis_ratelimit.so"
)


class RateLimitError(Exception):
    """Base of all."""


class CallError(RateLimitError):
    """The server refuses the call as it is: a mistake in its words."""


class NoPolicyError(CallError):
    """There is no policy of these names. Set it and call again."""


class UnavailableError(RateLimitError):
    """The server did not decide: it is away, too slow, or in a state in which it refuses calls.

    `take` and `peek` decide without it, by `on_outage`; all else raises this.
    """


class DeniedError(RateLimitError):
    """There is no room, and none came while it was waited for."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(f"denied; the limit is {decision.limit}")
        self.decision = decision


class LeaseLostError(RateLimitError):
    """The lease could not be renewed in time. Somebody else may have it, or have it soon."""
