"""A primary and its replica that have policies."""

from collections.abc import Callable

from support.policies import (
    known,
)
from support.server import Server

Start = Callable[..., Server]


def assert_the_same(primary: Server, *replicas: Server) -> None:
    for replica in replicas:
        replica.wait_for_sync()
    with primary.client() as client:
        expected = known(client)
    for replica in replicas:
        with replica.client() as client:
            assert known(client) == expected
