"""Exceptions of this package."""


class RateLimitError(Exception):
    """Base class of all exceptions of this package."""


class CallError(RateLimitError):
    """Rejection of a malformed call by the server."""


class SetupError(RateLimitError):
    """Misconfiguration of the server, its users, its keys or the application: a wrong password, no
    permission, no module, a key of another type, keys of two slots. The message says what to do. A
    misconfiguration is not an outage, so `on_outage` does not apply.
    """


class NoPolicyError(SetupError):
    """Missing policy: none of the names exists. Set it and call again."""


class FullError(RateLimitError):
    """Lack of room: a key has its maximum number of entries, or the server's memory is full.

    `take` and `peek` are denied; calls that decide nothing raise this error.
    """


class UnavailableError(RateLimitError):
    """Outage: the server is unreachable, too slow, or in a state in which it refuses calls.

    `take` and `peek` decide by `on_outage`; all other calls raise this error.
    """


class LeaseLostError(RateLimitError):
    """Loss of a lease that was not renewed in time. Another holder may have it, or get it soon."""
