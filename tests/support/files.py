"""Open files of a process, including sockets, and their limit."""

import os
import resource
from contextlib import suppress
from pathlib import Path

# Upper bound of open files. A test has about a hundred clients open, and an ordinary account has a
# soft limit of 1,024. A higher limit would slow programs that iterate over all descriptors.
ENOUGH = 65_536

FILES_OPEN = Path("/proc/self/fd")


def allow_many() -> None:
    """Raises the limit of open files of this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))


def opened() -> dict[int, str]:
    """Returns the open files of this process by descriptor; empty if the system does not list
    them.
    """
    found = {}
    # Called twice in each of thousands of tests: path objects would take twice as long.
    for number in os.listdir(FILES_OPEN) if FILES_OPEN.exists() else ():  # noqa: PTH208
        # The descriptor of the listing itself is closed by now.
        with suppress(FileNotFoundError):
            found[int(number)] = os.readlink(f"{FILES_OPEN}/{number}")  # noqa: PTH115
    return found
