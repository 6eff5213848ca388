"""Server under valgrind's memcheck, which checks every byte that is read, written and freed."""

import re
import shlex
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from support.binaries import Binary

OPTIONS = [
    "--leak-check=full",
    # Reachable blocks of the keyspace are not leaks, but show that the module's blocks are seen.
    "--show-leak-kinds=definite,indirect,reachable",
    # Deep enough to reach the module's frames below those of the standard library.
    "--num-callers=60",
    "--error-limit=no",
    f"--suppressions={Path(__file__).with_suffix('.supp')}",
    # Debian's servers allocate from a jemalloc library, not from the C library.
    "--soname-synonyms=somalloc=*jemalloc*",
]
# Frame of the module, including generic code of the standard library in its file.
OURS = re.compile(r"redis_ratelimit")


@dataclass(frozen=True)
class Finding:
    """Report of memcheck on one location: a description, and the stack."""

    message: str
    frames: tuple[str, ...]

    @property
    def is_ours(self) -> bool:
        return any(OURS.search(frame) for frame in self.frames)

    @property
    def is_reachable(self) -> bool:
        return "still reachable in loss record" in self.message

    @property
    def is_leak(self) -> bool:
        """`True` for a block without any pointer to it."""
        return re.search(r" (definitely|indirectly) lost in loss record", self.message) is not None

    @property
    def is_error(self) -> bool:
        """`True` for an invalid access, not a leaked block."""
        return " in loss record" not in self.message

    def __str__(self) -> str:
        return "\n  ".join([self.message, *self.frames])


class Memcheck:
    """Reports of memcheck on a server and its forks, in files of a directory."""

    def __init__(self, binary: Binary, directory: Path) -> None:
        self._logs = directory / "memcheck"
        self._logs.mkdir()
        wrapper = directory / "server"
        command = shlex.join(
            ["valgrind", *OPTIONS, f"--log-file={self._logs}/%p", str(binary.path)]
        )
        wrapper.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        wrapper.chmod(0o755)
        # Program to start in place of the server.
        self.binary = replace(binary, path=wrapper)

    def findings(self) -> list[Finding]:
        """Returns the reports on all servers that have ended."""
        logs = [log.read_text(errors="replace") for log in sorted(self._logs.iterdir())]
        return [finding for log in logs for finding in findings(log)]


def findings(log: str) -> list[Finding]:
    """Parses a log of memcheck. Lines of forked processes, with another process id, are
    interleaved.
    """
    texts = defaultdict(str)
    for line in log.splitlines():
        match = re.match(r"==(\d+)== ?(.*)", line)
        if match is not None:
            texts[match[1]] += match[2] + "\n"
    found = []
    for text in texts.values():
        for paragraph in re.split(r"\n[ ]*\n", text):
            # A line such as "Thread 3 bio_lazy_free:" may precede a report, or stand alone.
            lines = [line for line in paragraph.splitlines() if not line.startswith("Thread ")]
            frames = tuple(line.strip() for line in lines if re.match(r" +(at|by) 0x", line))
            if frames:
                found.append(Finding(lines[0].strip(), frames))
    return found
