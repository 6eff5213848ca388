"""Transports from a limiter to the in-memory server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from redis_ratelimit.call import Call
from redis_ratelimit.memory.server import Memory
from redis_ratelimit.resp import RefusedError

# Seconds between attempts of a call that waits for a lease.
_POLL = 0.005


class _UnsendableError(Exception):
    """Placeholder that is never raised, as nothing is sent."""


# Substitute for the exceptions of a client library.
EXCEPTIONS = SimpleNamespace(
    ResponseError=RefusedError, DataError=_UnsendableError, ConnectionError=ConnectionError
)


class _BaseTransport:
    address = "memory"

    def __init__(self, memory: Memory, *, clock: Callable[[], float], **_: Any) -> None:
        self._memory = memory
        self._clock = clock
        # Sleeping advances a clock that tests control.
        self._advance: Callable[[float], None] | None = getattr(clock, "advance", None)

    def node_of(self, call: Call[Any]) -> str:
        del call
        return ""

    def watch(self, call: Call[Any], on_reply: Callable[[Any], None]) -> None:
        """Does nothing, as a limiter in memory remembers no denials."""

    def _has_time(self, deadline: float) -> Callable[[], bool]:
        """Returns a function that returns `True` until `deadline` by the limiter's clock, and at
        most for the same real time, as a manual clock may stand still.
        """
        real_deadline = time.monotonic() + deadline - self._clock()
        return lambda: self._clock() < deadline and time.monotonic() < real_deadline


class Transport(_BaseTransport):
    is_async = False

    @staticmethod
    def current_loop() -> None:
        """Returns None, as all threads share the memory."""

    def send(self, call: Call[Any]) -> Any:
        return self._memory.call(call.words)

    def wait(self, call: Call[Any], deadline: float) -> Any:
        has_time = self._has_time(deadline)
        self._memory.join(call.words)
        try:
            while True:
                reply = self.send(call)
                if call.is_over(reply) or not has_time() or not self._memory.is_waiting(call.words):
                    return reply
                time.sleep(_POLL)
        finally:
            self._memory.leave(call.words)

    def sleep(self, seconds: float) -> None:
        if self._advance is None:
            time.sleep(seconds)
        else:
            self._advance(seconds)

    def close(self) -> None:
        """Does nothing: the memory stays usable."""


class AsyncTransport(_BaseTransport):
    is_async = True
    current_loop = staticmethod(asyncio.get_running_loop)

    async def send(self, call: Call[Any]) -> Any:
        return self._memory.call(call.words)

    async def wait(self, call: Call[Any], deadline: float) -> Any:
        has_time = self._has_time(deadline)
        self._memory.join(call.words)
        try:
            while True:
                reply = await self.send(call)
                if call.is_over(reply) or not has_time() or not self._memory.is_waiting(call.words):
                    return reply
                await asyncio.sleep(_POLL)
        finally:
            self._memory.leave(call.words)

    async def sleep(self, seconds: float) -> None:
        if self._advance is None:
            await asyncio.sleep(seconds)
        else:
            self._advance(seconds)
            # Let other tasks run.
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Does nothing: the memory stays usable."""
