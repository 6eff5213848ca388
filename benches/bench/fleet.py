"""Simulation of processes that spend units of one limit, which they request in batches.

The law: the server charges every unit before it is spent, so all processes together never spend
more than the limit. `run` raises AssertionError if that does not hold after every event.

The bound: a process that requests batches of b units sends 1 / b calls a decision, and n processes
have up to n x b units in hand, so that for any algorithm

    calls per decision x (units in hand / capacity) >= processes / capacity

The processes decide by the code of the package for Python (`redis_ratelimit.batching`). The server
is a token bucket as large as a second of its refill. Times and demand are simulated: the demand is
a Poisson process, denied calls are not repeated, and a call and its reply each take half of a round
trip. The same seed gives the same figures.
"""

import heapq
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from redis_ratelimit.batching import Batching, Grant, Reply

# Seconds of each run, and of the warm-up at its start, which counts only for spent units.
SECONDS, WARM_UP = 10.0, 2.0
# Seconds for which units can be spent after they were charged.
KEEP = 1.0
# Seconds of a burst of demand, and share of the time with bursts.
BURST_SECONDS, BURST_SHARE = 1.0, 0.2
# Exponent of the Zipf law of skewed demand.
SKEW = 1.5


@dataclass(frozen=True)
class Fleet:
    """Processes, and their demand for units of a limit, in units per second."""

    processes: int
    limit: int
    demand: float
    # Seconds of a call and its reply.
    round_trip: float = 0.0005
    # `True` if each process has the option `peers`, the number of processes.
    tells_peers: bool = False
    skewed: bool = False
    bursty: bool = False
    seconds: float = SECONDS

    @property
    def least_calls(self) -> float:
        """Lower bound of the calls per thousand decisions, by the largest batch. All processes
        together have at most the limit in hand.
        """
        share = 4 * self.processes if self.tells_peers else max(100, self.processes)
        return 1000 / max(self.limit / share, 1)


@dataclass
class Figures:
    """Counts of a run."""

    # Takes, granted takes, and calls to the server, after the warm-up.
    takes: int = 0
    granted: int = 0
    calls: int = 0
    # Seconds of each take that had to wait.
    waits: list[float] = field(default_factory=list)
    # Units spent since the start, and units that a single bucket would have granted.
    spent: int = 0
    ideal: int = 0
    # Units that would not have fitted into the bucket at the instant at which they were spent.
    overdrawn: int = 0

    @property
    def calls_per_thousand(self) -> float:
        return 1000 * self.calls / self.takes

    @property
    def calls_per_thousand_granted(self) -> float:
        return 1000 * self.calls / self.granted

    @property
    def without_waiting(self) -> float:
        return 1 - len(self.waits) / self.takes

    @property
    def p99_ms(self) -> float:
        rank = self.takes // 100
        return sorted(self.waits)[-rank - 1] * 1000 if rank < len(self.waits) else 0.0

    @property
    def admitted(self) -> float:
        """Spent units as a share of the units that a single bucket would have granted."""
        return self.spent / self.ideal


class Bucket:
    """Token bucket of the server."""

    def __init__(self, capacity: float, refill: float) -> None:
        self.capacity = capacity
        self._refill = refill
        self._used = 0.0
        self._time = 0.0
        # Times, each with the lowest usage since then. Both ascend.
        self._lowest_usages: list[tuple[float, float]] = []

    def take(self, units: int, now: float) -> tuple[int, int, float, float]:
        """Grants up to `units`. Returns the granted and the remaining units, the wait and the
        reset.
        """
        self._advance(now)
        granted = min(units, int(self.capacity - self._used + 1e-6))
        self._used += granted
        free = self.capacity - self._used
        return granted, int(free + 1e-6), max(1 - free, 0) / self._refill, self._used / self._refill

    def settle(self, unspent: int, charged_at: float, now: float) -> None:
        """Gives back those of the unspent units that have not recovered since they were charged."""
        self._advance(now)
        index = bisect_right(self._lowest_usages, charged_at, key=lambda entry: entry[0])
        lowest = self._lowest_usages[index][1] if index < len(self._lowest_usages) else self._used
        self._used -= min(unspent, lowest)
        self._advance(now)

    def _advance(self, now: float) -> None:
        self._used = max(0.0, self._used - (now - self._time) * self._refill)
        self._time = now
        while self._lowest_usages and self._lowest_usages[-1][1] >= self._used:
            self._lowest_usages.pop()
        self._lowest_usages.append((now, self._used))


class _Process:
    def __init__(self, batching: Batching, share: float) -> None:
        self.batching = batching
        # Share of the demand, and the start of the first burst.
        self.share = share
        self.first_burst_at = 0.0
        # `True` while a request is in flight.
        self.is_requesting = False
        # Times of the waiting takes.
        self.waiting: deque[float] = deque()


