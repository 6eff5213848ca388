"""The limiter for asyncio. Its calls are those of `redis_ratelimit.Limiter`, awaited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from redis_ratelimit import clients, waits, words
from redis_ratelimit.aio_bound import AsyncBound
from redis_ratelimit.base import Base
from redis_ratelimit.call import Call
from redis_ratelimit.decision import Decision
from redis_ratelimit.errors import CallError, RateLimitError
from redis_ratelimit.ids import Once, to_be_settled
from redis_ratelimit.lease import AsyncLease
from redis_ratelimit.limits import Ban, Concurrency, Limit
from redis_ratelimit.named import name_and_limits
from redis_ratelimit.pending import pending
from redis_ratelimit.policies import PolicyCalls, PolicyLine, PolicyState, Scale
from redis_ratelimit.quantities import Amount, Duration, Key
from redis_ratelimit.rates import AnyLimit, by_key, limits_of
from redis_ratelimit.tasks import Interrupted, Transport
from redis_ratelimit.units import AsyncUnits

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from redis_ratelimit.options import TakeOptions

T = TypeVar("T")


class Limiter(Base):
    __doc__ = Base.__doc__
    _transport_kind = Transport

    @classmethod
    def from_url(
        cls, url: str, *, cluster: bool = False, timeout: float = 0.25, **options: Any
    ) -> Limiter:
        """Creates a limiter and its client. `options` are those of the constructor. The server need
        not be reachable yet.
        """
        client = clients.from_url(
            url, timeout, cluster=cluster, is_async=cls._transport_kind.is_async
        )
        limiter = cls(client, timeout=timeout, **options)
        limiter._own_clients.append(client)
        return limiter

    @pending
    async def take(
        self,
        key: Key,
        *limits: AnyLimit,
        cost: Amount = 1,
        upto: bool = False,
        force: bool = False,
        max_wait: Duration | None = None,
        keep: Amount | str | None = None,
        once: Once = None,
        ttl: Duration | None = None,
        refundable: bool = False,
        holder: Key | None = None,
        each: bool = False,
        ban: Ban | None = None,
        wait: float = 0.0,
    ) -> Decision:
        """Charges all limits on this key, or none. A limit may be a rate such as "100/minute".

        cost        units charged to each limit that has no cost of its own.
        upto        grant as many whole units as there are, up to the cost: `Decision.granted`.
        force       charge in full even past the limit.
        max_wait    also admit a call that fits within this time: hold it for `Decision.wait`.
        keep        pass only if this much remains: an amount, or a share such as "20%".
        once        your idempotency key, or True for a new one. False: none, and the call is not
                    resent. By default a new one where charging twice would matter.
        ttl         lifetime of the idempotency key, within which the charge can be settled. By
                    default 10 minutes for a key of yours, 1 minute for a call that charges several
                    units or is refundable, and otherwise as long as resends take.
        refundable  give the charge an idempotency key, so that `Decision.settle(0)` refunds it.
        holder      holder of the lease, if one of the limits is a concurrency limit. By default the
                    idempotency key.
        each        also return the decision of each limit: `Decision.each`.
        ban         ban a key that keeps calling while it is denied.
        wait        seconds to wait for a denied call to pass. If all limits are token buckets, one
                    call reserves the units; otherwise the call is repeated whenever it may pass.

        Raises CallError if the server rejects the call as malformed, SetupError if the server is
        misconfigured, and NoPolicyError if the policy does not exist.
        """
        parsed_limits = limits_of(limits)
        if refundable:
            once, ttl = to_be_settled(once, ttl)
            parsed_limits, cost = waits.hoist_cost(parsed_limits, cost)
        deadline, reservation = 0.0, 0.0
        if wait > 0:
            if await self._policy_forces(key, parsed_limits):
                raise CallError(waits.FORCED_POLICY)
            deadline = self._clock() + wait
            excludes_max_wait = upto or force or max_wait is not None
            if waits.can_reserve(parsed_limits, once=once, excludes_max_wait=excludes_max_wait):
                max_wait = reservation = waits.bounded(wait)
                once = True if once is None else once
                ttl = reservation + waits.REFUNDABLE_AFTER_START if ttl is None else ttl
        # Only the server can record a strike or answer a call with an idempotency key.
        may_remember = self._remembers_denials and not (
            upto or force or ban is not None or isinstance(once, (str, bytes))
        )
        arguments = (parsed_limits, cost, max_wait, keep, holder, each)
        attempts = 0
        while True:
            sent_at = self._clock()
            decision = self._remembered_denial(arguments, key, sent_at) if may_remember else None
            if decision is None:
                call = self._calls.take(
                    key,
                    parsed_limits,
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
                decision = await self._execute(call)
                if (
                    may_remember
                    and not decision.allowed
                    and await self._policy_forces(key, parsed_limits, decision) is False
                ):
                    self._remember_denial(arguments, key, decision, sent_at)
            if decision.allowed or not deadline or reservation:
                break
            attempts += 1
            pause = waits.pause(decision, attempts, deadline - self._clock())
            if pause is None:
                break
            await self._transport.sleep(pause)
        # A `Decision` is frozen, but this one is not shared yet.
        fields = decision.__dict__
        fields["limits"] = parsed_limits
        if not decision.allowed:
            return waits.without_reservation(decision, reservation) if reservation else decision
        if decision.id is not None:
            fields["_settle"] = partial(self._settle, key, parsed_limits, decision.id)
        elif decision.source == "none" or refundable:
            fields["_settle"] = partial(self._refund, decision, [(key, parsed_limits)], cost)
        return await self._wait_reserved(decision) if reservation and decision.wait_ms else decision

    async def _policy_forces(
        self, key: Key, limits: Sequence[Limit], decision: Decision | None = None
    ) -> bool | None:
        """Returns `True` if the limits are a policy with FORCE, or None if that is unknown."""
        if not words.is_policy(limits):
            return False
        if decision is not None and (decision.forced is not None or decision.source != "server"):
            return decision.forced
        cached = self._denials.policy_forces(limits[0], self._clock())
        if cached is not None:
            return cached[0]
        sent_at, forces = self._clock(), None
        with suppress(RateLimitError):  # the call itself raises the error
            forces = (await self._execute(self._calls.policy_facts(key, limits))).forced
        self._denials.learn_policy(limits[0], forces, sent_at)
        return forces

    async def _wait_reserved(self, decision: Decision) -> Decision:
        """Sleeps until the reserved units are due. Gives them back if the caller is interrupted."""
        try:
            await self._transport.sleep(decision.wait_ms / 1000)
        except Interrupted:
            with suppress(RateLimitError, ValueError):  # otherwise the units recover
                await decision.settle(0)
            raise
        return decision.but(wait_ms=0)

    @pending
    async def _settle(self, key: Key, limits: Sequence[Limit], id: Key, cost: Amount) -> Decision:
        return await self.settle(key, *limits, id=id, cost=cost)

    @pending
    async def _refund(
        self,
        decision: Decision,
        charges: Iterable[tuple[Key, Sequence[Limit]]],
        charged_cost: Amount,
        cost: Amount,
    ) -> Decision:
        """Settles a charge that has no idempotency key, for example because the key had no room for
        it. Such a charge can only be given back as a whole, and not at all if the server did not
        decide.
        """
        if decision.source != "none" and cost == 0:
            for key, limits in charges:
                await self.give_back(key, *limits, cost=charged_cost)
        return decision

    @pending
    async def peek(
        self,
        key: Key,
        *limits: AnyLimit,
        cost: Amount = 1,
        upto: bool = False,
        force: bool = False,
        max_wait: Duration | None = None,
        keep: Amount | str | None = None,
        holder: Key | None = None,
        each: bool = False,
        ban: Ban | None = None,
    ) -> Decision:
        """Returns the decision that `take` would make now. Changes nothing."""
        parsed_limits = limits_of(limits)
        decision = await self._execute(
            self._calls.take(
                key,
                parsed_limits,
                cost=cost,
                upto=upto,
                force=force,
                max_wait=max_wait,
                keep=keep,
                holder=holder,
                each=each,
                ban=ban,
                is_peek=True,
            )
        )
        decision.__dict__["limits"] = parsed_limits
        return decision

    @pending
    async def take_all(
        self,
        limits: Mapping[Key, AnyLimit],
        *,
        cost: Amount = 1,
        force: bool = False,
        max_wait: Duration | None = None,
        keep: Amount | str | None = None,
        once: Once = None,
        ttl: Duration | None = None,
        refundable: bool = False,
        holder: Key | None = None,
    ) -> Decision:
        """Charges one limit on each of several keys, all or none. `Decision.each` is in the order
        of the keys. In a cluster the keys share a hash tag: "{acme}:user:7", "{acme}:all".
        """
        parsed_limits = by_key(limits)
        if refundable:
            once, ttl = to_be_settled(once, ttl)
        decision = await self._execute(
            self._calls.take_all(
                parsed_limits,
                cost=cost,
                force=force,
                max_wait=max_wait,
                keep=keep,
                once=once,
                ttl=ttl,
                holder=holder,
            )
        )
        fields = decision.__dict__
        fields["limits"] = tuple(parsed_limits.values())
        if decision.allowed and decision.id is not None:
            fields["_settle"] = partial(self._settle_all, parsed_limits, decision.id)
        elif decision.allowed and (decision.source == "none" or refundable):
            charges = [(key, (limit,)) for key, limit in parsed_limits.items()]
            fields["_settle"] = partial(self._refund, decision, charges, cost)
        return decision

    @pending
    async def _settle_all(self, limits: Mapping[Key, Limit], id: Key, cost: Amount) -> Decision:
        decision = self._calls.settle_locally(id, cost)
        if decision is None:
            decision = await self._execute(self._calls.settle_all(limits, id=id, cost=cost))
        decision.__dict__["limits"] = tuple(limits.values())
        return decision

    @pending
    async def peek_all(
        self,
        limits: Mapping[Key, AnyLimit],
        *,
        cost: Amount = 1,
        force: bool = False,
        max_wait: Duration | None = None,
        keep: Amount | str | None = None,
        holder: Key | None = None,
    ) -> Decision:
        """Returns the decision that `take_all` would make now. Changes nothing."""
        parsed_limits = by_key(limits)
        decision = await self._execute(
            self._calls.take_all(
                parsed_limits,
                cost=cost,
                force=force,
                max_wait=max_wait,
                keep=keep,
                holder=holder,
                is_peek=True,
            )
        )
        decision.__dict__["limits"] = tuple(parsed_limits.values())
        return decision

    @pending
    async def settle(
        self, key: Key, *limits: AnyLimit, id: Key, cost: Amount, each: bool = False
    ) -> Decision:
        """Corrects the charge with this idempotency key to the actual cost. Usage becomes the same
        as if that cost had been charged from the beginning; a higher cost is charged in full.

        Denied only if the idempotency key is unknown or expired. Nothing changes then.
        """
        parsed_limits = limits_of(limits)
        decision = self._calls.settle_locally(id, cost)
        if decision is None:
            decision = await self._execute(
                self._calls.settle(key, parsed_limits, id=id, cost=cost, each=each)
            )
        decision.__dict__["limits"] = parsed_limits
        return decision

    @pending
    async def give_back(self, key: Key, *limits: AnyLimit, cost: Amount = 1) -> Decision:
        """Subtracts `cost` from the current usage, whichever call charged it. The call is not
        resent if its reply is lost; use `settle` where that matters.
        """
        parsed_limits = limits_of(limits)
        decision = await self._execute(self._calls.give_back(key, parsed_limits, cost=cost))
        decision.__dict__["limits"] = parsed_limits
        return decision

    def lease(
        self,
        key: Key,
        limit: Concurrency,
        holder: Key | None = None,
        *,
        wait: float | None = 0.0,
        fence: bool = False,
    ) -> AsyncLease:
        """Returns a lease for an `async with` block. `wait` is the timeout in seconds: 0 does not
        wait, None waits without a timeout. After the timeout the block raises DeniedError.

        The call waits in the server's queue, first come first served, on a connection of its own.
        With `fence`, `lease.token` is larger than the token of every earlier lease: the storage to
        which the work writes should reject smaller tokens.
        """
        return AsyncLease(self._execute, self._calls, key, limit, holder, wait, self._clock, fence)

    async def release(self, key: Key, *holders: Key) -> int:
        """Releases leases and returns how many of them were held."""
        return await self._execute(self._calls.release(key, holders))

    def units(
        self,
        key: Key,
        *limits: AnyLimit,
        batch: int | None = None,
        keep: float = 1.0,
        peers: int | None = None,
    ) -> AsyncUnits:
        """Returns units of a hot key, which are taken in batches and spent in this process.

        batch       maximum units of a batch. By default a hundredth of the limit.
        keep        seconds after which unspent units are given back.
        peers       number of processes that share the limit: in place of a hundredth, a batch has
                    at most the limit divided by four times that number.
        """
        arguments = (key, limits_of(limits), batch, keep, peers)
        return AsyncUnits(self._execute, self._calls, *arguments, self._clock)

    def limit(
        self, name: AnyLimit, *limits: AnyLimit, **options: Unpack[TakeOptions]
    ) -> AsyncBound:
        """Binds limits to a name: `api.take("user:42")`. A key is the name, a colon and the caller.
        Without a name, keys begin with the canonical words of the limits instead:
        `limiter.limit(Fixed(100, "1m"))`. `options` are those of `take`.

        Raises ValueError if the name is bound to limits of another algorithm or window.
        """
        bound = AsyncBound(self, *name_and_limits((name, *limits)), {**options})
        self._names.bind(bound)
        return bound

    def _bind_unchecked(self, name: str, limits: tuple[Limit, ...]) -> AsyncBound:
        """Binds limits to a name that may already have limits of another algorithm or window."""
        return AsyncBound(self, name, limits, {})

    @pending
    async def reset(self, key: Key) -> bool:
        """Deletes the usage of the key. Returns `True` if there was any."""
        return await self._execute(self._calls.reset(key))

    async def ban(self, key: Key, time: Duration) -> int:
        """Bans the key for `time`, which never shortens an existing ban; 0 lifts the ban. Returns
        the remaining ban in milliseconds.
        """
        return await self._execute(self._calls.ban(key, time))

    async def check(self) -> None:
        """Checks the server at the start of an application. Raises SetupError if it is
        misconfigured, for example without the module, and UnavailableError if it cannot be reached.
        """
        await self._execute(self._calls.check())

    @property
    def policies(self) -> Policies:
        return Policies(self)

    async def close(self) -> None:
        """Closes the connections that the limiter opened."""
        await self._transport.close()
        if self._peek_transport is not self._transport:
            await self._peek_transport.close()
        for client in self._own_clients:
            await client.aclose()

    async def __aenter__(self) -> Limiter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _execute(self, call: Call[T]) -> T:
        transport = self._peek_transport if call.is_peek else self._transport
        steps = self._sending.steps(call, transport.node_of(call), transport.address)
        try:
            sending = next(steps)
            while True:
                try:
                    if sending.deadline is None:
                        reply = await transport.send(sending)
                    else:
                        reply = await transport.wait(sending, sending.deadline)
                except Exception as error:  # noqa: PERF203  `steps` decides which errors it handles
                    sending = steps.throw(error)
                else:
                    sending = steps.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            for key in call.invalidated_keys:
                self._denials.changed(key)


class Policies:
    """Named limits stored on the server: `limiter.policies`."""

    def __init__(self, limiter: Limiter) -> None:
        self._execute = limiter._execute
        self._calls = PolicyCalls()

    async def set(
        self,
        name: Key,
        *limits: AnyLimit,
        ban: Ban | None = None,
        nx: bool = False,
        version: int | None = None,
    ) -> int:
        """Sets a policy and returns its version. With `nx`, an existing policy is kept. With
        `version`, only that version is replaced; otherwise CallError.
        """
        return await self._execute(
            self._calls.set(name, limits_of(limits), ban, nx=nx, version=version)
        )

    async def get(self, name: Key) -> PolicyState | None:
        return await self._execute(self._calls.get(name))

    async def list(self, match: str | None = None) -> Sequence[PolicyLine]:
        """Returns all policies, or those whose names match a glob pattern, as in KEYS."""
        return await self._execute(self._calls.list(match))

    async def delete(self, *names: Key, version: int | None = None) -> int:
        """Deletes policies and returns how many existed. With `version` and a single name, only
        that version is deleted; otherwise CallError.
        """
        return await self._execute(self._calls.delete(names, version))

    async def scale(self, name: Key, factor: Amount, time: Duration | None = None) -> Scale:
        """Sets the scale of the policy, a factor from 0 to 1000 for all its limits. It lasts for
        `time`, or until it is changed.
        """
        return await self._execute(self._calls.scale(name, factor, time))

    async def multiply(
        self,
        name: Key,
        factor: Amount,
        *,
        least: Amount | None = None,
        every: Duration | None = None,
        time: Duration | None = None,
    ) -> Scale:
        """Multiplies the current scale by a factor from 0 to 1, down to `least`, unless it was
        multiplied within `every`. The result lasts for `time`, or until the current scale ends.
        """
        return await self._execute(self._calls.multiply(name, factor, least, every, time))

    async def add(
        self,
        name: Key,
        step: Amount,
        *,
        most: Amount | None = None,
        every: Duration | None = None,
        time: Duration | None = None,
    ) -> Scale:
        """Adds `step` to the current scale, up to `most`, unless it was increased within `every`.
        The result lasts for `time`, or until the current scale ends.
        """
        return await self._execute(self._calls.add(name, step, most, every, time))
