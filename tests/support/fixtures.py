"""Fixtures of all test suites: a server with the module, and the clock that the server reads.

The conftest.py of a suite names this file in `pytest_plugins`, and may override its fixtures.
"""

import fcntl
import os
from collections.abc import Iterator

import pytest

from support import binaries
from support.binaries import Binary
from support.clock import Clock, build_library
from support.server import Server


@pytest.fixture(scope="session")
def binary() -> Binary:
    return binaries.chosen()


@pytest.fixture(scope="session")
def shared_clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    """Clock of all servers. Its library is compiled once in a run, by the first worker that needs
    it.
    """
    run = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent
    library = run / "clock.so"
    with (run / "clock.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            build_library(run)
    return Clock(library, tmp_path_factory.mktemp("clock") / "clock")


@pytest.fixture
def clock(shared_clock: Clock) -> Clock:
    """Wall clock of the server, which stands still until a test moves it."""
    shared_clock.reset()
    return shared_clock


@pytest.fixture(scope="session")
def shared_server(binary: Binary, shared_clock: Clock) -> Iterator[Server]:
    with Server(binary, clock=shared_clock) as server:
        yield server


@pytest.fixture
def server(shared_server: Server, clock: Clock) -> Iterator[Server]:  # noqa: ARG001  resets the clock
    """Empty and running server without policies; a test may stop it."""
    shared_server.empty()
    with shared_server.closing_clients():
        yield shared_server
