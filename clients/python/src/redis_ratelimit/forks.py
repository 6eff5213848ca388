"""What a process that was forked does not share with the other: units in hand, and locks, which a
thread that is not in the child may have held.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Lazy(Generic[T]):
    """Attribute that is made at its first use, and again after `forget`: a lock.

    gevent replaces the locks of `threading` when a worker begins. A lock that was made before,
    while the application was loaded, would be of the other kind.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, one: object, owner: type) -> T:
        # From then on the attribute is found without this. Another thread may have been faster.
        made: T = one.__dict__.setdefault(self._name, self._make())
        return made


# By names that are looked up when a lock is made.
def lock() -> Lazy[Any]:
    return Lazy(lambda: threading.Lock())  # noqa: PLW0108


def condition() -> Lazy[Any]:
    return Lazy(lambda: threading.Condition())  # noqa: PLW0108


def forget(one: object, name: str) -> None:
    """Has an attribute made again at its next use."""
    one.__dict__.pop(name, None)


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
