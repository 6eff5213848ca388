"""Measures units leased for hot keys, and writes units.md beside this file.

    python benchmarks/units.py [--seconds 3] [--primaries 1 3 6]

Each measurement is on servers of its own: one, or a cluster. Processes ask for units of hot keys as
fast as they can, each by one asyncio loop; a batch of 1 is a call for each decision. Calls and
units are counted, not times: the servers share the processors of this machine with those who ask.

Over-grant is measured against the definition of the limit: all that passed, by the instants at
which it passed, is replayed into a bucket of the same capacity and refill. What does not fit there,
passed too much. Units are spent up to `keep` seconds after they were charged, so it can be more
than 0, by what was refilled meanwhile; without leases it is the network's delay that does that.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import platform
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2] / "tests")]

import redis  # noqa: E402
from support import binaries, poll  # noqa: E402
from support.server import Server  # noqa: E402

from redis_ratelimit import TokenBucket, aio  # noqa: E402

BATCHES = [1, 10, 100, 1000]
SLOTS = 16_384
PROCESSES = 2
TASKS = 16
KEYS = 12
# More units than can be requested, to measure throughput.
ROOMY = TokenBucket(10**9, 10**9)
# Few units, so that the limit denies calls.
SCARCE = TokenBucket(2000, 2000)
KEEP = 1.0


class Asked(NamedTuple):
    """Decisions of one process."""

    decisions: int
    # Times at which units of the scarce key passed, by the clock that all processes share.
    passed: list[float]


class Figures(NamedTuple):
    primaries: int
    batch: int
    calls_per_thousand: float
    passed: int
    over: int


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--seconds", type=float, default=3.0)
    arguments.add_argument("--primaries", type=int, nargs="+", default=[1, 3, 6])
    options = arguments.parse_args()
    binary = binaries.chosen()
    rows = []
    for primaries in options.primaries:
        with ExitStack() as started:
            servers = started_servers(started, binary, primaries)
            for batch in BATCHES:
                rows.append(measured(servers, batch, options.seconds))
                print(row(rows[-1]), flush=True)
    (HERE / "units.md").write_text(document(rows, binary.name, options.seconds))


def started_servers(started: ExitStack, binary: Any, primaries: int) -> list[Server]:
    settings = {"cluster_enabled": "yes"} if primaries > 1 else {}
    servers = [started.enter_context(Server(binary, **settings)) for _ in range(primaries)]
    if primaries == 1:
        return servers
    admins = [server.client(decode_responses=True) for server in servers]
    for number, admin in enumerate(admins):
        admin.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for other in servers[:number]:
            admin.execute_command("CLUSTER MEET", "127.0.0.1", other.port)
        slots = range(number * SLOTS // primaries, (number + 1) * SLOTS // primaries)
        admin.execute_command("CLUSTER ADDSLOTS", *slots)

    def is_well(admin: redis.Redis) -> bool:
        told = admin.execute_command("CLUSTER INFO")
        return told["cluster_state"] == "ok" and told["cluster_known_nodes"] == str(primaries)

    poll.until(lambda: all(map(is_well, admins)), "the cluster is well", timeout=60)
    return servers


def measured(servers: list[Server], batch: int, seconds: float) -> Figures:
    admins = [server.client(decode_responses=True) for server in servers]
    for admin in admins:
        admin.flushall()
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        jobs = [(servers[0].port, len(servers) > 1, batch, seconds)] * PROCESSES
        pool.starmap(warm_up, jobs)
        for admin in admins:
            admin.config_resetstat()
        asked = pool.starmap(ask, jobs)
        calls = sum(calls_of(admin) for admin in admins)
        scarce = pool.starmap(ask_for_scarce, jobs)
    decisions = sum(one.decisions for one in asked)
    passed = sorted(instant for one in scarce for instant in one.passed)
    return Figures(
        len(servers),
        batch,
        calls / decisions * 1000,
        len(passed),
        over_granted(passed),
    )


def calls_of(admin: redis.Redis) -> int:
    return int(admin.info("commandstats").get("cmdstat_rl.take", {"calls": 0})["calls"])


def warm_up(port: int, cluster: bool, batch: int, seconds: float) -> None:
    ask(port, cluster, batch, min(seconds, 0.2))


def ask(port: int, cluster: bool, batch: int, seconds: float) -> Asked:
    return asyncio.run(_asked(port, cluster, batch, seconds, ROOMY, KEYS, "roomy"))


def ask_for_scarce(port: int, cluster: bool, batch: int, seconds: float) -> Asked:
    return asyncio.run(_asked(port, cluster, batch, seconds, SCARCE, 1, "scarce"))


async def _asked(
    port: int, cluster: bool, batch: int, seconds: float, limit: TokenBucket, keys: int, name: str
) -> Asked:
    """Takes units as one process. All processes use the same keys, and each task cycles through
    them.
    """
    passed: list[float] = []
    url = f"redis://127.0.0.1:{port}"
    async with aio.Limiter.from_url(
        url, cluster=cluster, timeout=10, on_outage="closed"
    ) as limiter:
        hot = [limiter.units(f"{name}:{n}", limit, batch=batch, keep=KEEP) for n in range(keys)]
        end = time.monotonic() + seconds
        counts = [0] * TASKS

        async def task(number: int) -> None:
            while time.monotonic() < end:
                # Lets other tasks run even if no call is needed.
                await asyncio.sleep(0)
                units = hot[(number + counts[number]) % keys]
                decision = await units.take()
                counts[number] += 1
                if limit is SCARCE:
                    if decision.allowed:
                        passed.append(time.monotonic())
                    else:
                        await asyncio.sleep(decision.wait or 0)

        await asyncio.gather(*map(task, range(TASKS)))
        for units in hot:
            await units.close()
    return Asked(sum(counts), passed)


def over_granted(passed: list[float]) -> int:
    """Counts those that did not fit into the bucket at the instants at which they passed."""
    capacity, refill = float(SCARCE.capacity), float(SCARCE.refill)
    used, at, over = 0.0, passed[0] if passed else 0.0, 0
    for instant in passed:
        used = max(used - (instant - at) * refill, 0.0)
        at = instant
        # Instants of two processes are not exact to the microsecond.
        if used + 1 <= capacity + 1e-3 * refill:
            used += 1
        else:
            over += 1
    return over


def row(figures: Figures) -> str:
    return (
        f"| {figures.primaries} | {figures.batch} | {figures.calls_per_thousand:.4g} "
        f"| {figures.passed:,} | {figures.over} |"
    )


def document(rows: list[Figures], server: str, seconds: float) -> str:
    lines = "\n".join(map(row, rows))
    return f"""\
# Units of hot keys

Written by `make bench`. {PROCESSES} processes with {TASKS} tasks each ask for units of the same \
{KEYS} keys, {seconds:g} seconds a row; the servers, {server}, are on the same machine: \
{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}. A batch of 1 \
is a call for each decision.

| primaries | batch | calls a thousand decisions | passed | over |
|--:|--:|--:|--:|--:|
{lines}

The last two columns are of a second run, in which a limit of {SCARCE.capacity} units, refilled \
with {SCARCE.refill} a second, is asked for by all: how many passed, and how many of these did \
not fit into such a bucket at the instant at which they passed. The server grants no unit too \
many; but one that is spent later than it was charged, up to {KEEP:g} s (`keep`), is spent on top \
of what was refilled and granted since.
"""


if __name__ == "__main__":
    main()
