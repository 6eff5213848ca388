"""How many files a process has open, sockets among them, and how many it may have."""

import resource
from contextlib import suppress
from pathlib import Path

# A test has some hundred clients open, and 1,024 files are what an ordinary account may have unless
# it asks for more. More than these nothing here needs; some programs go through all that they may.
ENOUGH = 65_536


def allow_many() -> None:
    """Raises what this process and those that it starts may have open, as far as they may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def opened() -> dict[int, str]:
    """What this process has open, by number; nothing where the system does not tell."""
    folder = Path("/proc/self/fd")
    found = {}
    for link in folder.iterdir() if folder.exists() else ():
        # Not that of the listing itself.
        with suppress(FileNotFoundError):
            found[int(link.name)] = str(link.readlink())
    return found
