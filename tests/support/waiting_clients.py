"""Clients whose calls wait, as several files of tests make them."""

from collections.abc import Callable

from support.server import Server
from support.waiting import GRANTED, Caller, Queue

Start = Callable[..., Server]


def drain(queue: Queue, waiters: dict[str, Caller], holder: str = "a") -> None:
    """Each is served when the one before releases, and the last leaves no key."""
    for name, waiter in waiters.items():
        assert queue.release(holder) == 1
        assert waiter.reply() == GRANTED
        holder = name
    assert queue.release(holder) == 1
    queue.settle()
    assert queue.is_empty
    assert not queue.client.exists("k")
