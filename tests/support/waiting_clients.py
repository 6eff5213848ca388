"""Clients with blocking calls, shared by the tests of waiting."""

from collections.abc import Callable

from support.server import Server
from support.waiting import GRANTED, Caller, Queue

Start = Callable[..., Server]


def drain(queue: Queue, waiters: dict[str, Caller], holder: str = "a") -> None:
    """Releases the lease of the holder and of each waiter after it. Asserts that every waiter gets
    the lease, and that no key remains.
    """
    for name, waiter in waiters.items():
        assert queue.release(holder) == 1
        assert waiter.reply() == GRANTED
        holder = name
    assert queue.release(holder) == 1
    queue.settle()
    assert queue.is_empty
    assert not queue.client.exists("k")
