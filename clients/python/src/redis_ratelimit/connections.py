"""Connections to one server, for threads: each call has one for itself while it waits."""

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

# Seconds after which a free connection may have been closed without anybody noticing.
STALE = 1.0

# In how many steps the time of a call passes that has no connection yet.
STEPS = 10


class _Connection:
    """One of redis-py's or valkey-py's, which has connected and greeted."""

    def __init__(self, made: Any, timeout: float, era: int) -> None:
        self._made = made
        self.era = era
        self._socket: socket.socket = made._sock
        self._socket.settimeout(timeout)
        self._replies = Replies()
        self.used_at = time.monotonic()

    def ask(self, command: bytes) -> Any:
        self._socket.sendall(command)
        while True:
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                # TLS looks at the clock before it looks at the socket: whoever did not run for so
                # long finds the time over, and the reply there.
                if not _has_input(self._socket):
                    raise
                continue
            if not data:
                raise ConnectionError("the server closed the connection")
            for reply in self._replies.of(data):
                if not isinstance(reply, Push):
                    return reply

    def is_usable(self) -> bool:
        """Nothing is to be read of one that is free, but its end."""
        if hasattr(self._socket, "pending"):  # TLS has words of its own
            return True
        try:
            return not _has_input(self._socket)
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        with suppress(Exception):
            self._made.disconnect()


def _has_input(connection: socket.socket) -> bool:
    """Without waiting. Its end is input, too."""
    if not hasattr(select, "poll"):  # on Windows, where `select` takes every descriptor
        return bool(select.select([connection], [], [], 0)[0])
    # Elsewhere `select` takes no descriptor above 1023.
    looking = select.poll()
    looking.register(connection, select.POLLIN)
    return bool(looking.poll(0))


class Connections:
    """At most `most`. A connection is made in the background, so that it may take longer than a
    call waits: whoever calls next finds it.
    """

    _changed = forks.condition()

    def __init__(self, make: Callable[[], Any], timeout: float, most: int) -> None:
        self._make = make
        self._timeout = timeout
        self._most = most
        self.forked()
        forks.knows(self)

    def forked(self) -> None:
        """These connections are the other process's."""
        self._free: deque[_Connection] = deque()
        forks.forget(self, "_changed")
        self._waiting = self._connecting = self._used = 0
        # Grows when a connection is lost: whoever closed that one closed those of its time, too.
        self._era = 0
        # What connecting failed of last, and when that had begun.
        self._error: Exception | None = None
        self._error_of = 0.0
        self._process = os.getpid()

    def ask(self, words: Sequence[Word], *, only_once: bool = False) -> Any:
        """The reply. RefusedError if it is one; an OSError if there is none. With `only_once` the
        connection is looked at first: a call that cannot be sent again is not sent in vain.
        """
        command = packed(words)
        connection = self._one(careful=only_once)
        try:
            reply = connection.ask(command)
        except BaseException as error:
            # The reply may come yet, and is nobody else's.
            self._drop(connection)
            if isinstance(error, ConnectionError) and connection.era == self._era:
                self._era += 1
            raise
        connection.used_at = time.monotonic()
        if isinstance(reply, RefusedError):
            if reply.args[0].startswith(("READONLY", "MASTERDOWN")):
                # Behind a sentinel another server is the primary by now.
                self._drop(connection)
                self._era += 1
            else:
                self._give_back(connection)
            raise reply
        self._give_back(connection)
        return reply

    def _one(self, *, careful: bool) -> _Connection:
        if self._process != os.getpid():
            # A server in C may fork and not tell Python.
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
        """The next one that is free, or that has connected.

        A step that took much longer does not count: a thread that wakes up late did not run, nor
        did those that connect.
        """
        with self._changed:
            began = time.monotonic()
            self._waiting += 1
            try:
                step, waited = self._timeout / STEPS, 0.0
                while True:
                    # Others may take one without the lock.
                    with suppress(IndexError):
                        while (found := self._free.pop()).era != self._era:
                            found.close()
                        self._used += 1
                        return found
                    # What failed that had begun before is no word on how it is now.
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
