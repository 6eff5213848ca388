"""Cache of denials in this process. No I/O.

The server's `wait` is exact: until it is over, the same call would be denied again, so this process
answers it. Other charges only make the wait longer. Units given back, a reset or a lifted ban
shorten it; client tracking (`tracking.py`) reports these, from the second denial of a key on.
Without tracking, a denial is remembered for a second at most. The same holds for a policy, whose
limits can change, and for an item of a sketch, whose key changes with each call for any item. A
policy with FORCE charges denied calls, so its denials are never answered here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any, TypeAlias

from redis_ratelimit import forks
from redis_ratelimit.decision import NEVER, Decision
from redis_ratelimit.limits import Limit, Policy, Sketch
from redis_ratelimit.quantities import Key

# Upper bounds of keys, and of calls per key. Beyond them a new denial is not remembered, as
# evicting one that still holds would cost a call for each call saved.
MAX_KEYS = 10_000
MAX_CALLS = 8

# Minimum seconds between two searches for expired denials.
SEARCH_INTERVAL = 0.1

# Seconds for which a denial of a key without tracking is remembered.
UNTRACKED_SECONDS = 1.0

# Seconds by which a wait may be too long, as the server rounds it up to whole milliseconds.
ROUNDING_ERROR = 0.001

# Arguments of a call that determine the server's reply for a key.
Arguments: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Denial:
    key: Key
    arguments: Arguments
    decision: Decision
    # Time of the reply: the wait began no later.
    received_at: float
    # End of the denial, counted from the time of sending: the wait began no earlier.
    ends_at: float
    # Event loop whose connection reports changes of the key; None for threads.
    loop: object
    # `True` if the key was denied before, so that tracking it is worthwhile.
    repeated: bool

    def remaining(self, now: float) -> Decision:
        """Returns the decision with the wait that is left at `now`."""
        return _remaining(self.decision, (now - self.received_at) * 1000)


class Denials:
    """Denials by key. Times are seconds of the limiter's clock. `prefix` is the prefix of every key
    on the server. With asyncio, `current_loop` returns the running event loop, as each loop has its
    own tracking.
    """

    _lock = forks.lock()

    def __init__(self, prefix: str, current_loop: Callable[[], object] = lambda: None) -> None:
        self._prefix = prefix.encode()
        self._current_loop = current_loop
        self._by_key: dict[Key, tuple[Denial, ...]] = {}
        # For each policy: `True` if it has FORCE, and the time until which that is cached.
        self._policies: dict[Limit, tuple[bool | None, float]] = {}
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        """Forgets all denials: the tracking belongs to the parent process."""
        self._by_key.clear()
        # Time until which no denial expires, so that none is searched for.
        self._full_until = -inf
        forks.forget(self, "_lock")

    def find(self, key: Key, arguments: Arguments, now: float) -> Denial | None:
        """Returns the denial of a call, if it is known and holds."""
        # Most keys have none. No lock is needed: tuples are replaced, never changed.
        for denial in self._by_key.get(key, ()):
            if (
                now < denial.ends_at
                and denial.arguments == arguments
                and denial.loop is self._current_loop()
            ):
                return denial
        return None

    def mark_repeated(self, denial: Denial) -> Denial | None:
        """Marks the key of a denial as denied before. Returns None if it was marked already."""
        with self._lock:
            return (
                self._replace(denial, replace(denial, repeated=True))
                if not denial.repeated
                else None
            )

    def remember(
        self, key: Key, arguments: Arguments, decision: Decision, sent_at: float, received_at: float
    ) -> Denial | None:
        """Remembers the denial of a call, until shortly before the server would let it pass.
        Returns the denial, or None if it was known or there is no room for it.
        """
        ends_at = _end(decision, sent_at, UNTRACKED_SECONDS)
        if decision.source != "server" or ends_at <= sent_at:
            return None
        with self._lock:
            known = self._by_key.get(key)
            if known is None and not self._has_room(sent_at):
                return None
            loop = self._current_loop()
            others = [one for one in known or () if one.ends_at > sent_at and one.loop is loop]
            if any(one.arguments == arguments for one in others):
                return None
            repeated = known is not None
            denial = Denial(key, arguments, decision, received_at, ends_at, loop, repeated)
            self._by_key[key] = (*others[-MAX_CALLS + 1 :], denial)
            return denial

    def policy_forces(self, policy: Limit, now: float) -> tuple[bool | None] | None:
        """Returns the answer that `learn_policy` cached, in a tuple, or None if there is none."""
        forces, until = self._policies.get(policy, (None, now))
        return (forces,) if now < until else None

    def learn_policy(self, policy: Limit, forces: bool | None, now: float) -> None:
        """Caches for a second if the policy has FORCE; None if the server did not answer."""
        if len(self._policies) >= MAX_KEYS:
            self._policies.clear()
        self._policies[policy] = (forces, now + UNTRACKED_SECONDS)

    def _has_room(self, now: float) -> bool:
        """Returns `True` if there is room for a new key, after removing expired denials."""
        if len(self._by_key) < MAX_KEYS:
            return True
        if now < self._full_until:
            return False
        live = {
            key: denials
            for key, denials in self._by_key.items()
            if any(now < denial.ends_at for denial in denials)
        }
        self._by_key = live
        if len(live) < MAX_KEYS:
            return True
        first_end = min(max(one.ends_at for one in denials) for denials in live.values())
        self._full_until = max(first_end, now + SEARCH_INTERVAL)
        return False

    def _replace(self, denial: Denial, replacement: Denial) -> Denial | None:
        """Replaces a denial. Returns None if it is no longer known."""
        known = self._by_key.get(denial.key, ())
        if not any(one is denial for one in known):
            return None
        self._by_key[denial.key] = tuple(replacement if one is denial else one for one in known)
        return replacement

    def extend(
        self, denial: Denial, decision: Decision, sent_at: float, received_at: float
    ) -> None:
        """Remembers the denial of a tracked key for its entire wait, or forgets it if a call would
        be allowed now. `decision` is the reply to a peek that was sent at `sent_at`.
        """
        if decision.allowed:
            self.forget(denial.key)
            return
        ends_at = _end(decision, sent_at, inf)
        extended = replace(denial, decision=decision, received_at=received_at, ends_at=ends_at)
        with self._lock:
            self._replace(denial, extended)

    def forget(self, key: Key) -> None:
        """Removes the denials of a key, whose usage may have changed."""
        with self._lock:
            if self._by_key.pop(key, None):
                self._full_until = -inf

    def forget_all(self) -> None:
        with self._lock:
            self._by_key.clear()
            self._full_until = -inf

    def changed(self, key: Key) -> None:
        """Removes the denials of a key that this process changed, by its name on the server."""
        self.invalidate(key.encode() if isinstance(key, str) else key)

    def invalidate(self, key: bytes | None) -> None:
        """Removes the denials of a key that the server reports as changed, by its name there. None:
        any key may have changed.
        """
        if key is None:
            self.forget_all()
        elif key.startswith(self._prefix):
            key_without_prefix = key[len(self._prefix) :]
            self.forget(key_without_prefix)
            self.forget(key_without_prefix.decode(errors="surrogateescape"))


def is_worth_tracking(decision: Decision, limits: Sequence[Limit]) -> bool:
    """Returns `True` if a denial outlasts `UNTRACKED_SECONDS` and tracking would report a change of
    it. The server reports no changes of a policy's limits, and a sketch changes all the time. A
    denial without end is refreshed each second, as the usage that it reports recovers meanwhile.
    """
    return decision.wait_ms > UNTRACKED_SECONDS * 1000 and not any(
        isinstance(limit, (Policy, Sketch)) for limit in limits
    )


def _end(decision: Decision, sent_at: float, max_seconds: float) -> float:
    """Returns the end of the denial of a call, at most `max_seconds` after it was sent."""
    wait = decision.wait_ms / 1000
    seconds = max_seconds if decision.wait_ms == NEVER else min(wait, max_seconds)
    return sent_at + seconds - ROUNDING_ERROR


def _remaining(decision: Decision, passed_ms: float) -> Decision:
    """Returns the decision after `passed_ms` milliseconds."""
    wait, reset = decision.wait_ms, decision.reset_ms
    return decision.but(
        wait_ms=wait if wait == NEVER else max(0, ceil(wait - passed_ms)),
        reset_ms=None if reset is None else max(0, ceil(reset - passed_ms)),
        each=tuple([_remaining(one, passed_ms) for one in decision.each]) if decision.each else (),
        remembered=True,
    )
