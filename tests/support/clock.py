"""Wall clock of the servers under test, which stands still until a test moves it."""

import mmap
import re
import subprocess
from fractions import Fraction
from pathlib import Path

# 2023-11-14 22:13:20 UTC
START_US = 1_700_000_000_000_000

UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}


def build_library(directory: Path) -> Path:
    """Compiles clock.c, a library through which a server reads its time."""
    library = directory / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-O2", "-Wall", "-shared", "-fPIC", source, "-o", library], check=True)
    return library


class Clock:
    """Clock in microseconds since the Unix epoch, shared with every server that was started with
    it.
    """

    def __init__(self, library: Path, file: Path) -> None:
        self.library = library
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            # The time is written as one integer, so that a server never reads half of a new time.
            self._map = mmap.mmap(opened.fileno(), 8)
            self._cell = memoryview(self._map).cast("q")
        self.environment = {"LD_PRELOAD": str(library), "RATELIMIT_TEST_CLOCK": str(file)}
        self.reset()

    def close(self) -> None:
        """Releases the shared memory."""
        self._cell.release()
        self._map.close()

    @property
    def now(self) -> int:
        return self._cell[0]

    def set(self, us: int) -> None:
        if us <= 0:
            raise ValueError(f"not after the Unix epoch: {us}")
        self._cell[0] = us

    def reset(self) -> None:
        self.set(START_US)

    def run(self) -> None:
        """Shows the real time until the clock is set again."""
        self._cell[0] = 0

    def advance(self, duration: int | str) -> None:
        """Moves the clock by microseconds, or by a duration such as "1.5h". A negative duration
        sets it back.
        """
        self.set(self.now + _microseconds(duration))


def _microseconds(duration: int | str) -> int:
    if isinstance(duration, int):
        return duration
    match = re.fullmatch(r"(-?[0-9.]+)(us|ms|s|m|h|d)", duration)
    if match is None:
        raise ValueError(f"not a duration, such as 30s: {duration}")
    exact = Fraction(match[1]) * UNITS_US[match[2]]
    if exact.denominator != 1:
        raise ValueError(f"not a whole number of microseconds: {duration}")
    return exact.numerator
