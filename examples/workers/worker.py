"""A worker: delivers webhooks, one at a time. Start as many as you like: at most $LIMIT of them
are at work at once.

    REDIS_URL=redis://127.0.0.1:6379 LIMIT=2 TTL=30 python worker.py

It waits in the server: for a place, in turn, and then for a job. So there are as many calls as
jobs, and no worker is passed over.

Ctrl-C or SIGTERM: it ends when the job in hand is done, and at once if it waits for a place. kill
-9: its place comes back after $TTL seconds, and so does the job.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from uuid import uuid4

import httpx
from jobs import Job, Jobs, connect
from redis.exceptions import RedisError, ResponseError
from redis_ratelimit import (
    Concurrency,
    LeaseLostError,
    RateLimitError,
    SetupError,
    UnavailableError,
)
from redis_ratelimit.aio import Limiter

log = logging.getLogger("worker")

KEY = "rl:places"


class Stop:
    """Asked for by a signal. Who is at work ends it first; who only waits is cancelled."""

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: asyncio.Task[None] | None = None

    def set(self) -> None:
        self.is_set = True
        if self._waiting is not None:
            self._waiting.cancel()

    @contextmanager
    def cancels(self) -> Iterator[None]:
        """Until the end of the block, which only waits."""
        self._waiting = asyncio.current_task()
        try:
            yield
        finally:
            self._waiting = None


async def work(limiter: Limiter, places: Concurrency, jobs: Jobs, stop: Stop) -> None:
    # Unique: a restarted worker must not go on in the place of the one before.
    name = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
    async with httpx.AsyncClient(timeout=None) as client:
        while not stop.is_set:
            try:
                async with AsyncExitStack() as place:
                    with stop.cancels():
                        waiting = limiter.lease(KEY, places, name, wait=None)
                        lease = await place.enter_async_context(waiting)
                    # With a place but no job it is in nobody's way: there is no job for others.
                    while not stop.is_set:
                        job = await jobs.take(name)
                        if job is not None:
                            lease.on_renewal = partial(jobs.keep, job, name)
                            await do(job, jobs, client)
                            break
            except LeaseLostError:
                log.warning("the place is lost: the job is left to others")
            except (RateLimitError, RedisError, OSError) as error:
                # That Redis is away or refuses, the limiter says, and once.
                if isinstance(error, ResponseError):
                    log.warning("no job: %s", error)
                await asyncio.sleep(0.5)


async def do(job: Job, jobs: Jobs, client: httpx.AsyncClient) -> None:
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
    places = Concurrency(int(os.environ.get("LIMIT", "2")), ttl)
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    redis = connect(os.environ["REDIS_URL"])
    # A renewal that takes longer than this is none.
    async with redis, Limiter(redis, timeout=ttl / 3) as limiter:
        try:
            await limiter.check()
        except SetupError:  # what to do is in the log
            sys.exit(1)
        except UnavailableError:
            pass
        try:
            await work(limiter, places, Jobs(redis, ttl), stop)
        except asyncio.CancelledError:
            if not stop.is_set:
                raise


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="worker %(process)d: %(message)s")
    asyncio.run(main())
