"""Calls of a limiter: from limits to words, and from a reply to a decision. No I/O."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from redis_ratelimit import sketches, words
from redis_ratelimit.call import Call, Undecided
from redis_ratelimit.decision import Decision, Source, read, read_each, read_fenced, together
from redis_ratelimit.errors import FullError
from redis_ratelimit.ids import Id, Ids, Once
from redis_ratelimit.limits import Ban, Concurrency, Limit
from redis_ratelimit.local import Charge, Local
from redis_ratelimit.quantities import Amount, Duration, Key, Word, amount, duration

# Fallback while the server does not decide: allow every call, deny every call, raise an error, or
# decide by limits of this process.
OnOutage: TypeAlias = Literal["open", "closed", "raise"] | Local


class Calls:
    """Builder of the calls of a limiter.

    `retry_after` is the number of seconds after which an unreachable server is tried again.
    """

    def __init__(
        self,
        on_outage: OnOutage,
        *,
        prefix: str,
        ids: Ids,
        retry_after: float,
    ) -> None:
        if not isinstance(on_outage, Local) and on_outage not in {"open", "closed", "raise"}:
            raise ValueError(
                f'on_outage must be "open", "closed", "raise" or a Local, not {on_outage!r}'
            )
        self._on_outage = on_outage
        self._prefix = prefix
        self._ids = ids
        self._retry_after_ms = round(retry_after * 1000)

    # Decisions

    def take(
        self,
        key: Key,
        limits: Sequence[Limit],
        *,
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
        look: bool = False,
    ) -> Call[Decision]:
        """Builds a call over limits on one key; with `look` it changes nothing."""
        full, item = self._place(limits, key)
        if item is not None:
            sketches.only_charged(once=once, ttl=ttl, ban=ban)
        options = words.options(cost, upto=upto, force=force, max_wait=max_wait, keep=keep)
        if each:
            options.append("EACH")
        # A lease is identified by its holder, and a peek leaves no record.
        needs_none = look or all(isinstance(limit, Concurrency) for limit in limits)
        has_none = needs_none or item is not None
        once_id = None if has_none else self._ids.of(limits, once, ttl, cost, holder)
        identity = None if once_id is None else once_id.id
        if holder is None:
            # A peek asks for a new holder, which has no lease yet.
            holder = uuid4().hex if look else identity
        command = "RL.PEEK" if look else "RL.TAKE"
        costs = words.costs(limits, cost)

        def decode(reply: Sequence[Any], id: Key | None) -> Decision:
            if each:
                decision = read_each(reply, [] if words.is_policy(limits) else costs)
            else:
                decision = read(reply)
            return decision if id is None else replace(decision, id=id)

        def without(error: Undecided) -> Decision:
            local_key = sketches.local_key(full, item)
            charges = [Charge(local_key, *pair) for pair in zip(limits, costs, strict=True)]
            return self._without(
                error, charges, each=each, upto=upto, force=force, look=look, id=identity
            )

        def named() -> Call[Decision]:
            self._ids.learn(limits)
            return self.take(
                key,
                limits,
                cost=cost,
                upto=upto,
                force=force,
                max_wait=max_wait,
                keep=keep,
                once=True,
                ttl=ttl,
                each=each,
                ban=ban,
            )

        unnamed: Call[Decision] | None = None
        if once_id is not None and once_id.is_ours and not upto:
            without_id = words.one_key(command, full, limits, options, holder, ban, item)
            unnamed = Call(full, without_id, lambda reply: decode(reply, None), repeatable=0)
        return Call(
            full,
            words.one_key(command, full, limits, options + words.of_id(once_id), holder, ban, item),
            lambda reply: decode(reply, identity),
            math.inf if needs_none else self._repeatable(once_id, once),
            is_peek=look,
            without=without,
            unnamed=unnamed,
            named=named
            if once_id is None and once is None and item is None and self._ids.may_have
            else None,
        )

    def policy_facts(self, key: Key, limits: Sequence[Limit]) -> Call[Decision]:
        """Builds a call that charges nothing and reports whether the policy has FORCE."""
        return self.take(key, [limits[0].without_cost()], cost=0, each=True)

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
        look: bool = False,
    ) -> Call[Decision]:
        """Builds a call over limits on several keys."""
        words.refuse_no_limits(limits.values())
        places = [self._place([one], key) for key, one in limits.items()]
        has_items = any(item is not None for _, item in places)
        if has_items:
            sketches.only_charged(once=once, ttl=ttl)
            sketches.each_once([full for full, _ in places])
        has_none = look or has_items
        once_id = None if has_none else self._ids.of(limits.values(), once, ttl, cost, holder)
        identity = None if once_id is None else once_id.id
        options = words.options(cost, force=force, max_wait=max_wait, keep=keep)
        costs = words.costs(limits.values(), cost)
        charges = [
            Charge(sketches.local_key(*place), limit, one)
            for place, limit, one in zip(places, limits.values(), costs, strict=True)
        ]
        names = [limit.name for limit in limits.values()]
        if holder is None:
            holder = uuid4().hex if look else identity

        def decode(reply: Sequence[Any], id: Key | None) -> Decision:
            decision = read_each(reply, costs)
            each = [replace(one, name=name) for one, name in zip(decision.each, names, strict=True)]
            return replace(decision, each=tuple(each), id=id)

        keys = [full for full, _ in places]
        first: list[Word] = ["RL.MPEEK" if look else "RL.MTAKE", str(len(keys)), *keys]
        last = [
            word
            for (_, item), limit in zip(places, limits.values(), strict=True)
            for word in limit.spec(holder, item)
        ]
        unnamed: Call[Decision] | None = None
        if once_id is not None and once_id.is_ours:
            without_id = [*first, *options, *last]
            unnamed = Call(keys[0], without_id, lambda reply: decode(reply, None), repeatable=0)
        return Call(
            keys[0],
            [*first, *options, *words.of_id(once_id), *last],
            lambda reply: decode(reply, identity),
            math.inf if look else self._repeatable(once_id, once),
            is_peek=look,
            without=lambda error: self._without(
                error, charges, each=True, force=force, look=look, id=identity
            ),
            unnamed=unnamed,
        )

    def settled_here(self, id: Key, cost: Amount) -> Decision | None:
        """Settles a charge of this process, which the server does not know. Returns None if this
        process did not charge it.
        """
        if not isinstance(self._on_outage, Local):
            return None
        settled = self._on_outage.settle(id, float(cost))
        return None if settled is None else replace(together(True, 0, settled), id=id)

    def settle(
        self, key: Key, limits: Sequence[Limit], *, id: Key, cost: Amount, each: bool = False
    ) -> Call[Decision]:
        """Builds a call that corrects the charge of this id to its actual cost."""
        key = self._own_key(limits, key)
        options: list[Word] = ["SETTLE", id, amount(cost, "cost"), *(["EACH"] if each else [])]
        costs = [] if words.is_policy(limits) else words.costs(limits, cost)
        return Call(
            key,
            words.one_key("RL.TAKE", key, limits, options, id, None),
            lambda reply: replace(read_each(reply, costs) if each else read(reply), id=id),
            frees=[key],
            # The request is over. Its charge stays until it recovers.
            without=lambda error: replace(self._undecided(error, allowed=False), id=id),
        )

    def settle_all(self, limits: Mapping[Key, Limit], *, id: Key, cost: Amount) -> Call[Decision]:
        """Builds a call that corrects the charge of this id on several keys."""
        keys = [self._own_key([limit], key) for key, limit in limits.items()]
        costs = words.costs(limits.values(), cost)
        settled: list[Word] = ["RL.MTAKE", str(len(keys)), *keys, "SETTLE", id]
        specs = [word for limit in limits.values() for word in limit.spec(id)]
        return Call(
            keys[0],
            [*settled, amount(cost, "cost"), *specs],
            lambda reply: replace(read_each(reply, costs), id=id),
            frees=keys,
            without=lambda error: replace(self._undecided(error, allowed=False), id=id),
        )

    def give_back(self, key: Key, limits: Sequence[Limit], *, cost: Amount) -> Call[Decision]:
        key = self._own_key(limits, key)
        charges = [
            Charge(key, *pair) for pair in zip(limits, words.costs(limits, cost), strict=True)
        ]
        options: list[Word] = ["COST", f"-{amount(cost, 'cost', zero=False)}"]

        def without(error: Undecided) -> Decision:
            if isinstance(self._on_outage, Local) and not isinstance(error, FullError):
                known = self._on_outage.known(charges)
                if known:
                    decision = together(True, 0, self._on_outage.give_back(known))
                    return replace(decision, error=error)
            return self._undecided(error, allowed=False)

        return Call(
            key,
            words.one_key("RL.TAKE", key, limits, options, None, None),
            read,
            # Not idempotent: a second delivery would give back twice.
            repeatable=0,
            frees=[key],
            without=without,
        )

    # Leases and bans

    def acquire(
        self,
        key: Key,
        limit: Concurrency,
        holder: Key,
        *,
        fence: bool = False,
        insists: bool = False,
        until: float | None = None,
    ) -> Call[Decision]:
        key = self._own_key([limit], key)
        acquired = ["RL.ACQUIRE", key, *limit.spec(holder)[1:], *(["FENCE"] if fence else [])]

        def without(error: Undecided) -> Decision:
            if not isinstance(error, FullError):
                raise error
            return self._undecided(error, allowed=False)

        reads = read_fenced if fence else read
        return Call(key, acquired, reads, insists=insists, until=until, without=without)

    def release(self, key: Key, holders: Sequence[Key]) -> Call[int]:
        key = self._prefixed(key)
        return Call(key, ["RL.RELEASE", key, *holders], int, insists=True, frees=[key])

    def ban(self, key: Key, time: Duration) -> Call[int]:
        key = self._prefixed(key)
        return Call(key, ["RL.BAN", key, duration(time, "duration", zero=True)], int, frees=[key])

    def reset(self, key: Key) -> Call[bool]:
        key = self._prefixed(key)
        return Call(key, ["DEL", key], bool, frees=[key])

    def _prefixed(self, key: Key) -> Key:
        words.refuse_other_than_keys(key)
        if not self._prefix:
            return key
        return self._prefix + key if isinstance(key, str) else self._prefix.encode() + key

    def _place(self, limits: Collection[Limit], key: Key) -> tuple[Key, Key | None]:
        """Returns the key on the server and, if the limits are a sketch, the item."""
        words.refuse_no_limits(limits, key)
        sketch_key = sketches.key_of(limits)
        if sketch_key is None:
            return self._prefixed(key), None
        words.refuse_other_than_keys(key)
        return self._prefixed(sketch_key), key

    def _own_key(self, limits: Collection[Limit], key: Key) -> Key:
        """Returns the key on the server. Raises ValueError if the limits are a sketch."""
        words.refuse_no_limits(limits, key)
        sketches.refuse(limits)
        return self._prefixed(key)

    def check(self) -> Call[None]:
        """Builds a call that fails unless the module is loaded, by peeking at an unused key."""
        key = "redis-ratelimit:check"
        return Call(
            key, ["RL.PEEK", key, "FIXED", "1", "1s"], lambda _: None, is_peek=True, insists=True
        )

    # Without a server

    def _without(
        self,
        error: Undecided,
        charges: Sequence[Charge],
        *,
        each: bool = False,
        upto: bool = False,
        force: bool = False,
        look: bool = False,
        id: Key | None = None,
    ) -> Decision:
        local = self._on_outage
        # A full key is not an outage.
        if isinstance(error, FullError) or not isinstance(local, Local):
            allowed = local == "open" and not isinstance(error, FullError)
            return self._undecided(error, allowed=allowed, upto=upto, charges=charges)
        known = local.known(charges)
        if not known:
            return self._undecided(error, allowed=True, upto=upto, charges=charges)
        decisions = local.take(known, upto=upto, force=force, look=look, id=id)
        allowed = all(decisions)
        # The wait until the server is tried again, not until a local unit is free.
        wait_ms = 0 if allowed else self._retry_after_ms
        decision = together(allowed, wait_ms, decisions, [charge.cost for charge in known])
        return replace(decision, id=id, each=decision.each if each else (), error=error)

    def _undecided(
        self,
        error: Undecided,
        *,
        allowed: bool,
        upto: bool = False,
        charges: Sequence[Charge] = (),
    ) -> Decision:
        if self._on_outage == "raise" and not isinstance(error, FullError):
            raise error
        source: Source = "none"
        wait_ms = 0 if allowed else self._retry_after_ms
        granted = (int(charges[0].cost) if allowed else 0) if upto else None
        return Decision(allowed, None, None, wait_ms, None, granted, source=source, error=error)

    def _repeatable(self, id: Id | None, once: Once) -> float:
        if id is not None:
            return id.seconds
        # A call gets no idempotency key only where a double charge is negligible.
        return math.inf if once is None and self._ids.may_have else 0
