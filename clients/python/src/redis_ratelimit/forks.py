"""State that a forked child must not share with its parent: unspent units, connections, and locks,
which a thread of the parent may have held.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Lazy(Generic[T]):
    """Attribute, such as a lock, that is created at its first use, and again after `forget`.

    gevent replaces the locks of `threading` when a worker starts. A lock created earlier, while the
    application was loaded, would still be a lock of threads.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> T:
        # Later lookups find the instance attribute. Another thread may have created it meanwhile.
        value: T = instance.__dict__.setdefault(self._name, self._make())
        return value


# The names are looked up when a lock is created, as gevent replaces them.
def lock() -> Lazy[Any]:
    return Lazy(lambda: threading.Lock())  # noqa: PLW0108


def condition() -> Lazy[Any]:
    return Lazy(lambda: threading.Condition())  # noqa: PLW0108


def forget(instance: object, name: str) -> None:
    """Discards an attribute, which is created again at its next use."""
    instance.__dict__.pop(name, None)


class Forked(Protocol):
    def reset_after_fork(self) -> None:
        """Resets the object in the child, before other code runs there."""


_REGISTERED: WeakSet[Forked] = WeakSet()


def register(instance: Forked) -> None:
    """Registers an object, whose `reset_after_fork` is called in the child of every later fork."""
    _REGISTERED.add(instance)


def _in_child() -> None:
    for one in list(_REGISTERED):
        one.reset_after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_child)
