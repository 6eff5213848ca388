"""Real servers with the module: one alone, and a cluster."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from support.binaries import Binary
from support.clock import Clock, build_library
from support.cluster import Cluster
from support.server import MODULE, Server

from kinds import Make, of_kind

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
    """Beside whatever is tested: to look at the server with."""
    with server.client(decode_responses=True) as client:
        yield client


@pytest.fixture(scope="session")
def shared_cluster(binary: Binary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster-clock")
    # Nodes ask each other for signs of life by it, so it runs.
    running = Clock(build_library(directory), directory / "clock")
    running.run()
    with Cluster(binary, running) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Three primaries and a replica of each, empty, and well."""
    shared_cluster.empty()
    return shared_cluster


@pytest.fixture(params=["sync", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of a limiter: both do the same."""
    return str(request.param)


@pytest.fixture
def make(kind: str, url: str) -> Iterator[Make]:
    yield from of_kind(kind, url)


@pytest.fixture
def limiter(make: Make) -> Any:
    return make()
