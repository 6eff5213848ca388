"""Limiters for threads and for asyncio behind one interface, so that tests run on both."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from redis_ratelimit import Limiter, aio


class FrozenClock:
    """Clock of a limiter, which stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class BlockingLimiter:
    """Limiter for asyncio with blocking calls, which it awaits in an event loop of its own."""

    def __init__(self, wrapped: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._wrapped = wrapped
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._wrapped, name)
        if name == "policies":
            return BlockingLimiter(attribute, self._loop)
        if not callable(attribute):
            return attribute

        def blocking_call(*args: Any, **options: Any) -> Any:
            result = attribute(*args, **options)
            if inspect.isawaitable(result):
                return self._loop.run_until_complete(result)
            is_wrapped = name in {"units", "lease", "limit"}
            return BlockingLimiter(result, self._loop) if is_wrapped else result

        return blocking_call

    def __enter__(self) -> "BlockingLimiter":
        self._loop.run_until_complete(self._wrapped.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run_until_complete(self._wrapped.__aexit__(*error))


Make = Callable[..., Any]


def limiters_of(kind: str, url: str) -> Iterator[Make]:
    """Yields a function that creates limiters from the arguments of `from_url`, such as
    `make(on_outage="closed")`. The limiters are closed at the end. Their default timeout is long,
    as the machine may be busy.
    """
    limiters: list[Any] = []
    loop = asyncio.new_event_loop()

    def make(at: str = url, **options: Any) -> Any:
        options = {"timeout": 10.0, **options}
        if kind == "sync":
            limiters.append(Limiter.from_url(at, **options))
        else:
            limiters.append(BlockingLimiter(aio.Limiter.from_url(at, **options), loop))
        return limiters[-1]

    yield make
    for limiter in limiters:
        limiter.close()
    loop.run_until_complete(_cancel_tasks())
    loop.close()


async def _cancel_tasks() -> None:
    """Cancels tasks such as the request of a batch, as `asyncio.run` does."""
    pending = asyncio.all_tasks() - {asyncio.current_task()}
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
