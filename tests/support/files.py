"""How many files a process has open, sockets among them, and how many it may have."""

import os
import resource
from contextlib import suppress
from pathlib import Path

# A test has some hundred clients open, and 1,024 files are what an ordinary account may have unless
# it asks for more. More than these nothing here needs; some programs go through all that they may.
ENOUGH = 65_536

FILES_OPEN = Path("/proc/self/fd")


def allow_many() -> None:
    """Raises what this process and those that it starts may have open, as far as they may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def opened() -> dict[int, str]:
    """What this process has open, by number; nothing where the system does not tell."""
    found = {}
    # Asked twice by each of thousands of tests: paths as objects take twice as long.
    for number in os.listdir(FILES_OPEN) if FILES_OPEN.exists() else ():  # noqa: PTH208
        # Not that of the listing itself.
        with suppress(FileNotFoundError):
            found[int(number)] = os.readlink(f"{FILES_OPEN}/{number}")  # noqa: PTH115
    return found
