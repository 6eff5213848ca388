"""What a process that was forked does not share with the other: units in hand, and locks, which a
thread that is not in the child may have held.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    def forked(self) -> None:
        """In the child, before anything else of it runs."""


_KNOWN: WeakSet[Forked] = WeakSet()


def knows(one: Forked) -> None:
    """From now on it is told in the child of every fork."""
    _KNOWN.add(one)


def _in_child() -> None:
    for one in list(_KNOWN):
        one.forked()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_child)
