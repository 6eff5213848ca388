"""The limiter for asyncio. Its calls are those of `redis_ratelimit.Limiter`, awaited."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from random import uniform
from typing import Any, TypeVar

from redis_ratelimit import clients
from redis_ratelimit.base import MOVING, Base
from redis_ratelimit.calls import LONGEST, Call, Once, blocking
from redis_ratelimit.decision import Decision
from redis_ratelimit.lease import AsyncLease
from redis_ratelimit.limits import Amount, Ban, Concurrency, Duration, Key, Limit, Word
from redis_ratelimit.policies import PolicyCalls, PolicyLine, PolicyState, Scale
from redis_ratelimit.units import AsyncUnits

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:  # redis-py has it there
    from async_timeout import timeout

T = TypeVar("T")


class Limiter(Base):
    __doc__ = Base.__doc__
    _is_async = True

    @classmethod
    def from_url(
        cls, url: str, *, cluster: bool = False, timeout: float = 0.1, **options: Any
    ) -> Limiter:
        """`options` are those of the constructor. The server may be away yet."""
        client = clients.from_url(url, timeout, cluster=cluster, is_async=True)
        limiter = cls(client, timeout=timeout, **options)
        limiter._own.append(client)
        return limiter

    async def take(
        self,
        key: Key,
        *limits: Limit,
        cost: Amount = 1,
        upto: bool = False,
        force: bool = False,
        max_wait: Duration | None = None,
        keep: Amount | str | None = None,
        once: Once = True,
        ttl: Duration | None = None,
        holder: Key | None = None,
        each: bool = False,
        ban: Ban | None = None,
    ) -> Decision:
        """Charges all limits on this key, or none.

        cost        what is charged of each limit that has no cost of its own.
        upto        grant as many whole units as there are, up to the cost: `Decision.granted`.
        force       charge in full even past the limit.
        max_wait    admit, too, what will fit within so long: hold it for `Decision.wait`.
        keep        pass only if so much stays: an amount, or a share such as "20%".
        once        an id of yours, for `settle`; True: one of its own; False: none.
        ttl         how long the id is remembered. Yours: 10 minutes. Its own: as long as resends
                    take.
        holder      whose lease it is, of a concurrency limit among the limits. Without one it is
                    the id.
        each        what each limit says: `Decision.each`.
        ban         whoever goes on although denied is banned.

        CallError if the server refuses the call as it is, SetupError if it is set up in a way that
        cannot work, NoPolicyError if there is no such policy.
        """
        return await self._do(
            self._calls.take(
                key,
                limits,
                cost=cost,
                upto=upto,
                force=force,
                max_wait=max_wait,
                keep=keep,
                once=once,
                ttl=ttl,
                holder=holder,
                each=each,
                ban=ban,
            )
        )

    async def peek(
        self,
        key: Key,
        *limits: Limit,
        cost: Amount = 1,
        upto: bool = False,
        force: bool = False,
        max_wait: Duration | None = None,
        keep: Amount | str | None = None,
        holder: Key | None = None,
        each: bool = False,
        ban: Ban | None = None,
    ) -> Decision:
        """What `take` would answer now. It changes nothing."""
        return await self._do(
            self._calls.take(
                key,
                limits,
                cost=cost,
                upto=upto,
                force=force,
                max_wait=max_wait,
                keep=keep,
                holder=holder,
                each=each,
                ban=ban,
                look=True,
            )
        )

    async def take_all(
        self,
        limits: Mapping[Key, Limit],
        *,
        cost: Amount = 1,
        force: bool = False,
        max_wait: Duration | None = None,
        keep: Amount | str | None = None,
        once: Once = True,
        ttl: Duration | None = None,
        holder: Key | None = None,
    ) -> Decision:
        """Charges one limit on each of several keys, all or none; `Decision.each` is in their
        order. In a cluster the keys share a tag: "{acme}:user:7", "{acme}:all".
        """
        return await self._do(
            self._calls.take_all(
                limits,
                cost=cost,
                force=force,
                max_wait=max_wait,
                keep=keep,
                once=once,
                ttl=ttl,
                holder=holder,
            )
        )

    async def peek_all(
        self,
        limits: Mapping[Key, Limit],
        *,
        cost: Amount = 1,
        force: bool = False,
        max_wait: Duration | None = None,
        keep: Amount | str | None = None,
        holder: Key | None = None,
    ) -> Decision:
        """What `take_all` would answer now."""
        return await self._do(
            self._calls.take_all(
                limits,
                cost=cost,
                force=force,
                max_wait=max_wait,
                keep=keep,
                holder=holder,
                look=True,
            )
        )

    async def settle(
        self, key: Key, *limits: Limit, id: Key, cost: Amount, each: bool = False
    ) -> Decision:
        """What the call of this id turned out to cost. Usage becomes what it would be had that been
        charged from the beginning; more than was charged is charged in full.

        It is denied only if the id is not known, or no longer; nothing is changed then.
        """
        here = self._calls.settled_here(id, cost)
        if here is not None:
            return here
        return await self._do(self._calls.settle(key, limits, id=id, cost=cost, each=each))

    async def give_back(self, key: Key, *limits: Limit, cost: Amount = 1) -> Decision:
        """Takes so much from the present usage, whoever's it is. It is not sent again if its reply
        is lost: where that matters, `settle`.
        """
        return await self._do(self._calls.give_back(key, limits, cost=cost))

    def lease(
        self,
        key: Key,
        limit: Concurrency,
        holder: Key | None = None,
        *,
        wait: float | None = None,
    ) -> AsyncLease:
        """A place, for an `async with` block. `wait` is for how many seconds to wait for one:
        None, as long as it takes; 0, not at all. Then the block raises DeniedError.

        It waits in the server, first come first served, and on a connection of its own.
        """
        return AsyncLease(self._do, self._calls, key, limit, holder, wait, self._clock)

    async def release(self, key: Key, *holders: Key) -> int:
        """Gives leases back; how many were held."""
        return await self._do(self._calls.release(key, holders))

    def units(self, key: Key, *limits: Limit, batch: int = 100, keep: float = 1.0) -> AsyncUnits:
        """Units of a hot key, taken `batch` at a time and spent in this process within `keep`
        seconds.
        """
        return AsyncUnits(self._do, self._calls, key, limits, batch, keep, self._clock)

    async def ban(self, key: Key, time: Duration) -> int:
        """Bans the key for so long, never shorter than it is banned already; 0 lifts the ban. For
        how many milliseconds it is banned.
        """
        return await self._do(self._calls.ban(key, time))

    async def check(self) -> None:
        """To call at the start: SetupError says what is wrong, such as a server without the module,
        and UnavailableError that it is away.
        """
        await self._do(self._calls.check())

    @property
    def policies(self) -> Policies:
        return Policies(self)

    async def close(self) -> None:
        """Closes the connections that the limiter opened."""
        for client in self._own:
            await client.aclose()

    async def __aenter__(self) -> Limiter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _do(self, call: Call[T]) -> T:
        steps = self._sending.steps(call, self._node_name(call))
        try:
            sending = next(steps)
            while True:
                try:
                    reply = await self._send(sending)
                except Exception as error:  # noqa: PERF203  `steps` knows which it means
                    sending = steps.throw(error)
                else:
                    sending = steps.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _send(self, call: Call[Any]) -> Any:
        return await (self._ask(call) if call.until is None else self._wait(call, call.until))

    async def _wait(self, call: Call[Any], until: float) -> Any:
        """The server answers when there is room, or then."""
        client = self._client
        while (left := until - self._clock()) > 0:
            words, patience = blocking(call, left), left + self._timeout
            if not clients.is_cluster(client):
                waiting = self._waiting_at("", client.connection_pool)
                return await self._waited(waiting, words, patience)
            async with timeout(self._timeout):
                await client.initialize()
            node = clients.node_for(client, call.key, replica=False)
            waiting = self._waiting_at(node.name, node)
            try:
                return await self._waited(waiting, words, patience)
            except Exception as error:
                if not self._sending.may_be_elsewhere(error):
                    raise
            # The cluster's client finds the key. Who is still denied there waits there.
            reply = await self._ask(call)
            if call.is_over(reply):
                return reply
            await asyncio.sleep(uniform(0.5, 1.0) * MOVING)
        return await self._ask(call)

    async def _waited(self, client: Any, words: Sequence[Word], patience: float) -> Any:
        # Who is cancelled, or out of patience, closes the connection: its reply may come yet.
        try:
            async with timeout(patience if patience < LONGEST else None):
                return await client.execute_command(*words)
        except Exception as error:
            if self._sending.is_sent_away(error):
                await client.connection_pool.disconnect(inuse_connections=False)
            raise

    async def _ask(self, call: Call[Any]) -> Any:
        client = self._client_for(call)
        # Over all of it: a free connection, or a new one and its greetings, and the reply.
        async with timeout(self._timeout):
            if not clients.is_cluster(client):
                return await client.execute_command(*call.words)
            # Else redis-py would ask a node for the keys of each call before it sends it.
            await client.initialize()
            node = clients.node_for(client, call.key, replica=call.looks and self._replicas)
            return await client.execute_command(*call.words, target_nodes=node)


class Policies:
    """`limiter.policies`: limits that the server keeps under a name."""

    def __init__(self, limiter: Limiter) -> None:
        self._do = limiter._do
        self._calls = PolicyCalls()

    async def set(
        self,
        name: Key,
        *limits: Limit,
        ban: Ban | None = None,
        nx: bool = False,
        version: int | None = None,
    ) -> int:
        """The version that now stands. `nx`: if there is one, it stays. `version`: only over this
        one, else CallError.
        """
        return await self._do(self._calls.set(name, limits, ban, nx=nx, version=version))

    async def get(self, name: Key) -> PolicyState | None:
        return await self._do(self._calls.get(name))

    async def list(self, match: str | None = None) -> Sequence[PolicyLine]:
        """All, or those whose names match a pattern, as in KEYS."""
        return await self._do(self._calls.list(match))

    async def delete(self, *names: Key) -> int:
        """How many there were."""
        return await self._do(self._calls.delete(names))

    async def scale(self, name: Key, factor: Amount, time: Duration | None = None) -> Scale:
        """Multiplies all limits of the policy by 0 to 1000, for so long, or until it is changed."""
        return await self._do(self._calls.scale(name, factor, time))
