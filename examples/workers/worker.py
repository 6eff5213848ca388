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
from uuid import uuid4

import httpx
from jobs import Job, Jobs
from pool import PlaceLostError, Pool, connect
from redis.exceptions import RedisError

log = logging.getLogger("worker")


async def work(pool: Pool, jobs: Jobs, stop: asyncio.Event) -> None:
    # Unique: a restarted worker must not go on in the place of the one before.
    name = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
    async with httpx.AsyncClient(timeout=None) as client:
        while not stop.is_set():
            try:
                await one_job(pool, jobs, name, client)
            except PlaceLostError:
                log.warning("the place is lost: the job is left to others")
            except (RedisError, OSError) as error:
                log.warning("Redis is away: %s", error)
                await asyncio.sleep(0.5)


async def one_job(pool: Pool, jobs: Jobs, name: str, client: httpx.AsyncClient) -> None:
    async with pool.place(name) as place:
        job = await jobs.take(name)
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
    headers = {"Idempotency-Key": f'"{job.id}"', "User-Agent": f"worker/{os.getpid()}"}
    response = await client.post(job.url, content=job.body, headers=headers)
    response.raise_for_status()


async def main() -> None:
    ttl = float(os.environ.get("TTL", "30"))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with connect(os.environ["REDIS_URL"]) as redis:
        jobs = Jobs(redis, "jobs", ttl)
        await jobs.prepare()
        await work(Pool(redis, "places", int(os.environ.get("LIMIT", "2")), ttl), jobs, stop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="worker %(process)d: %(message)s")
    asyncio.run(main())
