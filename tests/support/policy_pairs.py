"""A primary and its replica that have policies."""

from collections.abc import Callable

from support.policies import shared_state
from support.server import Server

Start = Callable[..., Server]


def assert_same_policies(primary: Server, *replicas: Server) -> None:
    for replica in replicas:
        replica.wait_for_sync()
    with primary.client() as client:
        expected = shared_state(client)
    for replica in replicas:
        with replica.client() as client:
            assert shared_state(client) == expected
