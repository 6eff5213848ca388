"""Worker that delivers webhooks, one at a time. Of any number of workers, at most $LIMIT work
concurrently.

    REDIS_URL=redis://127.0.0.1:6379 LIMIT=2 TTL=30 python worker.py

A worker waits in the server for a lease, in order of arrival, and then for a job.

Ctrl-C or SIGTERM ends a worker after its current job, or at once if it waits for a lease. After
kill -9, its lease expires after $TTL seconds, and another worker gets the job.
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
    """Request to stop, set by a signal. A job is completed first; a wait is cancelled."""

    def __init__(self) -> None:
        self.is_set = False
        self._waiting_task: asyncio.Task[None] | None = None

    def set(self) -> None:
        self.is_set = True
        if self._waiting_task is not None:
            self._waiting_task.cancel()

    @contextmanager
    def cancels_wait(self) -> Iterator[None]:
        """Makes the signal cancel the block. The block must only wait."""
        self._waiting_task = asyncio.current_task()
        try:
            yield
        finally:
            self._waiting_task = None


async def work(limiter: Limiter, limit: Concurrency, jobs: Jobs, stop: Stop) -> None:
    # Unique, because a restarted worker must not continue with the lease of its predecessor.
    name = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
    async with httpx.AsyncClient(timeout=None) as client:
        while not stop.is_set:
            try:
                async with AsyncExitStack() as stack:
                    with stop.cancels_wait():
                        pending_lease = limiter.lease(KEY, limit, name, wait=None)
                        lease = await stack.enter_async_context(pending_lease)
                    # A lease without a job delays no other worker, because there are no jobs.
                    while not stop.is_set:
                        job = await jobs.take(name)
                        if job is not None:
                            lease.on_renewal = partial(jobs.renew, job, name)
                            await do_job(job, jobs, client)
                            break
            except LeaseLostError:
                log.warning("the lease is lost: the job is left to others")
            except (RateLimitError, RedisError, OSError) as error:
                # The limiter logs outages itself, once.
                if isinstance(error, ResponseError):
                    log.warning("no job: %s", error)
                await asyncio.sleep(0.5)


async def do_job(job: Job, jobs: Jobs, client: httpx.AsyncClient) -> None:
    try:
        await deliver(job, client)
    except httpx.HTTPError as error:
        log.warning("%s failed, and will be tried again: %r", job.body, error)
    else:
        await jobs.acknowledge(job)


async def deliver(job: Job, client: httpx.AsyncClient) -> None:
    # The receiver recognizes repetitions by this key.
    headers = {"Idempotency-Key": f'"{job.key}"', "User-Agent": f"worker/{os.getpid()}"}
    response = await client.post(job.url, content=job.body, headers=headers)
    response.raise_for_status()


async def main() -> None:
    ttl = float(os.environ.get("TTL", "30"))
    limit = Concurrency(int(os.environ.get("LIMIT", "2")), ttl)
    stop = Stop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    redis = connect(os.environ["REDIS_URL"])
    # A renewal that takes longer counts as failed.
    async with redis, Limiter(redis, timeout=ttl / 3) as limiter:
        try:
            await limiter.check()
        except SetupError:  # the log says what to do
            sys.exit(1)
        except UnavailableError:
            pass
        try:
            await work(limiter, limit, Jobs(redis, ttl), stop)
        except asyncio.CancelledError:
            if not stop.is_set:
                raise


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="worker %(process)d: %(message)s")
    asyncio.run(main())
