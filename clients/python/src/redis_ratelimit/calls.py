"""Calls of a limiter: from limits to words, and from a reply to a decision. No I/O."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from redis_ratelimit import sketches, words
from redis_ratelimit.call import Call, Undecided
from redis_ratelimit.decision import Decision, Source, combine, decode, decode_each, decode_fenced
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
        is_peek: bool = False,
    ) -> Call[Decision]:
        """Builds RL.TAKE, or with `is_peek` RL.PEEK, for limits on one key."""
        server_key, item = self._server_key_and_item(limits, key)
        if item is not None:
            sketches.refuse_options(once=once, ttl=ttl, ban=ban)
        options = words.options(cost, upto=upto, force=force, max_wait=max_wait, keep=keep)
        if each:
            options.append("EACH")
        # A lease is identified by its holder, and a peek leaves no record.
        needs_no_id = is_peek or all(isinstance(limit, Concurrency) for limit in limits)
        has_no_id = needs_no_id or item is not None
        once_id = None if has_no_id else self._ids.for_call(limits, once, ttl, cost, holder)
        call_id = None if once_id is None else once_id.id
        if holder is None:
            # A peek asks for a new holder, which has no lease yet.
            holder = uuid4().hex if is_peek else call_id
        command = "RL.PEEK" if is_peek else "RL.TAKE"
        costs = words.costs(limits, cost)

        def decode_with_id(reply: Sequence[Any], id: Key | None) -> Decision:
            if each:
                decision = decode_each(reply, [] if words.is_policy(limits) else costs)
            else:
                decision = decode(reply)
            return decision if id is None else replace(decision, id=id)

        def fallback(error: Undecided) -> Decision:
            local_key = sketches.local_key(server_key, item)
            charges = [Charge(local_key, *pair) for pair in zip(limits, costs, strict=True)]
            return self._fallback(
                error, charges, each=each, upto=upto, force=force, is_peek=is_peek, id=call_id
            )

        def with_id() -> Call[Decision]:
            self._ids.record_concurrency_policies(limits)
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

        without_id: Call[Decision] | None = None
        if once_id is not None and once_id.is_ours and not upto:
            words_without_id = words.single_key_command(
                command, server_key, limits, options, holder, ban, item
            )
            without_id = Call(
                server_key,
                words_without_id,
                lambda reply: decode_with_id(reply, None),
                resendable_for=0,
            )
        return Call(
            server_key,
            words.single_key_command(
                command, server_key, limits, options + words.once_words(once_id), holder, ban, item
            ),
            lambda reply: decode_with_id(reply, call_id),
            math.inf if needs_no_id else self._resendable_for(once_id, once),
            is_peek=is_peek,
            fallback=fallback,
            without_id=without_id,
            with_id=with_id
            if once_id is None and once is None and item is None and self._ids.by_default
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
        is_peek: bool = False,
    ) -> Call[Decision]:
        """Builds RL.MTAKE, or with `is_peek` RL.MPEEK, for limits on several keys."""
        words.require_limits(limits.values())
        places = [self._server_key_and_item([one], key) for key, one in limits.items()]
        has_items = any(item is not None for _, item in places)
        if has_items:
            sketches.refuse_options(once=once, ttl=ttl)
            sketches.require_distinct_keys([server_key for server_key, _ in places])
        has_no_id = is_peek or has_items
        once_id = (
            None if has_no_id else self._ids.for_call(limits.values(), once, ttl, cost, holder)
        )
        call_id = None if once_id is None else once_id.id
        options = words.options(cost, force=force, max_wait=max_wait, keep=keep)
        costs = words.costs(limits.values(), cost)
        charges = [
            Charge(sketches.local_key(*place), limit, one)
            for place, limit, one in zip(places, limits.values(), costs, strict=True)
        ]
        names = [limit.name for limit in limits.values()]
        if holder is None:
            holder = uuid4().hex if is_peek else call_id

        def decode_with_id(reply: Sequence[Any], id: Key | None) -> Decision:
            decision = decode_each(reply, costs)
            each = [replace(one, name=name) for one, name in zip(decision.each, names, strict=True)]
            return replace(decision, each=tuple(each), id=id)

        keys = [server_key for server_key, _ in places]
        command_words: list[Word] = ["RL.MPEEK" if is_peek else "RL.MTAKE", str(len(keys)), *keys]
        spec_words = [
            word
            for (_, item), limit in zip(places, limits.values(), strict=True)
            for word in limit.spec(holder, item)
        ]
        without_id: Call[Decision] | None = None
        if once_id is not None and once_id.is_ours:
            words_without_id = [*command_words, *options, *spec_words]
            without_id = Call(
                keys[0],
                words_without_id,
                lambda reply: decode_with_id(reply, None),
                resendable_for=0,
            )
        return Call(
            keys[0],
            [*command_words, *options, *words.once_words(once_id), *spec_words],
            lambda reply: decode_with_id(reply, call_id),
            math.inf if is_peek else self._resendable_for(once_id, once),
            is_peek=is_peek,
            fallback=lambda error: self._fallback(
                error, charges, each=True, force=force, is_peek=is_peek, id=call_id
            ),
            without_id=without_id,
        )

    def settle_locally(self, id: Key, cost: Amount) -> Decision | None:
        """Settles a charge that this process decided during an outage, and that the server does not
        know. Returns None if the charge is not such a charge.
        """
        if not isinstance(self._on_outage, Local):
            return None
        settled = self._on_outage.settle(id, float(cost))
        if settled is None:
            return None
        return replace(combine(settled, allowed=True, wait_ms=0), id=id)

    def settle(
        self, key: Key, limits: Sequence[Limit], *, id: Key, cost: Amount, each: bool = False
    ) -> Call[Decision]:
        """Builds a call that corrects the charge of this id to its actual cost."""
        key = self._server_key(limits, key)
        options: list[Word] = ["SETTLE", id, amount(cost, "cost"), *(["EACH"] if each else [])]
        costs = [] if words.is_policy(limits) else words.costs(limits, cost)
        return Call(
            key,
            words.single_key_command("RL.TAKE", key, limits, options, id, None),
            lambda reply: replace(decode_each(reply, costs) if each else decode(reply), id=id),
            invalidated_keys=[key],
            # Without a server the charge stays until the usage recovers.
            fallback=lambda error: replace(self._undecided(error, allowed=False), id=id),
        )

    def settle_all(self, limits: Mapping[Key, Limit], *, id: Key, cost: Amount) -> Call[Decision]:
        """Builds a call that corrects the charge of this id on several keys."""
        keys = [self._server_key([limit], key) for key, limit in limits.items()]
        costs = words.costs(limits.values(), cost)
        settled: list[Word] = ["RL.MTAKE", str(len(keys)), *keys, "SETTLE", id]
        specs = [word for limit in limits.values() for word in limit.spec(id)]
        return Call(
            keys[0],
            [*settled, amount(cost, "cost"), *specs],
            lambda reply: replace(decode_each(reply, costs), id=id),
            invalidated_keys=keys,
            fallback=lambda error: replace(self._undecided(error, allowed=False), id=id),
        )

    def give_back(self, key: Key, limits: Sequence[Limit], *, cost: Amount) -> Call[Decision]:
        key = self._server_key(limits, key)
        charges = [
            Charge(key, *pair) for pair in zip(limits, words.costs(limits, cost), strict=True)
        ]
        options: list[Word] = ["COST", f"-{amount(cost, 'cost', zero=False)}"]

        def fallback(error: Undecided) -> Decision:
            if isinstance(self._on_outage, Local) and not isinstance(error, FullError):
                decidable = self._on_outage.decidable(charges)
                if decidable:
                    each = self._on_outage.give_back(decidable)
                    return replace(combine(each, allowed=True, wait_ms=0), error=error)
            return self._undecided(error, allowed=False)

        return Call(
            key,
            words.single_key_command("RL.TAKE", key, limits, options, None, None),
            decode,
            # Not idempotent: a second delivery would give back twice.
            resendable_for=0,
            invalidated_keys=[key],
            fallback=fallback,
        )

    # Leases and bans

    def acquire(
        self,
        key: Key,
        limit: Concurrency,
        holder: Key,
        *,
        fence: bool = False,
        bypasses_breaker: bool = False,
        deadline: float | None = None,
    ) -> Call[Decision]:
        key = self._server_key([limit], key)
        acquire_words = ["RL.ACQUIRE", key, *limit.spec(holder)[1:], *(["FENCE"] if fence else [])]

        def fallback(error: Undecided) -> Decision:
            if not isinstance(error, FullError):
                raise error
            return self._undecided(error, allowed=False)

        return Call(
            key,
            acquire_words,
            decode_fenced if fence else decode,
            bypasses_breaker=bypasses_breaker,
            deadline=deadline,
            fallback=fallback,
        )

    def release(self, key: Key, holders: Sequence[Key]) -> Call[int]:
        key = self._prefixed(key)
        return Call(
            key, ["RL.RELEASE", key, *holders], int, bypasses_breaker=True, invalidated_keys=[key]
        )

    def ban(self, key: Key, time: Duration) -> Call[int]:
        key = self._prefixed(key)
        return Call(
            key, ["RL.BAN", key, duration(time, "duration", zero=True)], int, invalidated_keys=[key]
        )

    def reset(self, key: Key) -> Call[bool]:
        key = self._prefixed(key)
        return Call(key, ["DEL", key], bool, invalidated_keys=[key])

    def _prefixed(self, key: Key) -> Key:
        words.require_keys(key)
        if not self._prefix:
            return key
        return self._prefix + key if isinstance(key, str) else self._prefix.encode() + key

    def _server_key_and_item(self, limits: Collection[Limit], key: Key) -> tuple[Key, Key | None]:
        """Returns the key on the server and, if the limits are a sketch, the item."""
        words.require_limits(limits, key)
        sketch_key = sketches.key_of(limits)
        if sketch_key is None:
            return self._prefixed(key), None
        words.require_keys(key)
        return self._prefixed(sketch_key), key

    def _server_key(self, limits: Collection[Limit], key: Key) -> Key:
        """Returns the key on the server. Raises ValueError if the limits are a sketch."""
        words.require_limits(limits, key)
        sketches.refuse(limits)
        return self._prefixed(key)

    def check(self) -> Call[None]:
        """Builds a call that peeks at an unused key, and fails if the module is not loaded."""
        key = "redis-ratelimit:check"
        return Call(
            key,
            ["RL.PEEK", key, "FIXED", "1", "1s"],
            lambda _: None,
            is_peek=True,
            bypasses_breaker=True,
        )

    # Without a server

    def _fallback(
        self,
        error: Undecided,
        charges: Sequence[Charge],
        *,
        each: bool = False,
        upto: bool = False,
        force: bool = False,
        is_peek: bool = False,
        id: Key | None = None,
    ) -> Decision:
        local = self._on_outage
        # A full key is not an outage.
        if isinstance(error, FullError) or not isinstance(local, Local):
            allowed = local == "open" and not isinstance(error, FullError)
            return self._undecided(error, allowed=allowed, upto=upto, charges=charges)
        decidable = local.decidable(charges)
        if not decidable:
            return self._undecided(error, allowed=True, upto=upto, charges=charges)
        decisions = local.take(decidable, upto=upto, force=force, is_peek=is_peek, id=id)
        allowed = all(decisions)
        # The wait until the server is tried again, not until a local unit is free.
        wait_ms = 0 if allowed else self._retry_after_ms
        costs = [charge.cost for charge in decidable]
        decision = combine(decisions, costs, allowed=allowed, wait_ms=wait_ms)
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

    def _resendable_for(self, id: Id | None, once: Once) -> float:
        if id is not None:
            return id.seconds
        # By default a call has no idempotency key only where charging it twice is negligible.
        return math.inf if once is None and self._ids.by_default else 0
