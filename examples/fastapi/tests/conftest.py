"""Redis with the module, and the application in uvicorn."""

from collections.abc import Iterator

import pytest
from serving import Serve
from without_module import without_module

from support.binaries import Binary
from support.clock import Clock, build_library
from support.cluster import Cluster
from support.server import Server

pytest_plugins = ["support.fixtures"]


@pytest.fixture(scope="session")
def shared_server(binary: Binary) -> Iterator[Server]:
    with Server(binary) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """Empty running server. A test may stop it."""
    shared_server.empty()
    with shared_server.closing_clients():
        yield shared_server


@pytest.fixture
def plain_server(binary: Binary) -> Iterator[Server]:
    with without_module(Server(binary)) as server:
        yield server


@pytest.fixture(scope="session")
def cluster(binary: Binary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("clock")
    clock = Clock(build_library(directory), directory / "clock")
    clock.run()
    with Cluster(binary, clock, replicas=False) as cluster:
        yield cluster


@pytest.fixture
def serve(request: pytest.FixtureRequest) -> Iterator[Serve]:
    serve = Serve(lambda: request.getfixturevalue("server"))
    yield serve
    serve.stop()
