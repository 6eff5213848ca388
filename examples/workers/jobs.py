"""Queue of jobs that survives its workers, as a Redis stream.

A job belongs to its worker until the worker acknowledges it. A job that its worker has not renewed
for a while is given to another worker. So each job is done at least once, and sometimes twice.

    python jobs.py http://127.0.0.1:8080/hook 12     # adds 12 jobs: POST there
"""

import asyncio
import os
import sys
from typing import NamedTuple
from uuid import uuid4

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ResponseError

STREAM = "rl:jobs"
GROUP = "workers"

# Time to wait for a new job before looking for an abandoned job again.
WAIT_MS = 500


def connect(url: str) -> Redis:
    # Retries are safe here: a job that is added twice has the same key twice.
    retry = Retry(ExponentialWithJitterBackoff(base=0.02, cap=0.2), retries=3)
    return Redis.from_url(url, protocol=2, decode_responses=True, retry=retry)


class Job(NamedTuple):
    id: str
    url: str
    body: str
    # Idempotency key, given by the program that adds the job: an XADD whose reply is lost is sent
    # again, and then two entries are the same job.
    key: str


class Jobs:
    def __init__(self, redis: Redis, ttl: float, stream: str = STREAM) -> None:
        self._redis = redis
        self._stream = stream
        self._abandoned_after_ms = int(ttl * 1000)

    async def add(self, url: str, body: str) -> str:
        fields = {"url": url, "body": body, "key": uuid4().hex}
        return await self._redis.xadd(self._stream, fields)

    async def take(self, worker: str) -> Job | None:
        """Takes a job of a dead worker, or else the next job. Returns None if none comes soon."""
        try:
            return await self._take(worker)
        except ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            # The server is new or has lost its data.
            await self._prepare()
            return None

    async def _take(self, worker: str) -> Job | None:
        abandoned = await self._redis.xautoclaim(
            self._stream, GROUP, worker, min_idle_time=self._abandoned_after_ms, count=1
        )
        entries = abandoned[1]
        if not entries:
            streams = await self._redis.xreadgroup(
                GROUP, worker, {self._stream: ">"}, count=1, block=WAIT_MS
            )
            entries = [entry for _, of_stream in streams for entry in of_stream]
        return next((Job(entry_id, **fields) for entry_id, fields in entries), None)

    async def _prepare(self) -> None:
        try:
            await self._redis.xgroup_create(self._stream, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):  # it exists
                raise

    async def renew(self, job: Job, worker: str) -> None:
        """Renews a job that its worker is still working at."""
        await self._redis.xclaim(self._stream, GROUP, worker, 0, [job.id], justid=True)

    async def acknowledge(self, job: Job) -> None:
        async with self._redis.pipeline(transaction=True) as transaction:
            transaction.xack(self._stream, GROUP, job.id)
            transaction.xdel(self._stream, job.id)
            await transaction.execute()


async def main() -> None:
    url, count = sys.argv[1], int(sys.argv[2])
    async with connect(os.environ["REDIS_URL"]) as redis:
        for number in range(1, count + 1):
            await Jobs(redis, ttl=0).add(url, f"job {number}")


if __name__ == "__main__":
    asyncio.run(main())
