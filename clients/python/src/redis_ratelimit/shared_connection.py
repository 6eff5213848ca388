"""Pipelined connection to one server for asyncio, shared by the calls of all tasks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from redis_ratelimit.clients import enable_keepalive, still_connecting_message
from redis_ratelimit.quantities import Word
from redis_ratelimit.resp import BrokenReplyError, Push, RefusedError, Replies, encode_command

# Number of steps into which a timeout is divided.
TIMEOUT_STEPS = 10


class Timeouts:
    """Timeouts of calls, counted in steps. A step that ends late, because the process was
    busy, does not count, so that replies that arrived meanwhile are read first.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._step = timeout / TIMEOUT_STEPS
        # Number of steps that have passed.
        self._steps = 0
        # Step of the timeout, future and callback of each call, in the order of the timeouts.
        self._watched: deque[tuple[int, asyncio.Future[Any], Callable[[], None]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next_tick = 0.0

    def watch(
        self,
        future: asyncio.Future[Any],
        loop: asyncio.AbstractEventLoop,
        on_timeout: Callable[[], None],
    ) -> None:
        """Calls `on_timeout` if the future is not done in time."""
        if self._loop is not loop:
            self._watched.clear()
            self._loop = None
        if self._loop is None:
            self._loop = loop
            self._schedule_tick(loop)
        self._watched.append((self._steps + TIMEOUT_STEPS + 1, future, on_timeout))

    def _schedule_tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next_tick = loop.time() + self._step
        loop.call_at(self._next_tick, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            return
        is_in_time = loop.time() < self._next_tick + self._step
        if is_in_time:
            self._steps += 1
        watched = self._watched
        while watched and (watched[0][1].done() or watched[0][0] <= self._steps):
            _, future, on_timeout = watched.popleft()
            if not future.done():
                on_timeout()
        if watched:
            self._schedule_tick(loop)
        else:
            self._loop = None

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Awaits a coroutine of a client library. Raises TimeoutError if it takes too long."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        timed_out = False

        def on_timeout() -> None:
            nonlocal timed_out
            timed_out = True
            task.cancel()

        self.watch(task, loop, on_timeout)
        try:
            return await task
        except asyncio.CancelledError:
            if timed_out:
                raise TimeoutError(f"no reply within {self._timeout} seconds") from None
            task.cancel()
            raise


class _Connection(asyncio.Protocol):
    """Protocol of one established connection."""

    def __init__(self, owner: SharedConnection, client_connection: Any) -> None:
        self._owner = owner
        self._client_connection = client_connection
        self._replies = Replies()
        self.transport: asyncio.Transport = client_connection._writer.transport
        self._former_protocol = self.transport.get_protocol()
        self.in_flight: deque[asyncio.Future[Any]] = deque()
        # Number of chunks received.
        self.chunks = 0
        self.transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        self.chunks += 1
        try:
            for reply in self._replies.feed(data):
                if isinstance(reply, Push):
                    self._owner.on_push(reply)
                    continue
                future = self.in_flight.popleft()
                if future.done():  # the caller has given up
                    continue
                if isinstance(reply, RefusedError):
                    future.set_exception(reply)
                    if reply.args[0].startswith(("READONLY", "MASTERDOWN")):
                        # With Sentinel, another server is the primary by now.
                        self._owner.drop(
                            self, ConnectionError("the server is no longer the primary")
                        )
                else:
                    future.set_result(reply)
        except (BrokenReplyError, IndexError, ValueError) as error:
            self._owner.drop(self, ConnectionError(str(error)))

    def connection_lost(self, error: Exception | None) -> None:
        with suppress(Exception):
            self._former_protocol.connection_lost(error)
        why = "the server closed the connection" if error is None else str(error)
        self._owner.drop(self, ConnectionError(why))

    def close(self) -> Coroutine[Any, Any, None]:
        self.transport.close()
        closing: Coroutine[Any, Any, None] = self._client_connection.disconnect(nowait=True)
        return closing


class SharedConnection:
    """Pipelined connection. After it is lost, the next command opens a new one.

    `make` creates a connection of redis-py or valkey-py. That connects and completes its handshake
    in the background, within `connect_timeout`. Then this object uses its transport directly. The
    first commands are those of `greeting`; if one is rejected, the connection is dropped. `on_push`
    is called with push messages of the server, and `on_lost` with the error of a lost connection or
    of a failed attempt to connect.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        timeout: float,
        connect_timeout: float,
        *,
        greeting: Sequence[Sequence[Word]] = (),
        on_push: Callable[[Push], None] = lambda _: None,
        on_lost: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._make = make
        self._greeting = greeting
        self.on_push = on_push
        self._on_lost = on_lost
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._timeouts = Timeouts(timeout)
        self._reset(None)

    def _reset(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        # Commands that wait for a connection, by the futures of their replies.
        self._queue: dict[asyncio.Future[Any], bytes] = {}
        # Commands to write to the connection at the next iteration of the event loop.
        self._unsent: list[bytes] = []
        self._closing_tasks: set[asyncio.Task[None]] = set()

    def send(self, words: Sequence[Word]) -> asyncio.Future[Any]:
        """Sends a command. The future holds the reply, a RefusedError for an error reply or a
        rejected greeting, or else an OSError or the library's error of connecting.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # A connection of another event loop cannot be used in this one.
            if self._loop is not None:
                self._on_lost(ConnectionError("the connection is of another event loop"))
            self._reset(loop)
        future: asyncio.Future[Any] = loop.create_future()
        command = encode_command(words)
        if self._connection is None:
            self._queue[future] = command
            if self._connecting is None:
                self._connecting = loop.create_task(self._connect())
            self._timeouts.watch(future, loop, lambda: self._not_connected(future))
        else:
            self._send(self._connection, command, future)
        return future

    def _send(self, connection: _Connection, command: bytes, future: asyncio.Future[Any]) -> None:
        assert self._loop is not None
        if not self._unsent:
            self._loop.call_soon(self._write)
        self._unsent.append(command)
        connection.in_flight.append(future)
        chunks = connection.chunks

        def on_timeout() -> None:
            error = TimeoutError(f"no reply within {self._timeout} seconds")
            future.set_exception(error)
            if connection.chunks == chunks:
                # Nothing was received since the call was sent.
                self.drop(connection, error)

        self._timeouts.watch(future, self._loop, on_timeout)

    def _write(self) -> None:
        commands, self._unsent = self._unsent, []
        if self._connection is not None:
            self._connection.transport.write(b"".join(commands))

    def _not_connected(self, future: asyncio.Future[Any]) -> None:
        # A command that was sent meanwhile has a timeout of its own.
        if self._queue.pop(future, None) is not None:
            future.set_exception(TimeoutError(still_connecting_message(self._make)))

    async def _connect(self) -> None:
        loop = self._loop
        client_connection = None
        try:
            client_connection = self._make()
            await asyncio.wait_for(client_connection.connect(), self._connect_timeout)
        except BaseException as error:
            if client_connection is not None:
                with suppress(Exception):
                    await client_connection.disconnect(nowait=True)
            if self._loop is loop:
                self._connecting = None
                queue, self._queue = self._queue, {}
                why = error
                if isinstance(error, (asyncio.TimeoutError, asyncio.CancelledError)):
                    why = TimeoutError(still_connecting_message(self._make))
                for future in queue:
                    if not future.done():
                        future.set_exception(why)
                self._on_lost(ConnectionError(str(why)))
            if not isinstance(error, Exception):
                raise
            return
        self._connecting = None
        self._connection = connection = _Connection(self, client_connection)
        if self._greeting:
            enable_keepalive(connection.transport.get_extra_info("socket"))
        for words in self._greeting:
            greeting_reply = asyncio.get_running_loop().create_future()
            greeting_reply.add_done_callback(partial(self._on_greeting_reply, connection))
            self._send(connection, encode_command(words), greeting_reply)
        queue, self._queue = self._queue, {}
        for future, command in queue.items():
            if not future.done():
                # The timeout of the call begins after connecting.
                self._send(connection, command, future)

    def _on_greeting_reply(
        self, connection: _Connection, greeting_reply: asyncio.Future[Any]
    ) -> None:
        error = None if greeting_reply.cancelled() else greeting_reply.exception()
        if isinstance(error, Exception):
            self.drop(connection, error)

    def drop(self, connection: _Connection, error: Exception) -> None:
        """Drops a connection, and fails the calls in flight on it."""
        if self._connection is connection:
            self._connection = None
            self._unsent = []
            self._close(connection)
            self._on_lost(error)
        in_flight, connection.in_flight = connection.in_flight, deque()
        for future in in_flight:
            if not future.done():
                future.set_exception(error)

    def _close(self, connection: _Connection) -> None:
        assert self._loop is not None
        task = self._loop.create_task(connection.close())
        self._closing_tasks.add(task)
        task.add_done_callback(self._closing_tasks.discard)

    async def close(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            return
        if self._connecting is not None:
            self._connecting.cancel()
            with suppress(asyncio.CancelledError):
                await self._connecting
        if self._connection is not None:
            self.drop(self._connection, ConnectionError("the limiter was closed"))
        if self._closing_tasks:
            await asyncio.wait(self._closing_tasks)
