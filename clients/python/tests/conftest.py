"""Fixtures: a single server with the module, and a cluster."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from support.binaries import Binary
from support.clock import Clock, build_library
from support.cluster import Cluster
from support.server import MODULE, Server

from limiters import Make, limiters_of

pytest_plugins = ["storages", "support.fixtures"]


def pytest_configure() -> None:
    if not MODULE.is_file():
        raise pytest.UsageError(
            f"{MODULE} is missing: run `make build` in the repository, or set RATELIMIT_MODULE"
        )


@pytest.fixture
def url(server: Server) -> str:
    return f"redis://127.0.0.1:{server.port}"


@pytest.fixture
def admin(server: Server) -> Iterator[redis.Redis]:
    """Client for inspecting the server, apart from the tested limiter."""
    with server.client(decode_responses=True) as client:
        yield client


@pytest.fixture(scope="session")
def shared_cluster(binary: Binary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster-clock")
    # The clock runs, as the nodes' heartbeats depend on it.
    running_clock = Clock(build_library(directory), directory / "clock")
    running_clock.run()
    with Cluster(binary, running_clock) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Empty and healthy cluster of three primaries with a replica each."""
    shared_cluster.empty()
    return shared_cluster


@pytest.fixture(params=["sync", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    """API of the limiter: threads or asyncio."""
    return str(request.param)


@pytest.fixture
def make(kind: str, url: str) -> Iterator[Make]:
    yield from limiters_of(kind, url)


@pytest.fixture
def limiter(make: Make) -> Any:
    return make()
