"""A server under valgrind's memcheck, which watches every byte that is read, written and freed."""

import re
import shlex
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from support.binaries import Binary

OPTIONS = [
    "--leak-check=full",
    # What the keyspace holds at the end is no leak, but shows that our blocks are seen at all.
    "--show-leak-kinds=definite,indirect,reachable",
    # As far as the frames of the module, beneath those of the standard library.
    "--num-callers=60",
    "--error-limit=no",
    f"--suppressions={Path(__file__).with_suffix('.supp')}",
    # Debian's servers take their memory from a library of jemalloc's, not from the C library.
    "--soname-synonyms=somalloc=*jemalloc*",
]
# A frame of the module: of its own code, or of generic code of the standard library's in its file.
OURS = re.compile(r"redis_ratelimit")


@dataclass(frozen=True)
class Finding:
    """What memcheck says of one place: a line that says what, and the calls that led there."""

    what: str
    frames: tuple[str, ...]

    @property
    def is_ours(self) -> bool:
        return any(OURS.search(frame) for frame in self.frames)

    @property
    def is_reachable(self) -> bool:
        return "still reachable in loss record" in self.what

    @property
    def is_leak(self) -> bool:
        """A block to which no pointer is left."""
        return re.search(r" (definitely|indirectly) lost in loss record", self.what) is not None

    @property
    def is_error(self) -> bool:
        """Something wrong that was done, not a block that was left."""
        return " in loss record" not in self.what

    def __str__(self) -> str:
        return "\n  ".join([self.what, *self.frames])


class Memcheck:
    """What memcheck says of a server and of whatever it forks, in files of a directory."""

    def __init__(self, binary: Binary, directory: Path) -> None:
        self._logs = directory / "memcheck"
        self._logs.mkdir()
        wrapper = directory / "server"
        command = shlex.join(
            ["valgrind", *OPTIONS, f"--log-file={self._logs}/%p", str(binary.path)]
        )
        wrapper.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        wrapper.chmod(0o755)
        # To be started in place of the server.
        self.binary = replace(binary, path=wrapper)

    def findings(self) -> list[Finding]:
        """Of all servers that have ended."""
        logs = [log.read_text(errors="replace") for log in sorted(self._logs.iterdir())]
        return [finding for log in logs for finding in findings(log)]


def findings(log: str) -> list[Finding]:
    """What a log of memcheck's tells. Lines of forked processes, which begin with another process
    id, come in between.
    """
    texts = defaultdict(str)
    for line in log.splitlines():
        match = re.match(r"==(\d+)== ?(.*)", line)
        if match is not None:
            texts[match[1]] += match[2] + "\n"
    found = []
    for text in texts.values():
        for paragraph in re.split(r"\n[ ]*\n", text):
            # "Thread 3 bio_lazy_free:" may come before what is said, and be said for itself.
            lines = [line for line in paragraph.splitlines() if not line.startswith("Thread ")]
            frames = tuple(line.strip() for line in lines if re.match(r" +(at|by) 0x", line))
            if frames:
                found.append(Finding(lines[0].strip(), frames))
    return found
