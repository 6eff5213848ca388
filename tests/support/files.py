"""Open files of a process, including sockets, and their limit."""

import os
import resource
from contextlib import suppress
from pathlib import Path

# Limit of open files. A test has about a hundred clients open, and an ordinary account has a soft
# limit of 1,024. A higher limit would slow programs that iterate over all descriptors.
LIMIT = 65_536

DESCRIPTORS = Path("/proc/self/fd")


def allow_many() -> None:
    """Raises the limit of open files of this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = LIMIT if hard == resource.RLIM_INFINITY else min(hard, LIMIT)
    if soft != resource.RLIM_INFINITY and soft < raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))


def open_files() -> dict[int, str]:
    """Returns the open files of this process by descriptor; empty if the system does not list
    them.
    """
    found = {}
    # Called twice in each of thousands of tests: path objects would take twice as long.
    for number in os.listdir(DESCRIPTORS) if DESCRIPTORS.exists() else ():  # noqa: PTH208
        # The descriptor of the listing itself is already closed.
        with suppress(FileNotFoundError):
            found[int(number)] = os.readlink(f"{DESCRIPTORS}/{number}")  # noqa: PTH115
    return found
