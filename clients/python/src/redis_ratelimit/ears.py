"""Connections on which the server tells that a key has changed: client tracking in RESP3.

An ear looks at a key (RL.PEEK), and the server then tells of the key's next change. It is opened by
the first look, and after it was lost by the next.
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
from redis_ratelimit.clients import kept_alive
from redis_ratelimit.line import Line
from redis_ratelimit.quantities import Word
from redis_ratelimit.resp import Push, RefusedError, Replies, packed

GREETING: tuple[tuple[str, ...], ...] = (("HELLO", "3"), ("CLIENT", "TRACKING", "ON"))

# Seconds for which no ear is opened after one that failed, and after one that the server refused.
PAUSE = 1.0
REFUSED = 60.0

# What is called with the name of a key that has changed; None: any may have.
Heard: TypeAlias = Callable[["bytes | None"], None]
# What is called with the reply, unless it is lost.
Told: TypeAlias = Callable[[Any], None]


def pushed(message: Push, heard: Heard) -> None:
    if len(message) == 2 and message[0] == b"invalidate":
        for key in [None] if message[1] is None else message[1]:
            heard(key)


class AsyncEar:
    """For asyncio."""

    def __init__(
        self, make: Callable[[], Any], timeout: float, connect_timeout: float, heard: Heard
    ) -> None:
        self._heard = heard
        self._not_before = 0.0
        self._line = Line(
            make,
            timeout,
            connect_timeout,
            greeting=GREETING,
            pushed=lambda message: pushed(message, heard),
            lost=self._lost,
        )

    def ask(self, words: Sequence[Word], told: Told) -> None:
        """In the background. `told` is not called if the reply would come on a deaf connection."""
        if time.monotonic() >= self._not_before:
            self._line.ask(words).add_done_callback(partial(self._answered, told))

    def _answered(self, told: Told, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        if time.monotonic() >= self._not_before:
            told(future.result())

    def _lost(self, error: Exception) -> None:
        pause = REFUSED if isinstance(error, RefusedError) else PAUSE
        self._not_before = time.monotonic() + pause
        self._heard(None)

    async def close(self) -> None:
        await self._line.close()


class Ear:
    """For threads: one of its own listens."""

    _lock = forks.lock()

    def __init__(self, make: Callable[[], Any], heard: Heard) -> None:
        self._make = make
        self._heard = heard
        self._not_before = 0.0
        self.forked()
        forks.knows(self)

    def forked(self) -> None:
        """The connection and its thread are the other process's."""
        forks.forget(self, "_lock")
        self._listening: _Listening | None = None

    def ask(self, words: Sequence[Word], told: Told) -> None:
        """In the background. `told` is called by another thread."""
        with self._lock:
            if self._listening is None:
                if time.monotonic() < self._not_before:
                    return
                self._listening = _Listening(self._make, self._heard, self._lost)
            self._listening.ask(packed(words), told)

    def _lost(self, listening: _Listening, error: Exception | None) -> None:
        with self._lock:
            if self._listening is not listening:
                return
            self._listening = None
            pause = REFUSED if isinstance(error, RefusedError) else PAUSE
            self._not_before = time.monotonic() + pause
        self._heard(None)

    def close(self) -> None:
        with self._lock:
            listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()
            self._heard(None)


class _Listening:
    """One connection and its thread, which alone reads and writes: TLS allows no two at once."""

    def __init__(
        self,
        make: Callable[[], Any],
        heard: Heard,
        lost: Callable[[_Listening, Exception | None], None],
    ) -> None:
        self._make = make
        self._heard = heard
        self._lost = lost
        self._asked: deque[Told] = deque()
        self._unsent: deque[tuple[bytes, Told]] = deque()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="redis-ratelimit", daemon=True)
        self._thread.start()

    def ask(self, command: bytes, told: Told) -> None:
        self._unsent.append((command, told))
        with suppress(OSError):  # it is awake anyway, or has ended
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
        """Until it is lost, which is an error, or closed."""
        kept_alive(connection)
        for words in GREETING:
            self._asked.append(_greeted)
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
                    command, told = self._unsent.popleft()
                    self._asked.append(told)
                    connection.sendall(command)

    def _read(self, connection: Any, replies: Replies) -> None:
        while True:
            data = connection.recv(65536)
            if not data:
                raise ConnectionError("the server closed the connection")
            for reply in replies.of(data):
                if isinstance(reply, Push):
                    pushed(reply, self._heard)
                else:
                    self._asked.popleft()(reply)
            # TLS may have read more than it was asked for.
            if not getattr(connection, "pending", int)():
                return


def _greeted(reply: Any) -> None:
    if isinstance(reply, RefusedError):
        raise reply
