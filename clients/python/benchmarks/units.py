"""Measures processes that take units of one hot key, and writes units.md beside this file.

    python benchmarks/units.py [--seconds 6]

Each process has one asyncio loop, which takes units at a fixed rate. Calls and units are counted,
not times: the server shares the processors of this machine with the processes.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import platform
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2] / folder) for folder in ("tests", "benches")]

import redis  # noqa: E402
from bench import fleet  # noqa: E402
from support import binaries  # noqa: E402
from support.server import Server  # noqa: E402

from redis_ratelimit import TokenBucket, aio  # noqa: E402

PROCESSES = 8
# Seconds until batches have their final size.
WARM_UP_SECONDS = 2.0
# Seconds between two groups of takes.
PAUSE_SECONDS = 0.005


class Row(NamedTuple):
    """Demand of a bucket, which is as large as a second of its refill."""

    limit: int
    # Takes per second of all processes, as a multiple of the limit.
    demand: float
    peers: int | None = None


ROWS = [
    Row(8000, 0.5),
    Row(4000, 0.9),
    Row(2000, 2),
    Row(1000, 10),
    Row(2000, 2, PROCESSES),
    Row(40, 0.5),
    Row(40, 0.9),
    Row(40, 2),
]


class Counts(NamedTuple):
    """Takes of one process."""

    # Allowed takes from the start.
    allowed: int
    # All takes and allowed takes after the warm-up.
    takes: int
    granted: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=6.0)
    arguments = parser.parse_args()
    binary = binaries.chosen()
    lines = []
    with Server(binary) as server:
        for row in ROWS:
            lines.append(measure(server, row, arguments.seconds))
            print(lines[-1], flush=True)
    (HERE / "units.md").write_text(document(lines, binary.name, arguments.seconds))


def measure(server: Server, row: Row, seconds: float) -> str:
    admin = server.client(decode_responses=True)
    admin.flushall()
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES + 1)
    with context.Pool(PROCESSES, _store_barrier, (barrier,)) as pool:
        running = pool.starmap_async(run_process, [(server.port, row, seconds)] * PROCESSES)
        barrier.wait()  # all processes are connected
        started_at = server_time(admin)
        barrier.wait()  # all processes have warmed up
        admin.config_resetstat()
        counts = running.get()
        ended_at = server_time(admin)
    calls = int(admin.info("commandstats")["cmdstat_rl.take"]["calls"])
    allowed, takes, granted = map(sum, zip(*counts, strict=True))
    # A bucket admits at most its capacity and its refill.
    max_units = row.limit * (1 + ended_at - started_at)
    assert allowed <= max_units, f"{allowed} of {max_units}"
    simulated = fleet.run(
        fleet.Fleet(PROCESSES, row.limit, row.limit * row.demand, tells_peers=bool(row.peers))
    )
    return (
        f"| {row.limit:,} | {row.demand:g} | {row.peers or ''} | {takes:,} "
        f"| {1000 * calls / takes:,.1f} | {1000 * calls / granted:,.1f} "
        f"| {simulated.calls_per_thousand_granted:,.1f} | {granted / takes:.1%} "
        f"| {f'{allowed / max_units:.3f}' if row.demand > 1 else ''} |"
    )


def server_time(admin: redis.Redis) -> float:
    seconds, microseconds = admin.time()
    return float(seconds + microseconds / 1e6)


def _store_barrier(barrier: Barrier) -> None:
    globals()["_barrier"] = barrier


def run_process(port: int, row: Row, seconds: float) -> Counts:
    return asyncio.run(_take_units(port, row, seconds, globals()["_barrier"]))


async def _take_units(port: int, row: Row, seconds: float, barrier: Barrier) -> Counts:
    """Takes units as one process."""
    rate = row.limit * row.demand / PROCESSES
    bucket = TokenBucket(row.limit, row.limit)
    url = f"redis://127.0.0.1:{port}"
    async with aio.Limiter.from_url(url, timeout=10, on_outage="closed") as limiter:
        await limiter.check()
        async with limiter.units("hot", bucket, peers=row.peers) as units:
            barrier.wait()
            before = await _take_for(units, rate, WARM_UP_SECONDS)
            barrier.wait()
            after = await _take_for(units, rate, seconds)
    return Counts(before[1] + after[1], *after)


async def _take_for(units: Any, rate: float, seconds: float) -> tuple[int, int]:
    """Takes units at this rate. Returns the number of takes, and of those that were allowed."""
    takes = allowed = 0
    started_at = time.monotonic()
    while (elapsed := time.monotonic() - started_at) < seconds:
        due_takes = int(elapsed * rate) - takes
        decisions = await asyncio.gather(*(units.take() for _ in range(due_takes)))
        takes += due_takes
        allowed += sum(map(bool, decisions))
        await asyncio.sleep(PAUSE_SECONDS)
    return takes, allowed


def document(lines: list[str], server: str, seconds: float) -> str:
    rows = "\n".join(lines)
    return f"""\
# Units of a hot key

Written by `make bench`. {PROCESSES} processes take units of one token bucket for {seconds:g} \
seconds, after {WARM_UP_SECONDS:g} seconds of warm-up; the server, {server}, is on the same \
machine: {os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}. \
The bucket holds as much as it is refilled with in a second. \
[docs/units.md](../../../docs/units.md) has the algorithm, the bound, and the same for 100 and \
1,000 processes by simulation.

| limit a second | demand of it | peers | decisions | calls a thousand | a thousand granted \
| simulated | granted | admitted of the limit |
|--:|--:|--:|--:|--:|--:|--:|--:|--:|
{rows}

A process takes all that is due every {PAUSE_SECONDS * 1000:g} ms, so its demand comes in groups, \
and that of the simulation singly. Calls are requests and settlements. The last column counts from \
the start, up to the end of the slowest process. No row exceeds what the bucket allows.
"""


if __name__ == "__main__":
    main()
