"""A worker: delivers webhooks, one at a time. Start as many as you like: at most $LIMIT of them
are at work at once.

    REDIS_URL=redis://127.0.0.1:6379 LIMIT=2 TTL=30 python worker.py

Ctrl-C or SIGTERM: it ends when the job in hand is done. kill -9: its place comes back after $TTL
seconds, and so does the job.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from uuid import uuid4

import httpx
from jobs import Job, Jobs
from pool import MODULE_MISSING, PlaceLostError, Pool, connect, reason
from redis.exceptions import RedisError, ResponseError

log = logging.getLogger("worker")


class Outage:
    """A line in the log when it begins and one when it is over, however often Redis is tried; and
    one when a server that was away is there, but refuses.
    """

    # What the log was told last: whether it is there. None: no outage.
    _is_there: bool | None = None

    def begins(self, error: Exception) -> None:
        is_there = isinstance(error, ResponseError)
        if is_there != self._is_there:
            log.warning("no work without Redis: %s", reason(error))
        self._is_there = is_there

    def ends(self) -> None:
        if self._is_there is not None:
            log.warning("Redis is back")
        self._is_there = None


async def work(pool: Pool, jobs: Jobs, stop: asyncio.Event) -> None:
    # Unique: a restarted worker must not go on in the place of the one before.
    name = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
    outage = Outage()
    async with httpx.AsyncClient(timeout=None) as client:
        while not stop.is_set():
            try:
                await jobs.prepare()
                while not stop.is_set():
                    await one_job(pool, jobs, name, client, outage)
            except PlaceLostError:
                log.warning("the place is lost: the job is left to others")
            except (RedisError, OSError) as error:
                outage.begins(error)
                await asyncio.sleep(0.5)


async def one_job(
    pool: Pool, jobs: Jobs, name: str, client: httpx.AsyncClient, outage: Outage
) -> None:
    async with pool.place(name) as place:
        job = await jobs.take(name)
        outage.ends()
        if job is None:
            return
        place.on_beat = lambda: jobs.keep(job, name)
        try:
            await deliver(job, client)
        except httpx.HTTPError as error:
            log.warning("%s failed, and will be tried again: %r", job.body, error)
        else:
            await jobs.done(job)


async def deliver(job: Job, client: httpx.AsyncClient) -> None:
    # By this the receiver knows one that it has had already.
    headers = {"Idempotency-Key": f'"{job.key}"', "User-Agent": f"worker/{os.getpid()}"}
    response = await client.post(job.url, content=job.body, headers=headers)
    response.raise_for_status()


async def main() -> None:
    ttl = float(os.environ.get("TTL", "30"))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with connect(os.environ["REDIS_URL"]) as redis:
        pool = Pool(redis, int(os.environ.get("LIMIT", "2")), ttl)
        if await pool.has_no_module():
            sys.exit(MODULE_MISSING)
        await work(pool, Jobs(redis, ttl), stop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="worker %(process)d: %(message)s")
    asyncio.run(main())
