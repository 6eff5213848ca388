"""Transport of a limiter for threads to a server or a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import uniform
from typing import Any

from redis_ratelimit import clients
from redis_ratelimit.call import Call, blocking_words
from redis_ratelimit.clients import MOVING_RETRY, BaseTransport
from redis_ratelimit.connections import Connections
from redis_ratelimit.quantities import Word
from redis_ratelimit.tracking import Tracker

# Exception that interrupts a caller while it waits: by a signal, or by the timeout of a greenlet.
Interrupted = BaseException


def resolved(value: Any) -> Any:
    """Returns the result of an application's function, which for threads is the value itself."""
    return value


class Transport(BaseTransport):
    is_async = False

    @staticmethod
    def current_loop() -> None:
        """Returns None, as all threads share the tracking."""

    def __init__(self, client: Any, **settings: Any) -> None:
        super().__init__(client, **settings)
        if not self.is_cluster:
            self._connections = Connections(self.connect, self.timeout, clients.MAX_CONNECTIONS)
        # Client tracking by node; "" for a single server.
        self._trackers: dict[str, Tracker] = {}

    def send(self, call: Call[Any]) -> Any:
        if not self.is_cluster:
            return self._connections.send(call.words, only_once=call.resendable_for == 0)
        # Without a target, redis-py would send COMMAND GETKEYS before each command.
        node = clients.node_for(self.client, call.key, replica=call.is_peek and self.replicas)
        return self.client.execute_command(*call.words, target_nodes=node)

    def wait(self, call: Call[Any], deadline: float) -> Any:
        """Sends a blocking call, which the server answers when there is room, or at `deadline`."""
        client = self.client
        while (remaining := deadline - self.clock()) > 0:
            words, reply_timeout = blocking_words(call, remaining), remaining + self.timeout
            if not self.is_cluster:
                blocking_client = self.blocking_client_at("", client.connection_pool)
                return self._send_blocking(blocking_client, words, reply_timeout)
            node = clients.node_for(client, call.key, replica=False)
            blocking_client = self.blocking_client_at(node.name, clients.pool_of(client, node))
            try:
                return self._send_blocking(blocking_client, words, reply_timeout)
            except Exception as error:
                if not self.may_have_moved(error):
                    raise
            # `send` lets the cluster's client find the new node of the key. If the call is denied,
            # block there.
            reply = self.send(call)
            if call.is_over(reply):
                return reply
            time.sleep(uniform(0.5, 1.0) * MOVING_RETRY)
        return self.send(call)

    def watch(self, call: Call[Any], on_reply: Callable[[Any], None]) -> None:
        """Peeks at a key in the background and tracks its next change at the server that has it.
        Does nothing if that server is not known.
        """
        client = self.client
        name, pool = "", None
        if self.is_cluster:
            try:
                node = clients.node_for(client, call.key, replica=False)
                name, pool = node.name, clients.pool_of(client, node)
            except Exception:
                return
        tracker = self._trackers.get(name)
        if tracker is None:
            connect = self.connect if pool is None else self.connect_to(pool)
            # Another thread may have created it meanwhile.
            tracker = self._trackers.setdefault(name, Tracker(connect, self.on_invalidation))
        tracker.send(call.words, on_reply)

    def _send_blocking(self, client: Any, words: Sequence[Word], reply_timeout: float) -> Any:
        try:
            return client.execute_command(*words, reply_timeout=reply_timeout)
        except Exception as error:
            if self.is_from_former_primary(error):
                client.connection_pool.disconnect(inuse_connections=False)
            raise

    @staticmethod
    def sleep(seconds: float) -> None:
        """Sleeps. `time.sleep` is looked up by each call, as gevent may replace it."""
        time.sleep(seconds)

    def close(self) -> None:
        if not self.is_cluster:
            self._connections.close()
        for tracker in list(self._trackers.values()):
            tracker.close()
        for client in self.own_clients:
            client.close()
