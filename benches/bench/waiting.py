"""Workers that share a pool: workers that wait in the server, compared with workers that retry.

There are more workers than places, and endless jobs of some milliseconds each: a worker that has
done a job requests a place for the next. Only the way to wait differs.
"""

import asyncio
import math
import random
import socket
import statistics
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from itertools import accumulate

from bench import load
from bench.servers import MeasuredServer, Setup, serving
from bench.wire import ReplyError, connect, pack
from support.binaries import Binary

WORKERS, PLACES, JOB_MS = 100, 8, 10
# Lifetime of a lease, longer than a run, so that no lease is renewed or expires.
TTL = "10m"
# Time to fetch a job, between the release of a place and the next request.
FETCH_MS = 1

# A caller was overtaken if it requested a place at least this much earlier than another caller, and
# was served at least this much later. Closer requests may be reordered on different connections.
APART_MS = JOB_MS

Pause = Callable[[int], float]


def full_jitter(attempt: int) -> float:
    """Returns a random pause in milliseconds, below a bound that doubles with each attempt."""
    return random.uniform(0, min(1000, JOB_MS * 2**attempt))


# Ways to wait by name: a function that returns the pause of a worker in milliseconds for the number
# of denials, or None for a worker that waits in the server.
BLOCKING = "BLOCK"
WAYS: dict[str, Pause | None] = {
    BLOCKING: None,
    "asking every 10 ms": lambda _: 10.0,
    "asking every 50 ms": lambda _: 50.0,
    "backoff with full jitter, up to 1 s": full_jitter,
}


@dataclass(frozen=True)
class Way:
    """Results of one way to wait, within the measured time."""

    jobs_per_second: float
    # Share of the time of all places that was spent on jobs: 1 if the pool was always full.
    in_use: float
    # Time from the request of a place to the grant, or to the end for callers without a grant.
    median_ms: float
    p99_ms: float
    longest_ms: float
    # Share of the callers that were overtaken.
    overtaken: float
    # Fewest and most jobs of a worker, and Jain's index, which is 1 if all did the same number.
    fewest: float
    most: float
    jain: float
    # Calls to the server for places, and processor time of the server.
    calls_per_job: float
    server_us_per_job: float


# Percentages in steps of one half.
SHARES = [step / 2 for step in range(201)]


@dataclass(frozen=True)
class Run:
    way: Way
    # Waits in milliseconds at each percentile of SHARES.
    waits: list[float]
    # Number of jobs of each worker, sorted.
    jobs: list[int]


@dataclass(frozen=True)
class Waiting:
    # Runs by the way to wait.
    runs: dict[str, Run]
    # Microseconds of the server, by the number of waiters, for a place that is released and granted
    # to the first waiter, and for a new waiter that joins the queue.
    release_us: dict[int, float]


@dataclass(frozen=True)
class Size:
    rounds: int
    warm_up: float
    seconds: float
    waiters: tuple[int, ...]
    releases: int


FULL = Size(rounds=3, warm_up=2.0, seconds=8.0, waiters=(10, 100, 1_000, 10_000), releases=5_000)
QUICK = Size(rounds=1, warm_up=0.2, seconds=0.5, waiters=(10, 100), releases=100)


def measure(binary: Binary, size: Size) -> Waiting:
    with serving(binary) as server:
        load.pin(server)
        rounds = [
            {name: asyncio.run(_Pool(server, pause, size).run()) for name, pause in WAYS.items()}
            for _ in range(size.rounds)
        ]
    runs = {name: _median([results[name] for results in rounds]) for name in WAYS}
    return Waiting(runs, _release_us(binary, size))


