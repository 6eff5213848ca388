"""Fixtures of a console that requires tokens."""

from collections.abc import Callable

import pytest
from api_client import TOKENS, Console
from console_process import ConsoleProcess

from support.server import Server

Start = Callable[..., ConsoleProcess]


@pytest.fixture
def process(server: Server, start: Start) -> ConsoleProcess:
    return start(server.port, environment=TOKENS)


@pytest.fixture
def console(process: ConsoleProcess) -> Console:
    return Console(process)
