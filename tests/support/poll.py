"""Polling for events of a server: its start, a sync, the end of a fork."""

import time
from collections.abc import Callable

# Timeout in seconds, which only a failing test reaches, as a busy machine may be slow.
TIMEOUT = 50.0

# Bounds of the pause between two checks, in seconds.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.1


def until(condition: Callable[[], object], expected: str, timeout: float = TIMEOUT) -> None:
    """Waits until the condition holds. Use `Clock` to let time pass."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > timeout:
            raise TimeoutError(f"not within {timeout} seconds: {expected}")
        # A pause leaves the processor to other processes. It grows with the wait, and delays the
        # result by at most a twentieth of it or the shortest pause.
        time.sleep(min(max(waited / 20, SHORTEST_PAUSE), LONGEST_PAUSE))
