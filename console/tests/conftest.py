"""Servers with the module under a clock that tests set, and consoles before them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from redis import Redis
from running import BINARY, ConsoleProcess

from support.server import Server

pytest_plugins = ["support.fixtures"]


def pytest_configure() -> None:
    if not BINARY.is_file():
        raise pytest.UsageError(f"{BINARY} is missing: run `make gateway-lint`")


@pytest.fixture
def redis(server: Server) -> Redis:
    return server.client(decode_responses=True)


@pytest.fixture
def start() -> Iterator[Callable[..., ConsoleProcess]]:
    """Starts a console that ends with the test."""
    with ExitStack() as consoles:
        yield lambda *words, **more: consoles.enter_context(ConsoleProcess(*words, **more))


@pytest.fixture
def policy(redis: Redis) -> Callable[..., int]:
    """Sets a policy: its name, and the words of its limits."""
    return lambda name, words: redis.execute_command("RL.POLICYSET", name, *words.split())
