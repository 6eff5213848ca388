"""Transport of a limiter for asyncio to a server or a cluster."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Sequence
from random import uniform
from typing import Any

from redis_ratelimit import clients
from redis_ratelimit.call import MAX_DURATION, Call, blocking_words
from redis_ratelimit.clients import MOVING_RETRY, BaseTransport
from redis_ratelimit.quantities import Word
from redis_ratelimit.shared_connection import SharedConnection, Timeouts
from redis_ratelimit.tracking import AsyncTracker

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:  # redis-py depends on this package on Python 3.10
    from async_timeout import timeout

# Exception that interrupts a caller while it waits.
Interrupted = asyncio.CancelledError


async def resolved(value: Any) -> Any:
    """Returns the result of an application's function, awaited if it is awaitable."""
    return await value if inspect.isawaitable(value) else value


class Transport(BaseTransport):
    is_async = True
    current_loop = staticmethod(asyncio.get_running_loop)

    def __init__(self, client: Any, **settings: Any) -> None:
        super().__init__(client, **settings)
        if self.is_cluster:
            self._timeouts = Timeouts(self.timeout)
        else:
            self._connection = SharedConnection(self.connect, self.timeout, self.connect_timeout)
        # Client tracking by node; "" for a single server.
        self._trackers: dict[str, AsyncTracker] = {}
        # Event loop of the clients for blocking calls.
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(self, call: Call[Any]) -> Any:
        if not self.is_cluster:
            return await self._connection.send(call.words)
        return await self._timeouts.run(self._send_to_cluster(call))

    async def _send_to_cluster(self, call: Call[Any]) -> Any:
        # Without a target, redis-py would send COMMAND GETKEYS before each command.
        await self.client.initialize()
        node = clients.node_for(self.client, call.key, replica=call.is_peek and self.replicas)
        return await self.client.execute_command(*call.words, target_nodes=node)

    def blocking_client_at(self, name: str, source: Any) -> Any:
        if self._loop is not (loop := asyncio.get_running_loop()):
            # Connections of another event loop cannot be used in this one.
            self._loop = loop
            self._blocking_clients.clear()
            self.own_clients.clear()
        return super().blocking_client_at(name, source)

    async def wait(self, call: Call[Any], deadline: float) -> Any:
        """Sends a blocking call, which the server answers when there is room, or at `deadline`."""
        client = self.client
        while (remaining := deadline - self.clock()) > 0:
            words, reply_timeout = blocking_words(call, remaining), remaining + self.timeout
            if not self.is_cluster:
                blocking_client = self.blocking_client_at("", client.connection_pool)
                return await self._send_blocking(blocking_client, words, reply_timeout)
            await self._timeouts.run(client.initialize())
            node = clients.node_for(client, call.key, replica=False)
            blocking_client = self.blocking_client_at(node.name, node)
            try:
                return await self._send_blocking(blocking_client, words, reply_timeout)
            except Exception as error:
                if not self.may_have_moved(error):
                    raise
            # `send` lets the cluster's client find the new node of the key. If the call is denied,
            # block there.
            reply = await self.send(call)
            if call.is_over(reply):
                return reply
            await asyncio.sleep(uniform(0.5, 1.0) * MOVING_RETRY)
        return await self.send(call)

    def watch(self, call: Call[Any], on_reply: Callable[[Any], None]) -> None:
        """Peeks at a key in the background and tracks its next change at the server that has it.
        Does nothing if that server is not known.
        """
        name, node = "", None
        if self.is_cluster:
            try:
                node = clients.node_for(self.client, call.key, replica=False)
            except Exception:
                return
            name = node.name
        tracker = self._trackers.get(name)
        if tracker is None:
            connect = self.connect if node is None else self.connect_to(node)
            tracker = AsyncTracker(
                connect, self.timeout, self.connect_timeout, self.on_invalidation
            )
            self._trackers[name] = tracker
        tracker.send(call.words, on_reply)

    async def _send_blocking(self, client: Any, words: Sequence[Word], reply_timeout: float) -> Any:
        # Cancellation and the timeout close the connection, as a late reply may follow.
        try:
            async with timeout(reply_timeout if reply_timeout < MAX_DURATION else None):
                return await client.execute_command(*words)
        except Exception as error:
            if self.is_from_former_primary(error):
                await client.connection_pool.disconnect(inuse_connections=False)
            raise

    sleep = staticmethod(asyncio.sleep)

    async def close(self) -> None:
        if not self.is_cluster:
            await self._connection.close()
        for tracker in self._trackers.values():
            await tracker.close()
        for client in self.own_clients:
            await client.aclose()
