"""A real Redis with the module, a real nginx before a real application, and HTTP between."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway import Gateways
from redis import Redis

from support import binaries
from support.binaries import Binary
from support.clock import Clock, build_library
from support.server import Server


@pytest.fixture(scope="session")
def binary() -> Binary:
    return binaries.chosen()


@pytest.fixture(scope="session")
def shared_clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    directory = tmp_path_factory.mktemp("clock")
    return Clock(build_library(directory), directory / "clock")


@pytest.fixture(scope="session")
def shared_server(binary: Binary, shared_clock: Clock) -> Iterator[Server]:
    with Server(binary, clock=shared_clock) as server:
        yield server


@pytest.fixture
def clock(shared_clock: Clock) -> Clock:
    """The server's. It stands still, so that nothing recovers unless a test says so."""
    shared_clock.reset()
    return shared_clock


@pytest.fixture
def server(shared_server: Server, clock: Clock) -> Iterator[Server]:
    """Running, without keys and policies; a test may stop it."""
    del clock
    if not shared_server.is_running:
        shared_server.start()
    with shared_server.client() as client:
        client.flushall()
        for name, *_ in client.execute_command("RL.POLICYLIST"):
            client.execute_command("RL.POLICYDEL", name)
    with shared_server.closing_clients():
        yield shared_server


@pytest.fixture
def redis(server: Server) -> Redis:
    return server.client(decode_responses=True)


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[Gateways]:
    with Gateways(tmp_path) as gateways:
        yield gateways
