"""Waiting for what a server does by itself: to start, to sync, to finish a fork."""

import time
from collections.abc import Callable

# Seconds. Only a test that fails waits so long: on a busy machine a server may take a while.
PATIENCE = 50.0

# Seconds between two looks.
SHORTEST, LONGEST = 0.01, 0.1


def until(condition: Callable[[], object], expected: str, timeout: float = PATIENCE) -> None:
    """Returns as soon as the condition holds. Never a way to let time pass: that is `Clock`."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > timeout:
            raise TimeoutError(f"not within {timeout} seconds: {expected}")
        # Poll until the condition holds: the longer that takes, the more it leaves the processor to
        # others, and a long wait is noticed late by a twentieth at most.
        time.sleep(min(max(waited / 20, SHORTEST), LONGEST))
