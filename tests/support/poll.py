"""Waiting for what a server does by itself: to start, to sync, to finish a fork."""

import time
from collections.abc import Callable

# Seconds. Only a test that fails waits so long: on a busy machine a server may take a while.
PATIENCE = 50.0


def until(condition: Callable[[], object], expected: str, timeout: float = PATIENCE) -> None:
    """Returns as soon as the condition holds. Never a way to let time pass: that is `Clock`."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} seconds: {expected}")
        time.sleep(0.01)  # poll until the condition holds
