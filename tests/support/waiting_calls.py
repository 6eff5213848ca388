"""What several files of tests about waiting share: the pool, and a big claim that waits."""

from collections.abc import Callable

from support.server import Server
from support.waiting import Queue

Start = Callable[..., Server]


def big_one_waits(queue: Queue) -> None:
    """Of 8 units "a" holds 5; who waits is to have 6, and 3 are free."""
    queue.acquire("a", "COST", 5, limit=8)
    queue.joins("big", "COST", 6, limit=8)


POOL = ("RL.POLICYSET", "pool", "CONCURRENCY", 8, "60s")
