"""Denials that this process remembers. No I/O.

The server's `wait` is exact, so until it is over the same call would be denied again, and is
answered here. What others take only makes the wait longer. What they give back, a reset or a ban
that is lifted is heard by client tracking (`ears.py`), from the second denial of a key on. Where
nothing is heard, a denial is remembered for a second at most. So is that of a policy, whose numbers
can change, and that of an item of a sketch, whose key changes with each call for any item. Where a
limit of a policy has FORCE, a denied call is a charge, and is never answered here.
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

# How many keys are remembered, and how many calls of each. Beyond that a new denial is not
# remembered: to forget one that still holds would cost a call for each call that it saves.
KEYS = 10_000
CALLS = 8

# Least seconds between two searches for denials that are over.
SEARCHED = 0.1

# Seconds, without a word from the server that nothing has changed.
UNHEARD = 1.0

# A wait is told in whole milliseconds, rounded up.
ROUNDED = 0.001

# All that decides what the server answers for a key.
Asked: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Denial:
    key: Key
    asked: Asked
    decision: Decision
    # When it was heard: its wait began no later.
    heard_at: float
    # Until when it holds, from when it was asked: its wait began no earlier.
    until: float
    # Where its end is heard.
    where: object
    # The key was denied before: its changes are worth hearing.
    again: bool

    def left(self, now: float) -> Decision:
        """Returns what the server would answer now."""
        return _left(self.decision, (now - self.heard_at) * 1000)


class Denials:
    """Times are seconds of the limiter's clock. `prefix` is what every key begins with. With
    asyncio `where` is the running event loop: what one loop hears no other does.
    """

    _lock = forks.lock()

    def __init__(self, prefix: str, where: Callable[[], object] = lambda: None) -> None:
        self._prefix = prefix.encode()
        self._where = where
        self._by_key: dict[Key, tuple[Denial, ...]] = {}
        # Policies that were asked whether they have FORCE: the answer, and until when it holds.
        self._policies: dict[Limit, tuple[bool | None, float]] = {}
        self.forked()
        forks.knows(self)

    def forked(self) -> None:
        """What the other process hears is not heard here."""
        self._by_key.clear()
        # Until then no denial is over, or looked for.
        self._full_until = -inf
        forks.forget(self, "_lock")

    def find(self, key: Key, asked: Asked, now: float) -> Denial | None:
        """Returns the denial of a call, if it is known and holds."""
        # Most keys have none. No lock: what stands there is never changed, but replaced.
        for denial in self._by_key.get(key, ()):
            if now < denial.until and denial.asked == asked and denial.where is self._where():
                return denial
        return None

    def again(self, denial: Denial) -> Denial | None:
        """Marks a denial as that of a key that was denied before; None if it was marked already."""
        with self._lock:
            return self._replace(denial, replace(denial, again=True)) if not denial.again else None

    def remember(
        self, key: Key, asked: Asked, decision: Decision, at: float, heard_at: float
    ) -> Denial | None:
        """Remembers a denial of a call that was sent at that time: it is forgotten before the
        server would let the call pass. Returns the denial, unless it was known or finds no room.
        """
        until = _until(decision, at, UNHEARD)
        if decision.source != "server" or until <= at:
            return None
        with self._lock:
            found = self._by_key.get(key)
            if found is None and not self._has_room(at):
                return None
            where = self._where()
            others = [one for one in found or () if one.until > at and one.where is where]
            if any(one.asked == asked for one in others):
                return None
            again = found is not None
            denial = Denial(key, asked, decision, heard_at, until, where, again)
            self._by_key[key] = (*others[-CALLS + 1 :], denial)
            return denial

    def policy_forces(self, policy: Limit, now: float) -> tuple[bool | None] | None:
        """Returns what is known of the policy; None if it is to be asked."""
        forces, until = self._policies.get(policy, (None, now))
        return (forces,) if now < until else None

    def learn_policy(self, policy: Limit, forces: bool | None, now: float) -> None:
        """Remembers for a second what the policy says of itself; None if it did not answer."""
        if len(self._policies) >= KEYS:
            self._policies.clear()
        self._policies[policy] = (forces, now + UNHEARD)

    def _has_room(self, now: float) -> bool:
        """Returns `True` if a new key finds room, perhaps in place of denials that are over."""
        if len(self._by_key) < KEYS:
            return True
        if now < self._full_until:
            return False
        hold = {
            key: denials
            for key, denials in self._by_key.items()
            if any(now < denial.until for denial in denials)
        }
        self._by_key = hold
        if len(hold) < KEYS:
            return True
        ends = min(max(one.until for one in denials) for denials in hold.values())
        self._full_until = max(ends, now + SEARCHED)
        return False

    def _replace(self, denial: Denial, other: Denial) -> Denial | None:
        found = self._by_key.get(denial.key, ())
        if not any(one is denial for one in found):
            return None
        self._by_key[denial.key] = tuple(other if one is denial else one for one in found)
        return other

    def extend(self, denial: Denial, decision: Decision, at: float, heard_at: float) -> None:
        """It stands until something is heard. Unless something was, it is remembered for all its
        wait.
        """
        if decision.allowed:
            self.forget(denial.key)
            return
        until = _until(decision, at, float("inf"))
        stands = replace(denial, decision=decision, heard_at=heard_at, until=until)
        with self._lock:
            self._replace(denial, stands)

    def forget(self, key: Key) -> None:
        """What the key would answer may have changed."""
        with self._lock:
            if self._by_key.pop(key, None):
                self._full_until = -inf

    def forget_all(self) -> None:
        with self._lock:
            self._by_key.clear()
            self._full_until = -inf

    def changed(self, key: Key) -> None:
        """By this process. The key is that of the server."""
        self.heard(key.encode() if isinstance(key, str) else key)

    def heard(self, key: bytes | None) -> None:
        """The server says that a key has changed, by its name there; None: any may have."""
        if key is None:
            self.forget_all()
        elif key.startswith(self._prefix):
            bare = key[len(self._prefix) :]
            self.forget(bare)
            self.forget(bare.decode(errors="surrogateescape"))


def is_worth_hearing(decision: Decision, limits: Sequence[Limit]) -> bool:
    """Whether a denial lasts longer than it is remembered, and a change of it would be told: of a
    policy's numbers the server tells nobody. One that lasts for ever is asked again each second, as
    what it says of the rest recovers meanwhile. A sketch changes all the time.
    """
    return decision.wait_ms > UNHEARD * 1000 and not any(
        isinstance(limit, (Policy, Sketch)) for limit in limits
    )


def _until(decision: Decision, at: float, most: float) -> float:
    """Until when a denial that was asked at that time holds, and at most for so long."""
    wait = most if decision.wait_ms == NEVER else min(decision.wait_ms / 1000, most)
    return at + wait - ROUNDED


def _left(decision: Decision, passed: float) -> Decision:
    """The instant this many milliseconds later."""
    wait, reset = decision.wait_ms, decision.reset_ms
    return decision.but(
        wait_ms=wait if wait == NEVER else max(0, ceil(wait - passed)),
        reset_ms=None if reset is None else max(0, ceil(reset - passed)),
        each=tuple([_left(one, passed) for one in decision.each]) if decision.each else (),
        remembered=True,
    )
