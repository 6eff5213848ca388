"""Orderly end of programs that run servers until Ctrl-C. The servers also end if the terminal is
closed, or `make` or the program is killed, so that no server keeps its port.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

try:
    import ctypes

    # Linux only; elsewhere a child is not notified of its parent's end.
    _PRCTL = getattr(ctypes.CDLL(None), "prctl", None)
except (ImportError, OSError):
    _PRCTL = None

_SET_PARENT_DEATH_SIGNAL = 1


def end_in_order() -> None:
    """Turns SIGTERM and SIGHUP into SystemExit, so that every `finally` runs. Under nohup SIGHUP
    stays ignored.
    """
    signals = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]

    def leave(*_: object) -> None:
        # A second signal, such as that of the ending parent, would interrupt the cleanup.
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(0)

    for number in signals:
        signal.signal(number, leave)


def end_with(parent: int) -> None:
    """Sends this process SIGTERM when its parent, with this id, ends."""
    _ask_for_sigterm()
    if _PRCTL and os.getppid() != parent:
        sys.exit(f"the process that started this program, {parent}, has ended")


def wait_for_end(process: subprocess.Popen[bytes]) -> None:
    """Waits until a process has ended. Python handles Ctrl-C only between its own steps. A Ctrl-C
    just before a long system call would be delayed until the call returns, so each call is short.
    """
    while process.returncode is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)


def start(words: list[Any], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a process like Popen, in a program without threads. The child gets SIGTERM when this
    process ends for any reason.
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
