"""What can go wrong, as exceptions of this package."""


class RateLimitError(Exception):
    """Base of all."""


class CallError(RateLimitError):
    """The server refuses the call as it is: a mistake in its words."""


class SetupError(RateLimitError):
    """The server, its users, its keys or the application are set up in a way that cannot work: a
    wrong password, no permission, no module, a key of another type, keys of two slots. The message
    says what to do. It is no outage, so `on_outage` does not hold.
    """


class NoPolicyError(SetupError):
    """There is no policy of these names. Set it and call again."""


class FullError(RateLimitError):
    """There is no room: a key has as many entries as it may have, or the server's memory is full.

    `take` and `peek` are denied; what decides nothing raises this.
    """


class UnavailableError(RateLimitError):
    """The server did not decide: it is away, too slow, or in a state in which it refuses calls.

    `take` and `peek` decide without it, by `on_outage`; all else raises this.
    """


class LeaseLostError(RateLimitError):
    """The lease could not be renewed in time. Somebody else may have it, or have it soon."""
