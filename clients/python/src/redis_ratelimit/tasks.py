"""How the calls of a limiter for asyncio reach a server, or a cluster."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Sequence
from random import uniform
from typing import Any

from redis_ratelimit import clients
from redis_ratelimit.call import LONGEST, Call, blocking
from redis_ratelimit.clients import MOVING, Route
from redis_ratelimit.ears import AsyncEar
from redis_ratelimit.line import Line, Patience
from redis_ratelimit.quantities import Word

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:  # redis-py has it there
    from async_timeout import timeout

# What ends the wait of a caller before its time.
Interrupted = asyncio.CancelledError


async def resolved(value: Any) -> Any:
    """Returns what a function of the application returns, or what that awaits."""
    return await value if inspect.isawaitable(value) else value


class Transport(Route):
    is_async = True
    where = staticmethod(asyncio.get_running_loop)

    def __init__(self, client: Any, **settings: Any) -> None:
        super().__init__(client, **settings)
        if self.is_cluster:
            self._patience = Patience(self.timeout)
        else:
            self._line = Line(self.made, self.timeout, self.connect_timeout)
        # By the node of a cluster.
        self._ears: dict[str, AsyncEar] = {}
        # Of the clients for calls that wait.
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ask(self, call: Call[Any]) -> Any:
        if not self.is_cluster:
            return await self._line.ask(call.words)
        return await self._patience.within(self._ask_cluster(call))

    async def _ask_cluster(self, call: Call[Any]) -> Any:
        # Else redis-py would ask a node for the keys of each call before it sends it.
        await self.client.initialize()
        node = clients.node_for(self.client, call.key, replica=call.looks and self.replicas)
        return await self.client.execute_command(*call.words, target_nodes=node)

    def waiting_at(self, name: str, of: Any) -> Any:
        if self._loop is not (loop := asyncio.get_running_loop()):
            # Another loop's connections are of no use in this one.
            self._loop = loop
            self._waiting.clear()
            self.own.clear()
        return super().waiting_at(name, of)

    async def wait(self, call: Call[Any], until: float) -> Any:
        """The server answers when there is room, or then."""
        client = self.client
        while (left := until - self.clock()) > 0:
            words, patience = blocking(call, left), left + self.timeout
            if not self.is_cluster:
                waiting = self.waiting_at("", client.connection_pool)
                return await self._waited(waiting, words, patience)
            await self._patience.within(client.initialize())
            node = clients.node_for(client, call.key, replica=False)
            waiting = self.waiting_at(node.name, node)
            try:
                return await self._waited(waiting, words, patience)
            except Exception as error:
                if not self.may_be_elsewhere(error):
                    raise
            # The cluster's client finds the key. Who is still denied there waits there.
            reply = await self.ask(call)
            if call.is_over(reply):
                return reply
            await asyncio.sleep(uniform(0.5, 1.0) * MOVING)
        return await self.ask(call)

    def watch(self, call: Call[Any], told: Callable[[Any], None]) -> None:
        """Looks at a key in the background. `told` gets the reply, and the next change of the key
        is heard from the server that has it. If that is not known, nothing happens.
        """
        name, node = "", None
        if self.is_cluster:
            try:
                node = clients.node_for(self.client, call.key, replica=False)
            except Exception:
                return
            name = node.name
        ear = self._ears.get(name)
        if ear is None:
            made = self.made if node is None else self.made_at(node)
            ear = AsyncEar(made, self.timeout, self.connect_timeout, self.heard)
            self._ears[name] = ear
        ear.ask(call.words, told)

    async def _waited(self, client: Any, words: Sequence[Word], patience: float) -> Any:
        # A call that is cancelled or out of patience closes the connection: its reply may come yet.
        try:
            async with timeout(patience if patience < LONGEST else None):
                return await client.execute_command(*words)
        except Exception as error:
            if self.is_sent_away(error):
                await client.connection_pool.disconnect(inuse_connections=False)
            raise

    sleep = staticmethod(asyncio.sleep)

    async def close(self) -> None:
        if not self.is_cluster:
            await self._line.close()
        for ear in self._ears.values():
            await ear.close()
        for client in self.own:
            await client.aclose()
