"""How much of what could go on for ever a test does: little in every run, much in `make soak`."""

import os

LONG = os.environ.get("RATELIMIT_LONG") == "1"


def scaled(short: int, long: int) -> int:
    """The first in every run of the suite; the second with RATELIMIT_LONG=1 (`make soak`)."""
    return long if LONG else short
