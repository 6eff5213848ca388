"""A gateway with a console, which asks for tokens."""

from collections.abc import Callable

import pytest
from asking import TOKENS, Console
from running import Gateway

from support.server import Server

Start = Callable[..., Gateway]


@pytest.fixture
def gateway(server: Server, start: Start) -> Gateway:
    return start(server.port, "--timeout", "5s", console=True, environment=TOKENS)


@pytest.fixture
def console(gateway: Gateway) -> Console:
    return Console(gateway)
