"""Storages and strategies of limits, with threads and with asyncio."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import limits
import limits.aio.strategies
import limits.strategies
import pytest
from limits.storage import storage_from_string
from support.server import Server

STRATEGIES = list(limits.strategies.STRATEGIES)
TEN = limits.parse("10/minute")
# Timeouts in seconds, long enough for a busy machine.
LONG_TIMEOUTS = {"socket_timeout": 30, "socket_connect_timeout": 30, "timeout": 30}
# Result of `time.time()` in the tests. The server has another clock.
NOW = 5_000_000.0


class Blocking:
    """Object of limits.aio with blocking methods, like those of limits."""

    def __init__(self, wrapped: Any, runner: asyncio.Runner) -> None:
        self._wrapped, self._runner = wrapped, runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._wrapped, name)

        async def called(*args: Any, **options: Any) -> Any:
            return await method(*args, **options)

        return lambda *args, **options: self._runner.run(called(*args, **options))


class StorageFactory:
    """Factory of storages and strategies, for threads or asyncio."""

    def __init__(self, kind: str, runner: asyncio.Runner) -> None:
        self.is_async = kind == "asyncio"
        self._runner = runner
        self._opened: list[Any] = []

    def storage(self, uri: str, **options: Any) -> Any:
        if uri.startswith("ratelimit://") and "connection_pool" not in options:
            options = LONG_TIMEOUTS | options
        if uri.startswith("ratelimit"):
            # Other tests load Flask-Limiter, which changes the default.
            options = {"whole_seconds": False, **options}
        storage = storage_from_string(f"async+{uri}" if self.is_async else uri, **options)
        self._opened.append(storage)
        return Blocking(storage, self._runner) if self.is_async else storage

    def strategy(self, name: str, storage: Any) -> Any:
        if not self.is_async:
            return limits.strategies.STRATEGIES[name](storage)
        return Blocking(limits.aio.strategies.STRATEGIES[name](storage._wrapped), self._runner)

    def close(self) -> None:
        for storage in self._opened:
            if self.is_async:
                self._runner.run(storage.storage.aclose())
            elif "storage" in vars(storage):
                storage.storage.close()


@pytest.fixture(params=["threads", "asyncio"])
def factory(request: pytest.FixtureRequest) -> Iterator[StorageFactory]:
    with asyncio.Runner() as runner:
        factory = StorageFactory(request.param, runner)
        yield factory
        factory.close()


@pytest.fixture
def uri(server: Server) -> str:
    return f"ratelimit://127.0.0.1:{server.port}"


@pytest.fixture
def storage(factory: StorageFactory, uri: str) -> Any:
    return factory.storage(uri)


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest, factory: StorageFactory, storage: Any) -> Any:
    return factory.strategy(request.param, storage)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    """Frozen clock of the caller, so that times are exact to the millisecond."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    return NOW
