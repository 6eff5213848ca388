"""Real servers with the module: one alone, and a cluster."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from support import binaries
from support.binaries import Binary
from support.clock import Clock, build_library
from support.cluster import Cluster
from support.server import MODULE, Server

from kinds import Make, of_kind


def pytest_configure() -> None:
    if not MODULE.is_file():
        raise pytest.UsageError(
            f"{MODULE} is missing: run `make build` in the repository, or set RATELIMIT_MODULE"
        )


@pytest.fixture(scope="session")
def binary() -> Binary:
    return binaries.chosen()


@pytest.fixture(scope="session")
def shared_clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    directory = tmp_path_factory.mktemp("clock")
    return Clock(build_library(directory), directory / "clock")


@pytest.fixture
def clock(shared_clock: Clock) -> Clock:
    """The server's wall clock. It stands still until a test moves it."""
    shared_clock.reset()
    return shared_clock


@pytest.fixture(scope="session")
def shared_server(binary: Binary, shared_clock: Clock) -> Iterator[Server]:
    with Server(binary, clock=shared_clock) as server:
        yield server


@pytest.fixture
def server(shared_server: Server, clock: Clock) -> Iterator[Server]:  # noqa: ARG001  it is reset
    """Empty, with no policies, and running; a test may stop it."""
    if not shared_server.is_running:
        shared_server.start()
    with shared_server.client() as client:
        client.flushall()
        if names := [name for name, *_ in client.execute_command("RL.POLICYLIST")]:
            client.execute_command("RL.POLICYDEL", *names)
    with shared_server.closing_clients():
        yield shared_server


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
