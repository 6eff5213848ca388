"""Servers with the module under a clock that tests set, and gateways before them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from origin import Origin
from redis import Redis
from running import BINARY, Gateway

from support import binaries
from support.binaries import Binary
from support.clock import Clock, build_library
from support.server import Server


def pytest_configure() -> None:
    if not BINARY.is_file():
        raise pytest.UsageError(f"{BINARY} is missing: run `make gateway-lint`")


@pytest.fixture(scope="session")
def binary() -> Binary:
    return binaries.chosen()


@pytest.fixture(scope="session")
def shared_clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    directory = tmp_path_factory.mktemp("clock")
    return Clock(build_library(directory), directory / "clock")


@pytest.fixture
def clock(shared_clock: Clock) -> Clock:
    shared_clock.reset()
    return shared_clock


@pytest.fixture(scope="session")
def shared_server(binary: Binary, shared_clock: Clock) -> Iterator[Server]:
    with Server(binary, clock=shared_clock) as server:
        yield server


@pytest.fixture
def server(shared_server: Server, clock: Clock) -> Iterator[Server]:  # noqa: ARG001  it is set
    with shared_server.client(decode_responses=True) as client:
        client.flushall()
        for name, *_ in client.execute_command("RL.POLICYLIST"):
            client.execute_command("RL.POLICYDEL", name)
    with shared_server.closing_clients():
        yield shared_server


@pytest.fixture
def redis(server: Server) -> Redis:
    return server.client(decode_responses=True)


@pytest.fixture
def start() -> Iterator[Callable[..., Gateway]]:
    """Starts a gateway that ends with the test."""
    with ExitStack() as gateways:
        yield lambda *words, **more: gateways.enter_context(Gateway(*words, **more))


@pytest.fixture
def gateway(server: Server, start: Callable[..., Gateway]) -> Gateway:
    return start(server.port)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


@pytest.fixture
def policy(redis: Redis) -> Callable[..., int]:
    """Sets a policy: its name, and the words of its limits."""
    return lambda name, words: redis.execute_command("RL.POLICYSET", name, *words.split())


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as origin:
        thread = threading.Thread(target=origin.serve_forever, args=(0.01,))
        thread.start()
        yield origin
        origin.release.set()
        origin.shutdown()
        thread.join()
