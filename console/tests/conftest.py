"""Servers with the module, under a clock that tests set, and consoles connected to them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from console_process import BINARY, ConsoleProcess

pytest_plugins = ["support.fixtures", "support.program_fixtures"]


def pytest_configure() -> None:
    if not BINARY.is_file():
        raise pytest.UsageError(f"{BINARY} is missing: run `make gateway-debug`")


@pytest.fixture
def start() -> Iterator[Callable[..., ConsoleProcess]]:
    """Starts consoles, which end with the test."""
    with ExitStack() as consoles:
        yield lambda *args, **kwargs: consoles.enter_context(ConsoleProcess(*args, **kwargs))