def _median(runs: list[Run]) -> Run:
    """Returns the median of each figure. Waits and jobs are from the round with the median rate."""
    figures = [
        statistics.median(getattr(run.way, field.name) for run in runs) for field in fields(Way)
    ]
    middle = sorted(runs, key=lambda run: run.way.jobs_per_second)[len(runs) // 2]
    return Run(Way(*figures), middle.waits, middle.jobs)


class _Pool:
    """Workers of one run, in a single thread, which has little to do except wait."""

    def __init__(self, server: MeasuredServer, pause: Pause | None, size: Size) -> None:
        self.server = server
        self.pause = pause
        self.size = size
        self.loop: asyncio.AbstractEventLoop
        self.workers: list[_Worker] = []
        # Start of the wait of each worker without a place.
        self.waiting: dict[_Worker, float] = {}
        self.is_over = False
        # Times of the request and of the grant of each served request.
        self.turns: list[tuple[float, float]] = []
        self.error: Exception | None = None

    async def run(self) -> Run:
        self.server.admin.flushall()
        self.loop = asyncio.get_running_loop()
        for number in range(WORKERS):
            _, worker = await self.loop.create_connection(
                lambda number=number: _Worker(self, number), "127.0.0.1", self.server.port
            )
            self.workers.append(worker)
        for worker in self.workers:
            worker.request()
        await asyncio.sleep(self.size.warm_up)
        for worker in self.workers:
            worker.jobs, worker.busy = 0, 0.0
        self.turns = []
        calls, cpu, start = self._calls(), self.server.cpu_seconds(), self.loop.time()
        await asyncio.sleep(self.size.seconds)
        now = self.loop.time()
        calls, cpu = self._calls() - calls, self.server.cpu_seconds() - cpu
        way = self._way(now - start, now, calls, cpu)
        jobs = sorted(worker.jobs for worker in self.workers)
        self.is_over = True
        for worker in self.workers:
            worker.transport.abort()
        if self.error is not None:
            raise self.error
        waits = _waits(self._all_turns(), now)
        shares = [waits[round(share / 100 * (len(waits) - 1))] for share in SHARES]
        return Run(way, shares, jobs)

    def _calls(self) -> int:
        info = self.server.admin.info("ratelimit_commands")
        return sum(info[f"ratelimit_rl.{name}"]["calls"] for name in ("acquire", "release"))

    def _all_turns(self) -> list[tuple[float, float]]:
        return [*self.turns, *((since, math.inf) for since in self.waiting.values())]

    def _way(self, seconds: float, now: float, calls: int, cpu: float) -> Way:
        turns = self._all_turns()
        waits = _waits(turns, now)
        jobs = [worker.jobs for worker in self.workers]
        job_count = sum(jobs)
        return Way(
            jobs_per_second=job_count / seconds,
            in_use=sum(worker.busy for worker in self.workers) / (PLACES * seconds),
            median_ms=statistics.median(waits),
            p99_ms=waits[int(0.99 * (len(waits) - 1))],
            longest_ms=waits[-1],
            overtaken=_overtaken(turns) / len(turns),
            fewest=min(jobs),
            most=max(jobs),
            jain=job_count**2 / (len(jobs) * sum(count**2 for count in jobs)),
            calls_per_job=calls / job_count,
            server_us_per_job=cpu / job_count * 1e6,
        )

    def record_grant(self, worker: "_Worker") -> float:
        now, since = self.loop.time(), self.waiting.pop(worker)
        self.turns.append((since, now))
        return now


def _waits(turns: list[tuple[float, float]], now: float) -> list[float]:
    """Returns the sorted waits in milliseconds. Waits of unserved callers last until `now`."""
    return sorted((min(served, now) - requested) * 1000 for requested, served in turns)


def _overtaken(turns: list[tuple[float, float]]) -> int:
    """Returns the number of overtaken callers; `turns` has the times of requests and grants."""
    turns = sorted(turns)
    requested = [requested for requested, _ in turns]
    # Earliest grant of the callers that requested a place at each time or later.
    earliest_grants = list(
        accumulate((served for _, served in reversed(turns)), min, initial=math.inf)
    )
    apart = APART_MS / 1000
    return sum(
        earliest_grants[len(turns) - bisect_right(requested, since + apart)] < served - apart
        for since, served in turns
    )


class _Worker(asyncio.Protocol):
    """Worker with a connection of its own, which sends one call after another."""

    transport: asyncio.Transport

    def __init__(self, pool: _Pool, number: int) -> None:
        self.jobs = 0
        # Seconds that were spent on jobs.
        self.busy = 0.0
        self._pool = pool
        holder = f"worker-{number}"
        words = ["RL.ACQUIRE", "pool", str(PLACES), TTL, holder]
        self._request = pack([*words, "BLOCK", "0"] if pool.pause is None else words)
        self._release = pack(["RL.RELEASE", "pool", holder])
        self._denials = 0
        self._job_start = 0.0
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def request(self) -> None:
        self._denials = 0
        self._pool.waiting[self] = self._pool.loop.time()
        self._retry()

    def _retry(self) -> None:
        if not self._pool.is_over:
            self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        is_decision = self._received.startswith(b"*5\r\n")
        if self._received.count(b"\n") < (6 if is_decision else 1):
            return
        reply, self._received = self._received, b""
        if reply.startswith(b":"):
            self._call_later(FETCH_MS, self.request)
        elif not is_decision:
            self._pool.error = ReplyError(f"{reply[:200]!r}")
        elif reply.startswith(b"*5\r\n:1"):
            self._job_start = self._pool.record_grant(self)
            self._call_later(JOB_MS, self._done)
        elif self._pool.pause is None:
            self._pool.error = ReplyError(f"a waiting call was denied: {reply!r}")
        else:
            self._call_later(self._pool.pause(self._denials), self._retry)
            self._denials += 1

    def _call_later(self, milliseconds: float, step: Callable[[], None]) -> None:
        self._pool.loop.call_later(milliseconds / 1000, step)

    def _done(self) -> None:
        if self._pool.is_over:
            return
        self.jobs += 1
        self.busy += self._pool.loop.time() - self._job_start
        self.transport.write(self._release)


# Many waiters

IDLE_SECONDS = 1.0
WAITERS_SETUP = Setup(
    "many waiters", settings=(("maxclients", "11000"),), module_args="max-blocked 100000"
)


def _release_us(binary: Binary, size: Size) -> dict[int, float]:
    microseconds = {}
    for count in (0, *size.waiters):
        with serving(binary, WAITERS_SETUP) as server, _waiters(server, count) as waiters:
            load.pin(server)
            microseconds[count] = statistics.median(
                _one_round(server, waiters, size.releases) for _ in range(size.rounds)
            )
    return microseconds


# Numbers of holders, with their connections.
Waiters = deque[tuple[int, socket.socket]]


@contextmanager
def _waiters(server: MeasuredServer, count: int) -> Iterator[Waiters]:
    """Connects clients, of which the first holds the only place and the others wait in order."""
    with ExitStack() as stack:
        waiters: Waiters = deque()
        for number in range(count + 1):
            connection = stack.enter_context(connect(server.port))
            connection.sendall(_acquire(number))
            waiters.append((number, connection))
            if number == 0:
                _expect_grant(connection)
            else:
                _wait_for_waiters(server, number)
        yield waiters


def _acquire(number: int) -> bytes:
    return pack(["RL.ACQUIRE", "pool", "1", TTL, f"worker-{number}", "BLOCK", "0"])


def _expect_grant(connection: socket.socket) -> None:
    received = b""
    while received.count(b"\n") < 6:
        received += connection.recv(1000)
    if not received.startswith(b"*5\r\n:1\r\n"):
        raise ReplyError(f"{received!r}")


def _wait_for_waiters(server: MeasuredServer, count: int) -> None:
    while server.admin.info("ratelimit_waiting")["ratelimit_blocked_clients"] < count:
        pass


def _one_round(server: MeasuredServer, waiters: Waiters, releases: int) -> float:
    """Measures releases: the holder releases the place and joins the end of the queue."""
    before, start = server.cpu_seconds(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    # Cost of the idle connections.
    idle = (server.cpu_seconds() - before) / (time.monotonic() - start)
    before, start = server.cpu_seconds(), time.monotonic()
    for _ in range(releases):
        number, holder = waiters[0]
        holder.sendall(pack(["RL.RELEASE", "pool", f"worker-{number}"]))
        if (reply := holder.recv(1000)) != b":1\r\n":
            raise ReplyError(f"{reply!r}")
        holder.sendall(_acquire(number))
        waiters.rotate(-1)
        _expect_grant(waiters[0][1])
    seconds = time.monotonic() - start
    return (server.cpu_seconds() - before - idle * seconds) / releases * 1e6
