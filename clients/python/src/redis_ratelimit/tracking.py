"""Client tracking in RESP3: connections on which the server reports changed keys.

A tracker peeks at a key (RL.PEEK), and the server then reports the key's next change. The first
peek opens the connection, and so does the next one after it was lost.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from redis_ratelimit import forks
from redis_ratelimit.clients import enable_keepalive
from redis_ratelimit.quantities import Word
from redis_ratelimit.resp import Push, RefusedError, Replies, packed
from redis_ratelimit.shared_connection import SharedConnection

GREETING: tuple[tuple[str, ...], ...] = (("HELLO", "3"), ("CLIENT", "TRACKING", "ON"))

# Seconds until the next attempt after a connection failed, and after the server rejected tracking.
PAUSE = 1.0
REFUSED = 60.0

# Callback with the name of a changed key, or None if any key may have changed.
OnInvalidation: TypeAlias = Callable[["bytes | None"], None]
# Callback with the reply to a peek. It is not called if the reply is lost.
OnReply: TypeAlias = Callable[[Any], None]


def dispatch(message: Push, on_invalidation: OnInvalidation) -> None:
    if len(message) == 2 and message[0] == b"invalidate":
        for key in [None] if message[1] is None else message[1]:
            on_invalidation(key)


class AsyncTracker:
    """Client tracking for asyncio."""

    def __init__(
        self,
        make: Callable[[], Any],
        timeout: float,
        connect_timeout: float,
        on_invalidation: OnInvalidation,
    ) -> None:
        self._on_invalidation = on_invalidation
        self._not_before = 0.0
        self._connection = SharedConnection(
            make,
            timeout,
            connect_timeout,
            greeting=GREETING,
            pushed=lambda message: dispatch(message, on_invalidation),
            lost=self._lost,
        )

    def send(self, words: Sequence[Word], on_reply: OnReply) -> None:
        """Sends a peek in the background. `on_reply` is not called if tracking was lost."""
        if time.monotonic() >= self._not_before:
            self._connection.send(words).add_done_callback(partial(self._replied, on_reply))

    def _replied(self, on_reply: OnReply, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        if time.monotonic() >= self._not_before:
            on_reply(future.result())

    def _lost(self, error: Exception) -> None:
        pause = REFUSED if isinstance(error, RefusedError) else PAUSE
        self._not_before = time.monotonic() + pause
        self._on_invalidation(None)

    async def close(self) -> None:
        await self._connection.close()


class Tracker:
    """Client tracking for threads, in a thread of its own."""

    _lock = forks.lock()

    def __init__(self, make: Callable[[], Any], on_invalidation: OnInvalidation) -> None:
        self._make = make
        self._on_invalidation = on_invalidation
        self._not_before = 0.0
        self.forked()
        forks.knows(self)

    def forked(self) -> None:
        """Forgets the connection and its thread, which belong to the parent process."""
        forks.forget(self, "_lock")
        self._listener: _Listener | None = None

    def send(self, words: Sequence[Word], on_reply: OnReply) -> None:
        """Sends a peek in the background. `on_reply` is called by another thread."""
        with self._lock:
            if self._listener is None:
                if time.monotonic() < self._not_before:
                    return
                self._listener = _Listener(self._make, self._on_invalidation, self._lost)
            self._listener.send(packed(words), on_reply)

    def _lost(self, listener: _Listener, error: Exception | None) -> None:
        with self._lock:
            if self._listener is not listener:
                return
            self._listener = None
            pause = REFUSED if isinstance(error, RefusedError) else PAUSE
            self._not_before = time.monotonic() + pause
        self._on_invalidation(None)

    def close(self) -> None:
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
            self._on_invalidation(None)


class _Listener:
    """Connection and its thread. Only that thread reads and writes, as TLS requires."""

    def __init__(
        self,
        make: Callable[[], Any],
        on_invalidation: OnInvalidation,
        lost: Callable[[_Listener, Exception | None], None],
    ) -> None:
        self._make = make
        self._on_invalidation = on_invalidation
        self._lost = lost
        self._in_flight: deque[OnReply] = deque()
        self._unsent: deque[tuple[bytes, OnReply]] = deque()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="redis-ratelimit", daemon=True)
        self._thread.start()

    def send(self, command: bytes, on_reply: OnReply) -> None:
        self._unsent.append((command, on_reply))
        with suppress(
            OSError
        ):  # the buffer is full, so the thread wakes up anyway, or it has ended
            self._wake.send(b"x")

    def close(self) -> None:
        with suppress(OSError):
            self._wake.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        made, why = None, None
        try:
            made = self._make()
            made.connect()
            self._listen(made._sock)
        except Exception as error:
            why = error
        finally:
            if made is not None:
                with suppress(Exception):
                    made.disconnect()
            self._woken.close()
            self._wake.close()
            self._lost(self, why)

    def _listen(self, connection: socket.socket) -> None:
        """Reads and writes until the connection is lost, which raises an error, or closed."""
        enable_keepalive(connection)
        for words in GREETING:
            self._in_flight.append(_greeted)
            connection.sendall(packed(words))
        replies = Replies()
        with selectors.DefaultSelector() as ready:
            ready.register(connection, selectors.EVENT_READ)
            ready.register(self._woken, selectors.EVENT_READ)
            while True:
                for found, _ in ready.select():
                    if found.fileobj is connection:
                        self._read(connection, replies)
                    elif not self._woken.recv(4096):
                        return
                while self._unsent:
                    command, on_reply = self._unsent.popleft()
                    self._in_flight.append(on_reply)
                    connection.sendall(command)

    def _read(self, connection: Any, replies: Replies) -> None:
        while True:
            data = connection.recv(65536)
            if not data:
                raise ConnectionError("the server closed the connection")
            for reply in replies.of(data):
                if isinstance(reply, Push):
                    dispatch(reply, self._on_invalidation)
                else:
                    self._in_flight.popleft()(reply)
            # TLS may have read more than it was asked for.
            if not getattr(connection, "pending", int)():
                return


def _greeted(reply: Any) -> None:
    if isinstance(reply, RefusedError):
        raise reply
