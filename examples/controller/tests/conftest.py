"""Redis with the module, whose clock stands still until a test moves it."""

from collections.abc import Iterator

import pytest
from redis import Redis
from simulation import POLICY, server_with_clock

from support.clock import Clock
from support.server import Server


@pytest.fixture(scope="session")
def server_and_clock() -> Iterator[tuple[Server, Clock]]:
    with server_with_clock() as server_and_clock:
        yield server_and_clock


@pytest.fixture
def clock(server_and_clock: tuple[Server, Clock]) -> Clock:
    clock = server_and_clock[1]
    clock.reset()
    return clock


@pytest.fixture
def redis(server_and_clock: tuple[Server, Clock]) -> Iterator[Redis]:
    with server_and_clock[0].client() as client:
        client.flushall()
        client.execute_command("RL.POLICYDEL", POLICY)
        yield client
