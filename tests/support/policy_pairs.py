"""A primary and its replica that have policies."""

from collections.abc import Callable

from redis import Redis

from support.policies import (
    known,
)
from support.server import Server

Start = Callable[..., Server]


def syncs(primary: Redis) -> tuple[int, int]:
    """How many resyncs were full, and how many partial."""
    stats = primary.info("stats")
    return stats["sync_full"], stats["sync_partial_ok"]


def assert_the_same(primary: Server, *replicas: Server) -> None:
    for replica in replicas:
        replica.wait_for_sync()
    with primary.client() as client:
        expected = known(client)
    for replica in replicas:
        with replica.client() as client:
            assert known(client) == expected
