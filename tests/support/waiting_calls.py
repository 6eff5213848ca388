"""Calls shared by the tests of waiting: a pool, and a large request that waits."""

from collections.abc import Callable

from support.server import Server
from support.waiting import Queue

Start = Callable[..., Server]


def block_big_request(queue: Queue) -> None:
    """Holds 5 of 8 units as "a", and blocks a request for 6, while 3 are free."""
    queue.acquire("a", "COST", 5, limit=8)
    queue.join("big", "COST", 6, limit=8)


POOL = ("RL.POLICYSET", "pool", "CONCURRENCY", 8, "60s")
