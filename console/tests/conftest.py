"""Servers with the module, under a clock that tests set, and consoles before them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from running import BINARY, ConsoleProcess

pytest_plugins = ["support.fixtures", "support.program_fixtures"]


def pytest_configure() -> None:
    if not BINARY.is_file():
        raise pytest.UsageError(f"{BINARY} is missing: run `make gateway-debug`")


@pytest.fixture
def start() -> Iterator[Callable[..., ConsoleProcess]]:
    """Start consoles that end with the test."""
    with ExitStack() as consoles:
        yield lambda *words, **more: consoles.enter_context(ConsoleProcess(*words, **more))
