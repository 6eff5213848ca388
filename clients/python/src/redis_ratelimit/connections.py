"""Connection pool for threads. A call has a connection to itself until its reply."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from redis_ratelimit import forks
from redis_ratelimit.clients import still_connecting
from redis_ratelimit.quantities import Word
from redis_ratelimit.resp import Push, RefusedError, Replies, packed

# Seconds of idling after which a connection is checked before use: the server may have closed it.
STALE = 1.0

# Number of steps in which the timeout of a call without a connection is counted.
STEPS = 10


class _Connection:
    """Connection of redis-py or valkey-py after its handshake."""

    def __init__(self, made: Any, timeout: float, era: int) -> None:
        self._made = made
        self.era = era
        self._socket: socket.socket = made._sock
        self._socket.settimeout(timeout)
        self._replies = Replies()
        self.used_at = time.monotonic()

    def send(self, command: bytes) -> Any:
        self._socket.sendall(command)
        while True:
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                # TLS checks the clock before the socket, so a thread that was not scheduled for
                # that long times out although the reply has arrived.
                if not _has_input(self._socket):
                    raise
                continue
            if not data:
                raise ConnectionError("the server closed the connection")
            for reply in self._replies.of(data):
                if not isinstance(reply, Push):
                    return reply

    def is_usable(self) -> bool:
        """Returns `True` if an idle connection is open: the only input it can have is its end."""
        if hasattr(self._socket, "pending"):  # TLS may have sent records of its own
            return True
        try:
            return not _has_input(self._socket)
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        with suppress(Exception):
            self._made.disconnect()


def _has_input(connection: socket.socket) -> bool:
    """Returns `True` if a read would not block. The end of the stream is input, too."""
    if not hasattr(select, "poll"):  # on Windows, where `select` takes every descriptor
        return bool(select.select([connection], [], [], 0)[0])
    # Elsewhere `select` takes no descriptor above 1023.
    looking = select.poll()
    looking.register(connection, select.POLLIN)
    return bool(looking.poll(0))


class Connections:
    """Pool of at most `most` connections. They are established in the background, which may take
    longer than the timeout of a call: a later call then finds the connection.
    """

    _changed = forks.condition()

    def __init__(self, make: Callable[[], Any], timeout: float, most: int) -> None:
        self._make = make
        self._timeout = timeout
        self._most = most
        self.forked()
        forks.knows(self)

    def forked(self) -> None:
        """Forgets the connections, which belong to the parent process."""
        self._free: deque[_Connection] = deque()
        forks.forget(self, "_changed")
        self._waiting = self._connecting = self._used = 0
        # Incremented when a connection is lost: the others of that time are then closed, too.
        self._era = 0
        # Last error of connecting, and the start of that attempt.
        self._error: Exception | None = None
        self._error_of = 0.0
        self._process = os.getpid()

    def send(self, words: Sequence[Word], *, only_once: bool = False) -> Any:
        """Sends a command and returns its reply. Raises RefusedError for an error reply, and an
        OSError if there is none. `only_once` checks the connection first, as the command cannot be
        resent.
        """
        command = packed(words)
        connection = self._one(careful=only_once)
        try:
            reply = connection.send(command)
        except BaseException as error:
            # A late reply must not be read as the reply to another call.
            self._drop(connection)
            if isinstance(error, ConnectionError) and connection.era == self._era:
                self._era += 1
            raise
        connection.used_at = time.monotonic()
        if isinstance(reply, RefusedError):
            if reply.args[0].startswith(("READONLY", "MASTERDOWN")):
                # With Sentinel, another server is the primary by now.
                self._drop(connection)
                self._era += 1
            else:
                self._give_back(connection)
            raise reply
        self._give_back(connection)
        return reply

    def _one(self, *, careful: bool) -> _Connection:
        if self._process != os.getpid():
            # An application server in C may fork without running Python's hooks.
            self.forked()
        while True:
            try:
                found = self._free.pop()
            except IndexError:
                return self._made()
            self._used += 1
            if found.era != self._era:
                self._drop(found)
                continue
            if not careful and time.monotonic() - found.used_at < STALE:
                return found
            if found.is_usable():
                return found
            self._drop(found)

    def _give_back(self, connection: _Connection) -> None:
        self._used -= 1
        self._free.append(connection)
        if self._waiting:
            with self._changed:
                self._changed.notify()

    def _drop(self, connection: _Connection) -> None:
        self._used -= 1
        connection.close()
        if self._waiting:
            with self._changed:
                self._changed.notify()

    def _made(self) -> _Connection:
        """Returns the next connection that is free or newly established.

        A step that took much longer than planned does not count towards the timeout: the process
        was not scheduled, so the connecting threads were not either.
        """
        with self._changed:
            began = time.monotonic()
            self._waiting += 1
            try:
                step, waited = self._timeout / STEPS, 0.0
                while True:
                    # Other threads pop without the lock.
                    with suppress(IndexError):
                        while (found := self._free.pop()).era != self._era:
                            found.close()
                        self._used += 1
                        return found
                    # An attempt that began earlier says nothing about the server now.
                    if self._error is not None and self._error_of >= began:
                        raise self._error
                    if self._connecting < self._waiting and (
                        self._connecting + self._used < self._most
                    ):
                        self._connecting += 1
                        threading.Thread(target=self._connect, daemon=True).start()
                    if waited >= self._timeout:
                        raise TimeoutError(
                            still_connecting(self._make)
                            if self._connecting
                            else "no connection is free"
                        )
                    fell_asleep = time.monotonic()
                    self._changed.wait(step)
                    took = time.monotonic() - fell_asleep
                    if took < 2 * step:
                        waited += took
            finally:
                self._waiting -= 1

    def _connect(self) -> None:
        connection = None
        began, era = time.monotonic(), self._era
        try:
            made = self._make()
            made.connect()
            connection = _Connection(made, self._timeout, era)
        except Exception as error:
            if type(error).__name__ == "TimeoutError":
                error = TimeoutError(still_connecting(self._make))
            with self._changed:
                if began >= self._error_of:
                    self._error, self._error_of = error, began
        finally:
            with self._changed:
                self._connecting -= 1
                if connection is not None:
                    self._free.append(connection)
                self._changed.notify_all()

    def _clear(self) -> None:
        with suppress(IndexError):
            while True:
                self._free.pop().close()

    def close(self) -> None:
        self._clear()
