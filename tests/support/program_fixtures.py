"""Fixtures that the tests of the gateway and the console share."""

from collections.abc import Callable

import pytest
from redis import Redis

from support.server import Server


@pytest.fixture
def redis(server: Server) -> Redis:
    return server.client(decode_responses=True)


@pytest.fixture
def policy(redis: Redis) -> Callable[..., int]:
    """Returns a function that sets a policy by its name and the words of its limits."""
    return lambda name, words: redis.execute_command("RL.POLICYSET", name, *words.split())
