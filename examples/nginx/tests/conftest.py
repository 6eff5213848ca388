"""Redis with the module, and nginx before an application."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway import Gateways
from redis import Redis

from support.server import Server

pytest_plugins = ["support.fixtures"]


@pytest.fixture
def redis(server: Server) -> Redis:
    return server.client(decode_responses=True)


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[Gateways]:
    with Gateways(tmp_path) as gateways:
        yield gateways
