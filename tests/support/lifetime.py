"""How a program that serves until Ctrl-C ends when something else ends it, so that no server stays
on its port: the terminal is closed, `make` is killed, or it is killed itself.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

try:
    import ctypes

    # Linux's; elsewhere nobody hears of the end of a parent.
    _PRCTL = getattr(ctypes.CDLL(None), "prctl", None)
except (ImportError, OSError):
    _PRCTL = None

_SET_PARENT_DEATH_SIGNAL = 1


def end_in_order() -> None:
    """An ordinary kill and a terminal that closes leave by SystemExit, through every `finally`.
    Under nohup the terminal may close.
    """
    signals = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]

    def leave(*_: object) -> None:
        # A second one, such as that of the parent which ends as well, would leave by half.
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(0)

    for number in signals:
        signal.signal(number, leave)


def end_with(parent: int) -> None:
    """As an ordinary kill, once the parent, of this id, is gone: make, whatever ended it."""
    _ask_for_sigterm()
    if _PRCTL and os.getppid() != parent:
        sys.exit(f"what started this, process {parent}, has ended")


def wait_for_end(process: subprocess.Popen[bytes]) -> None:
    """Waits until it has ended. Python acts on Ctrl-C between its own steps only: one that comes
    just before the system's wait would go unnoticed until the process ends, so no wait is long.
    """
    while process.returncode is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)


def start(words: list[Any], **options: Any) -> subprocess.Popen[bytes]:
    """As Popen, in a program without threads. The child gets an ordinary kill once this process is
    gone, whatever ended that.
    """
    parent = os.getpid()

    def prepare() -> None:
        _ask_for_sigterm()
        if _PRCTL and os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(words, preexec_fn=prepare, **options)  # noqa: PLW1509  no threads


def _ask_for_sigterm() -> None:
    if _PRCTL:
        _PRCTL(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGTERM))
