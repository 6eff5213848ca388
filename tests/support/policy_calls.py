"""Setting of policies, and replies about them."""

from collections.abc import Callable

from redis import Redis, ResponseError

from support.clock import START_US
from support.server import Server

MINUTE = "TOKENBUCKET 60 60 1m"
HOUR = "FIXED 1000 1h"
START_MS = START_US // 1000
Start = Callable[..., Server]


def answer(redis: Redis, *words: str | bytes) -> object:
    """Returns the reply, or an error as on the wire."""
    try:
        return redis.execute_command(*words)
    except ResponseError as error:
        # The client removes only the error codes that it knows from the text.
        return f"{error.status_code or ''} {error}".lstrip()
