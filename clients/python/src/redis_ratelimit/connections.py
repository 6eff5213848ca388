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
from redis_ratelimit.clients import still_connecting_message
from redis_ratelimit.quantities import Word
from redis_ratelimit.resp import Push, RefusedError, Replies, encode_command

# Seconds of idling after which a connection is checked before use: the server may have closed it.
CHECK_AFTER = 1.0

# Number of steps into which the timeout of a call without a connection is divided.
WAIT_STEPS = 10


class _Connection:
    """Connection of redis-py or valkey-py after its handshake."""

    def __init__(self, client_connection: Any, timeout: float, era: int) -> None:
        self._client_connection = client_connection
        self.era = era
        self._socket: socket.socket = client_connection._sock
        self._socket.settimeout(timeout)
        self._replies = Replies()
        self.used_at = time.monotonic()

    def send(self, command: bytes) -> Any:
        self._socket.sendall(command)
        while True:
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                # TLS checks the clock before the socket, so a thread that was not scheduled in time
                # gets this error although the reply has arrived.
                if not _has_input(self._socket):
                    raise
                continue
            if not data:
                raise ConnectionError("the server closed the connection")
            for reply in self._replies.feed(data):
                if not isinstance(reply, Push):
                    return reply

    def is_usable(self) -> bool:
        """Returns `True` if an idle connection is open: its only possible input is its end."""
        if hasattr(self._socket, "pending"):  # input can be records of TLS itself
            return True
        try:
            return not _has_input(self._socket)
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        with suppress(Exception):
            self._client_connection.disconnect()


def _has_input(connection: socket.socket) -> bool:
    """Returns `True` if a read would not block. The end of the stream is input, too."""
    if not hasattr(select, "poll"):  # on Windows, where `select` takes every descriptor
        return bool(select.select([connection], [], [], 0)[0])
    # Elsewhere `select` takes no descriptor above 1023.
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(0))


class Connections:
    """Pool of at most `max_connections` connections. They are established in the background, which
    may take longer than the timeout of a call: a later call then finds the connection.
    """

    _changed = forks.condition()

    def __init__(self, make: Callable[[], Any], timeout: float, max_connections: int) -> None:
        self._make = make
        self._timeout = timeout
        self._max_connections = max_connections
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        """Forgets the connections, which belong to the parent process."""
        self._free: deque[_Connection] = deque()
        forks.forget(self, "_changed")
        self._waiting = self._connecting = self._used = 0
        # Incremented when a connection is lost: connections of earlier eras are closed, too.
        self._era = 0
        # Last error of connecting, and the time at which that attempt began.
        self._error: Exception | None = None
        self._failed_attempt_started_at = 0.0
        self._process = os.getpid()

    def send(self, words: Sequence[Word], *, only_once: bool = False) -> Any:
        """Sends a command and returns its reply. Raises RefusedError for an error reply, and an
        OSError if there is none. `only_once` checks the connection first, as the command cannot be
        resent.
        """
        command = encode_command(words)
        connection = self._check_out(must_check=only_once)
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

    def _check_out(self, *, must_check: bool) -> _Connection:
        if self._process != os.getpid():
            # An application server in C may fork without running Python's hooks.
            self.reset_after_fork()
        while True:
            try:
                connection = self._free.pop()
            except IndexError:
                return self._wait_for_connection()
            self._used += 1
            if connection.era != self._era:
                self._drop(connection)
                continue
            if not must_check and time.monotonic() - connection.used_at < CHECK_AFTER:
                return connection
            if connection.is_usable():
                return connection
            self._drop(connection)

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

    def _wait_for_connection(self) -> _Connection:
        """Returns the next connection that is free or newly established.

        A step that took much longer than planned does not count towards the timeout: the process,
        with the threads that connect, was not scheduled.
        """
        with self._changed:
            started_at = time.monotonic()
            self._waiting += 1
            try:
                step, waited = self._timeout / WAIT_STEPS, 0.0
                while True:
                    # Other threads pop without the lock.
                    with suppress(IndexError):
                        while (connection := self._free.pop()).era != self._era:
                            connection.close()
                        self._used += 1
                        return connection
                    # An attempt that began earlier says nothing about the server now.
                    if self._error is not None and self._failed_attempt_started_at >= started_at:
                        raise self._error
                    if self._connecting < self._waiting and (
                        self._connecting + self._used < self._max_connections
                    ):
                        self._connecting += 1
                        threading.Thread(target=self._connect, daemon=True).start()
                    if waited >= self._timeout:
                        raise TimeoutError(
                            still_connecting_message(self._make)
                            if self._connecting
                            else "no connection is free"
                        )
                    wait_started_at = time.monotonic()
                    self._changed.wait(step)
                    elapsed = time.monotonic() - wait_started_at
                    if elapsed < 2 * step:
                        waited += elapsed
            finally:
                self._waiting -= 1

    def _connect(self) -> None:
        connection = None
        started_at, era = time.monotonic(), self._era
        try:
            client_connection = self._make()
            client_connection.connect()
            connection = _Connection(client_connection, self._timeout, era)
        except Exception as error:
            if type(error).__name__ == "TimeoutError":
                error = TimeoutError(still_connecting_message(self._make))
            with self._changed:
                if started_at >= self._failed_attempt_started_at:
                    self._error, self._failed_attempt_started_at = error, started_at
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
