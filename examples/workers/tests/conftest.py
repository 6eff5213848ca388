"""Redis with the module, and worker processes, which a test may kill."""

from collections.abc import Iterator

import pytest
from without_module import without_module
from worker_pool import WorkerPool

from support.binaries import Binary
from support.clock import Clock
from support.server import Server

pytest_plugins = ["support.fixtures"]


@pytest.fixture
def clock(shared_clock: Clock) -> Clock:
    """Clock of the server. It follows the real time until a test sets it."""
    shared_clock.run()
    return shared_clock


@pytest.fixture(scope="session")
def shared_server(binary: Binary, shared_clock: Clock) -> Iterator[Server]:
    shared_clock.run()
    with Server(binary, clock=shared_clock) as server:
        yield server


@pytest.fixture
def server(shared_server: Server, clock: Clock) -> Iterator[Server]:
    """Empty running server. A test may stop it."""
    assert clock
    shared_server.empty()
    with shared_server.closing_clients():
        yield shared_server


@pytest.fixture
def plain_server(binary: Binary) -> Iterator[Server]:
    with without_module(Server(binary)) as server:
        yield server


@pytest.fixture
def pool(server: Server) -> Iterator[WorkerPool]:
    """Starts workers, which are killed after the test."""
    pool = WorkerPool(server)
    yield pool
    for worker in pool.workers:
        worker.kill()
    for worker in pool.workers:
        worker.wait()
