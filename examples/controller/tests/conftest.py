"""Redis with the module, whose clock stands still until a test moves it."""

from collections.abc import Iterator

import pytest
from redis import Redis
from simulation import POLICY, server_with_clock

from support.clock import Clock
from support.server import Server


@pytest.fixture(scope="session")
def served() -> Iterator[tuple[Server, Clock]]:
    with server_with_clock() as served:
        yield served


@pytest.fixture
def clock(served: tuple[Server, Clock]) -> Clock:
    clock = served[1]
    clock.reset()
    return clock


@pytest.fixture
def redis(served: tuple[Server, Clock]) -> Iterator[Redis]:
    with served[0].client() as client:
        client.flushall()
        client.execute_command("RL.POLICYDEL", POLICY)
        yield client
