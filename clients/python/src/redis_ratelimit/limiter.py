# Made of aio.py by scripts/make_sync.py: edit that file, and run `make sync`.

"""The limiter, for programs with threads or none. `redis_ratelimit.aio` has the one for asyncio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from redis_ratelimit import clients
from redis_ratelimit.base import Base
from redis_ratelimit.bound import Bound
from redis_ratelimit.call import Call
from redis_ratelimit.decision import Decision
from redis_ratelimit.ids import Once
from redis_ratelimit.lease import Lease
from redis_ratelimit.limits import Ban, Concurrency, Limit
from redis_ratelimit.policies import PolicyCalls, PolicyLine, PolicyState, Scale
from redis_ratelimit.quantities import Amount, Duration, Key
from redis_ratelimit.threads import Transport
from redis_ratelimit.units import Units

T = TypeVar("T")


class Limiter(Base):
    __doc__ = Base.__doc__
    _transport_kind = Transport

    @classmethod
    def from_url(
        cls, url: str, *, cluster: bool = False, timeout: float = 0.25, **options: Any
    ) -> Limiter:
        """`options` are those of the constructor. The server may be away yet."""
        client = clients.from_url(
            url, timeout, cluster=cluster, is_async=cls._transport_kind.is_async
        )
        limiter = cls(client, timeout=timeout, **options)
        limiter._own.append(client)
        return limiter

    def take(
        self,
        key: Key,
        *limits: Limit,
        cost: Amount = 1,
        upto: bool = False,
        force: bool = False,
        max_wait: Duration | None = None,
        keep: Amount | str | None = None,
        once: Once = None,
        ttl: Duration | None = None,
        holder: Key | None = None,
        each: bool = False,
        ban: Ban | None = None,
        wait: float = 0.0,
    ) -> Decision:
        """Charges all limits on this key, or none.

        cost        what is charged of each limit that has no cost of its own.
        upto        grant as many whole units as there are, up to the cost: `Decision.granted`.
        force       charge in full even past the limit.
        max_wait    admit, too, what will fit within so long: hold it for `Decision.wait`.
        keep        pass only if so much stays: an amount, or a share such as "20%".
        once        an idempotency key of yours, or True: a new one. False: none, and the call is
                    not sent again. By default a new one where charging twice would matter.
        ttl         how long the idempotency key is remembered: as long as the charge may be
                    settled. Yours: 10 minutes. Of a call for several units: 1 minute. Else: as
                    long as resends take.
        holder      whose lease it is, of a concurrency limit among the limits. Without one it is
                    the id.
        each        what each limit says: `Decision.each`.
        ban         whoever goes on although denied is banned.
        wait        if it is denied, for how many seconds to wait until it passes, with a call each
                    time that it may.

        CallError if the server refuses the call as it is, SetupError if it is set up in a way that
        cannot work, NoPolicyError if there is no such policy.
        """
        until = self._clock() + wait if wait else 0.0
        # A denial that is a strike, or an answer to an id, is the server's to make.
        remembers = self._remembers and not (
            upto or force or ban is not None or isinstance(once, (str, bytes))
        )
        asked = (limits, cost, max_wait, keep, holder, each)
        while True:
            sent_at = self._clock()
            decision = self._denials.find(key, asked, sent_at) if remembers else None
            if decision is None:
                call = self._calls.take(
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
                decision = self._do(call)
                if remembers and not decision.allowed:
                    self._denied(asked, key, limits, decision, sent_at)
            if decision.allowed:
                break
            if decision.wait is None or not wait:
                break
            # Others may come first: a wait of 0 is none.
            pause = max(decision.wait, 0.001)
            if decision.degraded or self._clock() + pause > until:
                break
            self._transport.sleep(pause)
        if decision.id is not None and decision.allowed:
            settle = partial(self._settle, key, limits, decision.id)
            object.__setattr__(decision, "_settle", settle)
        return decision

    def _settle(self, key: Key, limits: Sequence[Limit], id: Key, cost: Amount) -> Decision:
        return self.settle(key, *limits, id=id, cost=cost)

    def peek(
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
        return self._do(
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

    def take_all(
        self,
        limits: Mapping[Key, Limit],
        *,
        cost: Amount = 1,
        force: bool = False,
        max_wait: Duration | None = None,
        keep: Amount | str | None = None,
        once: Once = None,
        ttl: Duration | None = None,
        holder: Key | None = None,
    ) -> Decision:
        """Charges one limit on each of several keys, all or none; `Decision.each` is in their
        order. In a cluster the keys share a tag: "{acme}:user:7", "{acme}:all".
        """
        return self._do(
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

    def peek_all(
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
        return self._do(
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

    def settle(
        self, key: Key, *limits: Limit, id: Key, cost: Amount, each: bool = False
    ) -> Decision:
        """What the call of this id turned out to cost. Usage becomes what it would be had that been
        charged from the beginning; more than was charged is charged in full.

        It is denied only if the id is not known, or no longer; nothing is changed then.
        """
        here = self._calls.settled_here(id, cost)
        if here is not None:
            return here
        return self._do(self._calls.settle(key, limits, id=id, cost=cost, each=each))

    def give_back(self, key: Key, *limits: Limit, cost: Amount = 1) -> Decision:
        """Takes so much from the present usage, whoever's it is. It is not sent again if its reply
        is lost: where that matters, `settle`.
        """
        return self._do(self._calls.give_back(key, limits, cost=cost))

    def lease(
        self,
        key: Key,
        limit: Concurrency,
        holder: Key | None = None,
        *,
        wait: float | None = None,
        fence: bool = False,
    ) -> Lease:
        """A place, for a `with` block. `wait` is for how many seconds to wait for one:
        None, as long as it takes; 0, not at all. Then the block raises DeniedError.

        It waits in the server, first come first served, and on a connection of its own. With
        `fence`, `lease.token` is larger than that of every lease before: let the storage that the
        work writes to refuse a smaller one.
        """
        return Lease(self._do, self._calls, key, limit, holder, wait, self._clock, fence)

    def release(self, key: Key, *holders: Key) -> int:
        """Gives leases back; how many were held."""
        return self._do(self._calls.release(key, holders))

    def units(self, key: Key, *limits: Limit, batch: int = 100, keep: float = 1.0) -> Units:
        """Units of a hot key, taken `batch` at a time and spent in this process within `keep`
        seconds.
        """
        return Units(self._do, self._calls, key, limits, batch, keep, self._clock)

    def limit(self, name: str, *limits: Limit, **options: Any) -> Bound:
        """The limits under a name, to be asked for whom they are: `api.take("user:42")`. The keys
        are the name, a colon and whoever it is. `options` are those of `take`.
        """
        return Bound(self, name, limits, options)

    def reset(self, key: Key) -> bool:
        """Forgets all that the key has used; whether there was anything."""
        return self._do(self._calls.reset(key))

    def ban(self, key: Key, time: Duration) -> int:
        """Bans the key for so long, never shorter than it is banned already; 0 lifts the ban. For
        how many milliseconds it is banned.
        """
        return self._do(self._calls.ban(key, time))

    def check(self) -> None:
        """To call at the start: SetupError says what is wrong, such as a server without the module,
        and UnavailableError that it is away.
        """
        self._do(self._calls.check())

    @property
    def policies(self) -> Policies:
        return Policies(self)

    def close(self) -> None:
        """Closes the connections that the limiter opened."""
        self._transport.close()
        if self._peeking is not self._transport:
            self._peeking.close()
        for client in self._own:
            client.close()

    def __enter__(self) -> Limiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, call: Call[T]) -> T:
        transport = self._peeking if call.looks else self._transport
        steps = self._sending.steps(call, transport.node_of(call), transport.place)
        try:
            sending = next(steps)
            while True:
                try:
                    if sending.until is None:
                        reply = transport.ask(sending)
                    else:
                        reply = transport.wait(sending, sending.until)
                except Exception as error:  # noqa: PERF203  `steps` knows which it means
                    sending = steps.throw(error)
                else:
                    sending = steps.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            if call.frees:
                self._denials.changed(call.key)


class Policies:
    """`limiter.policies`: limits that the server keeps under a name."""

    def __init__(self, limiter: Limiter) -> None:
        self._do = limiter._do
        self._calls = PolicyCalls()

    def set(
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
        return self._do(self._calls.set(name, limits, ban, nx=nx, version=version))

    def get(self, name: Key) -> PolicyState | None:
        return self._do(self._calls.get(name))

    def list(self, match: str | None = None) -> Sequence[PolicyLine]:
        """All, or those whose names match a pattern, as in KEYS."""
        return self._do(self._calls.list(match))

    def delete(self, *names: Key, version: int | None = None) -> int:
        """How many there were. `version`, with one name: only this one, else CallError."""
        return self._do(self._calls.delete(names, version))

    def scale(self, name: Key, factor: Amount, time: Duration | None = None) -> Scale:
        """Multiplies all limits of the policy by 0 to 1000, for so long, or until it is changed."""
        return self._do(self._calls.scale(name, factor, time))

    def multiply(
        self,
        name: Key,
        factor: Amount,
        *,
        least: Amount | None = None,
        every: Duration | None = None,
        time: Duration | None = None,
    ) -> Scale:
        """Multiplies the scale that stands by 0 to 1, down to `least`, unless it was multiplied
        within `every`. For so long, or until the end that stands.
        """
        return self._do(self._calls.multiply(name, factor, least, every, time))

    def add(
        self,
        name: Key,
        step: Amount,
        *,
        most: Amount | None = None,
        every: Duration | None = None,
        time: Duration | None = None,
    ) -> Scale:
        """Adds to the scale that stands, up to `most`, unless it was added to within `every`. For
        so long, or until the end that stands.
        """
        return self._do(self._calls.add(name, step, most, every, time))