class _Run:
    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.rng = random.Random(seed)
        self.figures = Figures()
        capacity = float(fleet.limit)
        self.server = Bucket(capacity, fleet.limit)
        # Bucket that decides every take at once.
        self.ideal = Bucket(capacity, fleet.limit)
        # Bucket that is charged when units are spent.
        self.replayed = Bucket(capacity, fleet.limit)
        peers = fleet.processes if fleet.tells_peers else None
        self.processes = [
            _Process(Batching(KEEP, peers=peers), rank**-SKEW if fleet.skewed else 1.0)
            for rank in range(1, fleet.processes + 1)
        ]
        for process in self.processes:
            process.first_burst_at = self.rng.random() * BURST_SECONDS / BURST_SHARE
        # Time of the charge of each request, and all units that are charged and not given back.
        self.charged_at: list[float] = []
        self.charged = 0
        # Events: time, number, kind, process and data.
        self.events: list[tuple[float, int, str, _Process, tuple[float, ...] | Grant]] = []
        self.number = 0

    def schedule(
        self, due_at: float, kind: str, process: _Process, data: tuple[float, ...] | Grant = ()
    ) -> None:
        self.number += 1
        heapq.heappush(self.events, (due_at, self.number, kind, process, data))

    def call(
        self, now: float, kind: str, process: _Process, data: tuple[float, ...] | Grant
    ) -> None:
        self.figures.calls += now >= WARM_UP
        self.schedule(now + self.fleet.round_trip / 2, kind, process, data)

    def request(self, process: _Process, now: float) -> None:
        process.is_requesting = True
        units = process.batching.plan_request(len(process.waiting), now)
        self.call(now, "request", process, (units, now))

    def spend(self, requested_at: float, now: float) -> None:
        figures = self.figures
        figures.spent += 1
        figures.granted += requested_at >= WARM_UP
        figures.overdrawn += 1 - self.replayed.take(1, now)[0]
        assert figures.spent <= self.charged <= self.fleet.limit * (1 + now) + 1e-3

    def demand(self) -> Iterator[tuple[float, _Process]]:
        fleet, rng = self.fleet, self.rng
        shares = list(accumulate(process.share for process in self.processes))
        rate = fleet.demand / BURST_SHARE if fleet.bursty else fleet.demand
        now = 0.0
        while True:
            now += rng.expovariate(rate)
            process = self.processes[bisect_right(shares, rng.random() * shares[-1])]
            since_burst = (now + process.first_burst_at) % (BURST_SECONDS / BURST_SHARE)
            if not fleet.bursty or since_burst < BURST_SECONDS:
                yield now, process

    def take(self, process: _Process, now: float) -> None:
        self.figures.takes += now >= WARM_UP
        self.figures.ideal += self.ideal.take(1, now)[0]
        batching = process.batching
        batching.record_demand(1, now)
        if batching.spend(1, now):
            self.spend(now, now)
            if not process.is_requesting and batching.is_due(now):
                self.request(process, now)
        elif not batching.denies(1, now):
            process.waiting.append(now)
            if not process.is_requesting:
                self.request(process, now)

    def handle_event(
        self, kind: str, process: _Process, data: tuple[float, ...] | Grant, now: float
    ) -> None:
        batching = process.batching
        if isinstance(data, Grant):
            self.server.settle(data.unspent, self.charged_at[int(data.id)], now)
            self.charged -= data.unspent
        elif kind == "request":
            units, sent_at = data
            reply = self.server.take(int(units), now)
            self.charged += reply[0]
            self.charged_at.append(now)
            answer = (len(self.charged_at) - 1, *reply, units, sent_at)
            self.schedule(now + self.fleet.round_trip / 2, "reply", process, answer)
        elif kind == "reply":
            number, granted, remaining, wait, reset, units, sent_at = data
            parsed_reply = Reply(
                str(int(number)), int(granted), self.fleet.limit, int(remaining), wait, reset
            )
            batching.record_reply(parsed_reply, int(units), sent_at, now, self.rng.random())
            process.is_requesting = False
            if granted:
                self.schedule(sent_at + KEEP, "expiry", process)
            self.answer(process, now)
            if process.waiting or batching.is_due(now):
                self.request(process, now)
        else:
            batching.in_hand(now)
            for grant in batching.take_expired():
                if grant.unspent:
                    self.call(now, "settle", process, grant)

    def answer(self, process: _Process, now: float) -> None:
        while process.waiting:
            requested_at = process.waiting[0]
            if process.batching.spend(1, now):
                self.spend(requested_at, now)
            elif not process.batching.denies(1, now):
                return
            process.waiting.popleft()
            if requested_at >= WARM_UP:
                self.figures.waits.append(now - requested_at)

    def run(self) -> Figures:
        demand = self.demand()
        take_at, process = next(demand)
        while take_at < self.fleet.seconds:
            if self.events and self.events[0][0] <= take_at:
                now, _, kind, target, data = heapq.heappop(self.events)
                self.handle_event(kind, target, data, now)
            else:
                self.take(process, take_at)
                take_at, process = next(demand)
        return self.figures


def run(fleet: Fleet, seed: int = 1) -> Figures:
    return _Run(fleet, seed).run()
