"""How the calls of a limiter reach the memory of its own process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from redis_ratelimit.call import Call
from redis_ratelimit.memory.server import Memory
from redis_ratelimit.resp import RefusedError

# Seconds between one look of a call that waits for a lease and the next.
_LOOK = 0.005


class _UnsendableError(Exception):
    """Never raised: nothing is sent."""


# In place of the exceptions of a client library.
EXCEPTIONS = SimpleNamespace(
    ResponseError=RefusedError, DataError=_UnsendableError, ConnectionError=ConnectionError
)


class _Route:
    place = "memory"

    def __init__(self, memory: Memory, *, clock: Callable[[], float], **_: Any) -> None:
        self._memory = memory
        self._clock = clock
        # Pauses move a clock that tests set.
        self._advance: Callable[[float], None] | None = getattr(clock, "advance", None)

    def node_of(self, call: Call[Any]) -> str:
        del call
        return ""

    def watch(self, call: Call[Any], told: Callable[[Any], None]) -> None:
        """Does nothing: no denial is remembered."""

    def _has_time(self, until: float) -> Callable[[], bool]:
        """Returns whether `until` is yet to come. A clock that stands still is not waited for."""
        patience = time.monotonic() + until - self._clock()
        return lambda: self._clock() < until and time.monotonic() < patience


class Transport(_Route):
    is_async = False

    @staticmethod
    def where() -> None:
        """All threads share the memory."""

    def ask(self, call: Call[Any]) -> Any:
        return self._memory.call(call.words)

    def wait(self, call: Call[Any], until: float) -> Any:
        has_time = self._has_time(until)
        self._memory.join(call.words)
        try:
            while True:
                reply = self.ask(call)
                if call.is_over(reply) or not has_time() or not self._memory.waits(call.words):
                    return reply
                time.sleep(_LOOK)
        finally:
            self._memory.leave(call.words)

    def sleep(self, seconds: float) -> None:
        if self._advance is None:
            time.sleep(seconds)
        else:
            self._advance(seconds)

    def close(self) -> None:
        """Keeps the memory."""


class AsyncTransport(_Route):
    is_async = True
    where = staticmethod(asyncio.get_running_loop)

    async def ask(self, call: Call[Any]) -> Any:
        return self._memory.call(call.words)

    async def wait(self, call: Call[Any], until: float) -> Any:
        has_time = self._has_time(until)
        self._memory.join(call.words)
        try:
            while True:
                reply = await self.ask(call)
                if call.is_over(reply) or not has_time() or not self._memory.waits(call.words):
                    return reply
                await asyncio.sleep(_LOOK)
        finally:
            self._memory.leave(call.words)

    async def sleep(self, seconds: float) -> None:
        if self._advance is None:
            await asyncio.sleep(seconds)
        else:
            self._advance(seconds)
            # Others come first.
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Keeps the memory."""
