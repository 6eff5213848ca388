"""Redis with the module."""

from collections.abc import Iterator

import program
import pytest
from redis import Redis

from support import binaries
from support.server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    """Starts a server for each test, as servers remember the versions of deleted policies."""
    with Server(binaries.chosen(), module_args="policies yes") as server:
        yield server


@pytest.fixture
def redis(server: Server) -> Iterator[Redis]:
    with server.client(decode_responses=True) as client:
        yield client


@pytest.fixture
def run(server: Server) -> program.Run:
    return program.for_server(server)
