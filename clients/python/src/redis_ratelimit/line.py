"""The connection to one server, for asyncio: the calls of all tasks share it, in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from redis_ratelimit.clients import kept_alive, still_connecting
from redis_ratelimit.quantities import Word
from redis_ratelimit.resp import BrokenReplyError, Push, RefusedError, Replies, packed

# In how many steps the time of a call passes.
STEPS = 10


class Patience:
    """Ends what takes too long. Time is counted in steps, and one during which the process was busy
    counts as one, however long it took: replies that arrived meanwhile are read first.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._step = timeout / STEPS
        self._now = 0
        self._watched: deque[tuple[int, asyncio.Future[Any], Callable[[], None]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = 0.0

    def watch(
        self,
        future: asyncio.Future[Any],
        loop: asyncio.AbstractEventLoop,
        over: Callable[[], None],
    ) -> None:
        """`over` is called if the future is not done in time."""
        if self._loop is not loop:
            self._watched.clear()
            self._loop = None
        if self._loop is None:
            self._loop = loop
            self._wait(loop)
        self._watched.append((self._now + STEPS + 1, future, over))

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + self._step
        loop.call_at(self._due, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            return
        if loop.time() < self._due + self._step:  # else what has arrived comes first
            self._now += 1
        watched = self._watched
        while watched and (watched[0][1].done() or watched[0][0] <= self._now):
            _, future, over = watched.popleft()
            if not future.done():
                over()
        if watched:
            self._wait(loop)
        else:
            self._loop = None

    async def within(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What somebody else's client does."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        late = False

        def over() -> None:
            nonlocal late
            late = True
            task.cancel()

        self.watch(task, loop, over)
        try:
            return await task
        except asyncio.CancelledError:
            if late:
                raise TimeoutError(f"no reply within {self._timeout} seconds") from None
            task.cancel()
            raise


class _Wire(asyncio.Protocol):
    """What a line has of one connection."""

    def __init__(self, line: Line, made: Any) -> None:
        self._line = line
        self._made = made
        self._replies = Replies()
        self.transport: asyncio.Transport = made._writer.transport
        self._before = self.transport.get_protocol()
        self.asked: deque[asyncio.Future[Any]] = deque()
        # How often something has arrived.
        self.heard = 0
        self.transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        self.heard += 1
        try:
            for reply in self._replies.of(data):
                if isinstance(reply, Push):
                    self._line.pushed(reply)
                    continue
                future = self.asked.popleft()
                if future.done():  # whoever asked has given up
                    continue
                if isinstance(reply, RefusedError):
                    future.set_exception(reply)
                    if reply.args[0].startswith(("READONLY", "MASTERDOWN")):
                        # Behind a sentinel another server is the primary by now.
                        self._line.lose(self, ConnectionError("the server is no longer the one"))
                else:
                    future.set_result(reply)
        except (BrokenReplyError, IndexError, ValueError) as error:
            self._line.lose(self, ConnectionError(str(error)))

    def connection_lost(self, error: Exception | None) -> None:
        with suppress(Exception):
            self._before.connection_lost(error)
        why = "the server closed the connection" if error is None else str(error)
        self._line.lose(self, ConnectionError(why))

    def close(self) -> Coroutine[Any, Any, None]:
        self.transport.close()
        closing: Coroutine[Any, Any, None] = self._made.disconnect(nowait=True)
        return closing


class Line:
    """`make` makes a connection of redis-py's or valkey-py's. It connects and greets in the
    background, within a time of its own, and is taken over then.

    A connection begins with the calls of `greeting`, and is lost if one is refused. `pushed` gets
    what the server says without being asked, and `lost` why a connection, or the attempt to make
    one, came to its end.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        timeout: float,
        connect_timeout: float,
        *,
        greeting: Sequence[Sequence[Word]] = (),
        pushed: Callable[[Push], None] = lambda _: None,
        lost: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._make = make
        self._greeting = greeting
        self.pushed = pushed
        self._lost = lost
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._patience = Patience(timeout)
        self._forget(None)

    def _forget(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._wire: _Wire | None = None
        self._connecting: asyncio.Task[None] | None = None
        # Until there is a connection.
        self._queue: dict[asyncio.Future[Any], bytes] = {}
        self._unsent: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, words: Sequence[Word]) -> asyncio.Future[Any]:
        """The reply. RefusedError if it is one; an OSError if there is none."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Another loop's connection is of no use in this one.
            if self._loop is not None:
                self._lost(ConnectionError("the connection is of another event loop"))
            self._forget(loop)
        future: asyncio.Future[Any] = loop.create_future()
        command = packed(words)
        if self._wire is None:
            self._queue[future] = command
            if self._connecting is None:
                self._connecting = loop.create_task(self._connect())
            self._patience.watch(future, loop, lambda: self._not_connected(future))
        else:
            self._send(self._wire, command, future)
        return future

    def _send(self, wire: _Wire, command: bytes, future: asyncio.Future[Any]) -> None:
        assert self._loop is not None
        if not self._unsent:
            self._loop.call_soon(self._write)
        self._unsent.append(command)
        wire.asked.append(future)
        heard = wire.heard

        def over() -> None:
            late = TimeoutError(f"no reply within {self._timeout} seconds")
            future.set_exception(late)
            if wire.heard == heard:
                # Nothing at all arrives: another connection may do better.
                self.lose(wire, late)

        self._patience.watch(future, self._loop, over)

    def _write(self) -> None:
        commands, self._unsent = self._unsent, []
        if self._wire is not None:
            self._wire.transport.write(b"".join(commands))

    def _not_connected(self, future: asyncio.Future[Any]) -> None:
        # One that was sent meanwhile has its own time.
        if self._queue.pop(future, None) is not None:
            future.set_exception(TimeoutError(still_connecting(self._make)))

    async def _connect(self) -> None:
        loop = self._loop
        made = None
        try:
            made = self._make()
            await asyncio.wait_for(made.connect(), self._connect_timeout)
        except BaseException as error:
            if made is not None:
                with suppress(Exception):
                    await made.disconnect(nowait=True)
            if self._loop is loop:
                self._connecting = None
                queue, self._queue = self._queue, {}
                why = error
                if isinstance(error, (asyncio.TimeoutError, asyncio.CancelledError)):
                    why = TimeoutError(still_connecting(self._make))
                for future in queue:
                    if not future.done():
                        future.set_exception(why)
                self._lost(ConnectionError(str(why)))
            if not isinstance(error, Exception):
                raise
            return
        self._connecting = None
        self._wire = wire = _Wire(self, made)
        if self._greeting:
            kept_alive(wire.transport.get_extra_info("socket"))
        for words in self._greeting:
            greeted = asyncio.get_running_loop().create_future()
            greeted.add_done_callback(partial(self._greeted, wire))
            self._send(wire, packed(words), greeted)
        queue, self._queue = self._queue, {}
        for future, command in queue.items():
            if not future.done():
                # Connecting took its time; the call's begins now.
                self._send(wire, command, future)

    def _greeted(self, wire: _Wire, greeted: asyncio.Future[Any]) -> None:
        error = None if greeted.cancelled() else greeted.exception()
        if isinstance(error, Exception):
            self.lose(wire, error)

    def lose(self, wire: _Wire, error: Exception) -> None:
        """All that wait for a reply on this connection have lost it."""
        if self._wire is wire:
            self._wire = None
            self._unsent = []
            self._close(wire)
            self._lost(error)
        asked, wire.asked = wire.asked, deque()
        for future in asked:
            if not future.done():
                future.set_exception(error)

    def _close(self, wire: _Wire) -> None:
        assert self._loop is not None
        task = self._loop.create_task(wire.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            return
        if self._connecting is not None:
            self._connecting.cancel()
            with suppress(asyncio.CancelledError):
                await self._connecting
        if self._wire is not None:
            self.lose(self._wire, ConnectionError("the limiter was closed"))
        if self._tasks:
            await asyncio.wait(self._tasks)
