"""Servers with the module, under a clock that tests set, and gateways that use the servers."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from origin import Origin
from running import BINARY, Gateway

from support.server import Server

pytest_plugins = ["support.fixtures", "support.program_fixtures"]


def pytest_configure() -> None:
    if not BINARY.is_file():
        raise pytest.UsageError(f"{BINARY} is missing: run `make gateway-debug`")


@pytest.fixture
def start() -> Iterator[Callable[..., Gateway]]:
    """Start gateways that end with the test."""
    with ExitStack() as gateways:
        yield lambda *words, **keywords: gateways.enter_context(Gateway(*words, **keywords))


@pytest.fixture
def gateway(server: Server, start: Callable[..., Gateway]) -> Gateway:
    return start(server.port)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as origin:
        thread = threading.Thread(target=origin.serve_forever, args=(0.01,))
        thread.start()
        yield origin
        origin.release.set()
        origin.shutdown()
        thread.join()
