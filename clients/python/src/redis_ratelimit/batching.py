"""Batches of units: when to request how many, and which units to spend. No I/O and no clock.

docs/units.md states the algorithm. The packages for Node.js and Rust implement it, too, and
clients/units.json tests all three.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import exp

from redis_ratelimit.quantities import Key

# Time constant of the rate, in seconds.
RATE_TIME = 0.5
# Seconds that a batch lasts while at least half of the limit remains, and while nothing remains.
BATCH_SECONDS, BATCH_SECONDS_AT_LIMIT, HALF = 0.5, 0.3, 0.5
# Largest batch as a share of the limit. With `peers`, a share for all processes together.
SHARE, SHARE_OF_PEERS = 1 / 100, 1 / 4
# Largest growth from one batch to the next.
GROWTH = 2
# A batch is requested early if a third of it is left, or units for two round trips.
EARLY_SHARE, EARLY_ROUND_TRIPS = 1 / 3, 2
# Weight of the latest round trip in the average.
SMOOTHING = 1 / 8
# Pause after a grant of fewer units than requested, as a share of `keep` or, if that is shorter, of
# the recovery of the limit. It doubles with each grant of nothing that follows another, at most
# `DOUBLINGS` times. A random part of up to half of the pause is added.
PAUSE, DOUBLINGS, JITTER = 1 / 4, 2, 1 / 2
# Upper bound, in seconds, of a pause without its random part, and of the time for which the last
# limit counts, so that a raised limit is noticed.
LONGEST_PAUSE = 10.0


@dataclass
class Grant:
    """Units granted to one request."""

    id: Key
    unspent: int
    spent: int
    expires_at: float


@dataclass(frozen=True)
class Reply:
    """Reply of the server to a request for units."""

    id: Key
    granted: int
    limit: int
    remaining: int
    # Seconds until a unit is available, or None: never.
    wait: float | None
    # Seconds until the limit has recovered.
    reset: float


class Batching:
    """Units in hand, and the choice of requests for more. Times are seconds of any clock.

    A take calls `record_demand` once. Then it is allowed by `spend`, denied by `denies`, or waits
    for a request of `plan_request` units, whose reply goes to `record_reply`.
    """

    def __init__(self, keep: float, batch: int | None = None, peers: int | None = None) -> None:
        self._keep = keep
        self._batch = batch
        self._share = SHARE if peers is None else SHARE_OF_PEERS / peers
        self._grants: deque[Grant] = deque()
        self._expired: list[Grant] = []
        self._unspent = 0
        # Demand of all takes, in units a second, at `_rate_at`.
        self._rate = 0.0
        self._rate_at = 0.0
        # Size of the last batch, and the seconds that a batch lasts.
        self._size = 0
        self._batch_seconds = BATCH_SECONDS
        self._round_trip = 0.0
        # Limit of the last reply, and the time until which it counts.
        self._limit = 0
        self._limit_until = 0.0
        # Number of consecutive grants of nothing.
        self._empty_grants = 0
        self._paused_until = 0.0
        # Time at which the server has a unit again, or None: never.
        self._free_at: float | None = 0.0
        self._no_early_request_until = 0.0

    def forget(self) -> None:
        """Discards the units after a fork: the parent process spends them."""
        self._grants.clear()
        self._expired.clear()
        self._unspent = 0

    def record_demand(self, cost: int, now: float) -> None:
        """Counts the cost of a take, allowed or not, towards the rate."""
        self._rate = self._rate_now(now) + cost / RATE_TIME
        self._rate_at = now

    def in_hand(self, now: float) -> int:
        """Returns the number of units that can be spent without a call."""
        grants = self._grants
        while grants and now >= grants[0].expires_at:
            grant = grants.popleft()
            self._unspent -= grant.unspent
            self._expired.append(grant)
        return self._unspent

    def spend(self, cost: int, now: float) -> bool:
        """Spends the oldest units. Returns `False` if there are too few."""
        if self.in_hand(now) < cost:
            return False
        self._unspent -= cost
        grants = self._grants
        while cost:
            oldest = grants[0]
            spent_units = min(oldest.unspent, cost)
            oldest.unspent -= spent_units
            oldest.spent += spent_units
            cost -= spent_units
            if oldest.unspent == 0:
                grants.popleft()
        return True

    def denies(self, cost: int, now: float) -> bool:
        """Returns `True` if a take that the units in hand do not cover is denied without a call."""
        return now < self._paused_until or (cost > self._limit and now < self._limit_until)

    def wait(self, cost: int, now: float) -> float | None:
        """Returns the seconds after which a denied take may pass, or None: never."""
        if self._free_at is None or cost > self._limit:
            return None
        return max(self._paused_until, self._free_at, now) - now

    def is_due(self, now: float) -> bool:
        """Returns `True` if the next batch is requested although there are units in hand."""
        if self._unspent == 0 or now < self._paused_until or now < self._no_early_request_until:
            return False
        rate = self._rate_now(now)
        return self._unspent <= max(
            self._target(rate) * EARLY_SHARE, rate * self._round_trip * EARLY_ROUND_TRIPS
        )

    def plan_request(self, waiting: int, now: float) -> int:
        """Returns the number of units to request. `waiting` is the cost of all waiting takes."""
        size = min(self._target(self._rate_now(now)), max(1, self._size * GROWTH))
        self._size = max(size, waiting - self.in_hand(now))
        return self._size

    def record_reply(
        self, reply: Reply, requested: int, sent_at: float, now: float, random: float
    ) -> None:
        """Records the reply to a request. `random` is a number from 0 to 1."""
        weight = SMOOTHING if self._round_trip else 1
        self._round_trip += (now - sent_at - self._round_trip) * weight
        self._limit, self._limit_until = reply.limit, now + LONGEST_PAUSE
        free = min(reply.remaining / reply.limit / HALF, 1.0) if reply.limit else 0.0
        self._batch_seconds = (
            BATCH_SECONDS_AT_LIMIT + (BATCH_SECONDS - BATCH_SECONDS_AT_LIMIT) * free
        )
        self._free_at = None if reply.wait is None else now + reply.wait
        if reply.granted:
            # The units were charged after `sent_at`, so they expire early rather than late.
            self._grants.append(Grant(reply.id, reply.granted, 0, sent_at + self._keep))
            self._unspent += reply.granted
        if reply.granted >= requested:
            self._empty_grants, self._paused_until = 0, 0.0
            return
        pause = min(self._keep, reply.reset) * PAUSE * 2 ** min(self._empty_grants, DOUBLINGS)
        pause = min(pause, LONGEST_PAUSE)
        random_part = pause * JITTER * random
        if reply.granted:
            self._empty_grants = 0
        else:
            self._empty_grants += 1
            wait = LONGEST_PAUSE if reply.wait is None else reply.wait
            pause = max(pause, min(wait, LONGEST_PAUSE))
        self._paused_until = now + pause + random_part

    def record_failure(self, now: float) -> None:
        """Delays the next early request after a request without a reply."""
        self._no_early_request_until = now + self._keep * PAUSE

    @property
    def has_expired(self) -> bool:
        """`True` if `take_expired` returns any grants."""
        return bool(self._expired)

    @property
    def expires_at(self) -> float | None:
        """Time at which the oldest units expire, or None without units."""
        return self._grants[0].expires_at if self._grants else None

    def take_expired(self) -> list[Grant]:
        """Removes and returns the expired grants, to be settled."""
        expired, self._expired = self._expired, []
        return expired

    def take_all(self) -> list[Grant]:
        """Removes and returns all grants, to be settled."""
        grants = [*self._expired, *self._grants]
        self.forget()
        return grants

    def _rate_now(self, now: float) -> float:
        return self._rate * exp((self._rate_at - now) / RATE_TIME)

    def _target(self, rate: float) -> int:
        """Returns the size of a batch at this rate, before its growth is limited."""
        largest = self._limit * self._share
        if self._batch is not None:
            largest = min(largest, self._batch)
        return max(1, int(min(rate * self._batch_seconds, largest)))
