"""How the calls of a limiter for threads reach a server, or a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import uniform
from typing import Any

from redis_ratelimit import clients
from redis_ratelimit.call import Call, blocking
from redis_ratelimit.clients import MOVING, Route
from redis_ratelimit.connections import Connections
from redis_ratelimit.ears import Ear
from redis_ratelimit.quantities import Word

# What ends the wait of a caller before its time: a signal, or the timeout of a greenlet.
Interrupted = BaseException


def resolved(value: Any) -> Any:
    """Returns what a function of the application returns."""
    return value


class Transport(Route):
    is_async = False

    @staticmethod
    def where() -> None:
        """Every thread hears what one does."""

    def __init__(self, client: Any, **settings: Any) -> None:
        super().__init__(client, **settings)
        if not self.is_cluster:
            self._connections = Connections(self.made, self.timeout, clients.MOST_CONNECTIONS)
        # By the node of a cluster.
        self._ears: dict[str, Ear] = {}

    def ask(self, call: Call[Any]) -> Any:
        if not self.is_cluster:
            return self._connections.ask(call.words, only_once=call.repeatable == 0)
        # Else redis-py would ask a node for the keys of each call before it sends it.
        node = clients.node_for(self.client, call.key, replica=call.looks and self.replicas)
        return self.client.execute_command(*call.words, target_nodes=node)

    def wait(self, call: Call[Any], until: float) -> Any:
        """The server answers when there is room, or then."""
        client = self.client
        while (left := until - self.clock()) > 0:
            words, patience = blocking(call, left), left + self.timeout
            if not self.is_cluster:
                return self._waited(self.waiting_at("", client.connection_pool), words, patience)
            node = clients.node_for(client, call.key, replica=False)
            waiting = self.waiting_at(node.name, clients.pool_of(client, node))
            try:
                return self._waited(waiting, words, patience)
            except Exception as error:
                if not self.may_be_elsewhere(error):
                    raise
            # The cluster's client finds the key. Who is still denied there waits there.
            reply = self.ask(call)
            if call.is_over(reply):
                return reply
            time.sleep(uniform(0.5, 1.0) * MOVING)
        return self.ask(call)

    def watch(self, call: Call[Any], told: Callable[[Any], None]) -> None:
        """Looks at a key in the background. `told` gets the reply, and the next change of the key
        is heard from the server that has it. If that is not known, nothing happens.
        """
        client = self.client
        name, pool = "", None
        if self.is_cluster:
            try:
                node = clients.node_for(client, call.key, replica=False)
                name, pool = node.name, clients.pool_of(client, node)
            except Exception:
                return
        ear = self._ears.get(name)
        if ear is None:
            made = self.made if pool is None else self.made_at(pool)
            # Another thread may have been faster.
            ear = self._ears.setdefault(name, Ear(made, self.heard))
        ear.ask(call.words, told)

    def _waited(self, client: Any, words: Sequence[Word], patience: float) -> Any:
        try:
            return client.execute_command(*words, patience=patience)
        except Exception as error:
            if self.is_sent_away(error):
                client.connection_pool.disconnect(inuse_connections=False)
            raise

    @staticmethod
    def sleep(seconds: float) -> None:
        """Waits. The function is looked up by each call: gevent may replace it later."""
        time.sleep(seconds)

    def close(self) -> None:
        if not self.is_cluster:
            self._connections.close()
        for ear in list(self._ears.values()):
            ear.close()
        for client in self.own:
            client.close()
