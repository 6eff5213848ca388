"""Limiters for threads and for asyncio behind one interface, so that tests run on both."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from redis_ratelimit import Limiter, aio


class Now:
    """Clock of a limiter, which stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class InLoop:
    """Limiter for asyncio with blocking calls, which it awaits in an event loop of its own."""

    def __init__(self, awaited: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._awaited = awaited
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._awaited, name)
        if name == "policies":
            return InLoop(found, self._loop)
        if not callable(found):
            return found

        def called(*args: Any, **options: Any) -> Any:
            made = found(*args, **options)
            if inspect.isawaitable(made):
                return self._loop.run_until_complete(made)
            return InLoop(made, self._loop) if name in {"units", "lease", "limit"} else made

        return called

    def __enter__(self) -> "InLoop":
        self._loop.run_until_complete(self._awaited.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run_until_complete(self._awaited.__aexit__(*error))


Make = Callable[..., Any]


def limiters_of(kind: str, url: str) -> Iterator[Make]:
    """Makes limiters: `make(on_outage="closed")` with the arguments of `from_url`. They are closed
    at the end. The default timeouts are long, as the machine may be busy.
    """
    made: list[Any] = []
    loop = asyncio.new_event_loop()

    def make(at: str = url, **options: Any) -> Any:
        options = {"timeout": 10.0, **options}
        if kind == "sync":
            made.append(Limiter.from_url(at, **options))
        else:
            made.append(InLoop(aio.Limiter.from_url(at, **options), loop))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()
    loop.run_until_complete(_cancel_tasks())
    loop.close()


async def _cancel_tasks() -> None:
    """Cancels tasks such as the request of a batch, as `asyncio.run` does."""
    pending = asyncio.all_tasks() - {asyncio.current_task()}
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
