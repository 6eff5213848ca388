"""Client tracking in RESP3: connections on which the server reports changed keys.

A tracker peeks at a key (RL.PEEK), and the server then reports the key's next change. The first
peek opens the connection, and so does the first peek after the connection was lost.
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
from redis_ratelimit.resp import Push, RefusedError, Replies, encode_command
from redis_ratelimit.shared_connection import SharedConnection

GREETING: tuple[tuple[str, ...], ...] = (("HELLO", "3"), ("CLIENT", "TRACKING", "ON"))

# Seconds until the next attempt after a connection failed, and after the server rejected tracking.
PAUSE_AFTER_LOSS = 1.0
PAUSE_AFTER_REFUSAL = 60.0

# Callback for the name of a changed key, or None if any key may have changed.
OnInvalidation: TypeAlias = Callable[["bytes | None"], None]
# Callback for the reply to a peek, which is not called if the reply is lost.
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
            on_push=lambda message: dispatch(message, on_invalidation),
            on_lost=self._lost,
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
        pause = PAUSE_AFTER_REFUSAL if isinstance(error, RefusedError) else PAUSE_AFTER_LOSS
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
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
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
            self._listener.send(encode_command(words), on_reply)

    def _lost(self, listener: _Listener, error: Exception | None) -> None:
        with self._lock:
            if self._listener is not listener:
                return
            self._listener = None
            pause = PAUSE_AFTER_REFUSAL if isinstance(error, RefusedError) else PAUSE_AFTER_LOSS
            self._not_before = time.monotonic() + pause
        self._on_invalidation(None)

    def close(self) -> None:
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
            self._on_invalidation(None)


class _Listener:
    """Connection with a thread of its own, which alone reads and writes, as TLS requires."""

    def __init__(
        self,
        make: Callable[[], Any],
        on_invalidation: OnInvalidation,
        on_lost: Callable[[_Listener, Exception | None], None],
    ) -> None:
        self._make = make
        self._on_invalidation = on_invalidation
        self._on_lost = on_lost
        self._in_flight: deque[OnReply] = deque()
        self._unsent: deque[tuple[bytes, OnReply]] = deque()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="redis-ratelimit", daemon=True)
        self._thread.start()

    def send(self, command: bytes, on_reply: OnReply) -> None:
        self._unsent.append((command, on_reply))
        # Fails if the buffer is full, so that the thread wakes up anyway, or if the thread has
        # ended.
        with suppress(OSError):
            self._wake_sender.send(b"x")

    def close(self) -> None:
        with suppress(OSError):
            self._wake_sender.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        connection, why = None, None
        try:
            connection = self._make()
            connection.connect()
            self._listen(connection._sock)
        except Exception as error:
            why = error
        finally:
            if connection is not None:
                with suppress(Exception):
                    connection.disconnect()
            self._wake_receiver.close()
            self._wake_sender.close()
            self._on_lost(self, why)

    def _listen(self, connection: socket.socket) -> None:
        """Reads and writes until the connection is lost, which raises an error, or closed."""
        enable_keepalive(connection)
        for words in GREETING:
            self._in_flight.append(_check_greeting_reply)
            connection.sendall(encode_command(words))
        replies = Replies()
        with selectors.DefaultSelector() as ready:
            ready.register(connection, selectors.EVENT_READ)
            ready.register(self._wake_receiver, selectors.EVENT_READ)
            while True:
                for selected, _ in ready.select():
                    if selected.fileobj is connection:
                        self._read(connection, replies)
                    elif not self._wake_receiver.recv(4096):
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
            for reply in replies.feed(data):
                if isinstance(reply, Push):
                    dispatch(reply, self._on_invalidation)
                else:
                    self._in_flight.popleft()(reply)
            # TLS may have decrypted more than `recv` returned.
            if not getattr(connection, "pending", int)():
                return


def _check_greeting_reply(reply: Any) -> None:
    if isinstance(reply, RefusedError):
        raise reply
