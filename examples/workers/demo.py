"""Four workers share two places. One is killed at its work; its place and its job come back."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable

from jobs import Jobs
from pool import connect
from receiver import Call, Receiver

JOBS, WORKERS, LIMIT, TTL = 14, 4, 2, 3
# At this one the first worker hangs, and is killed.
FATAL = "job 3"

started = time.monotonic()


def tell(what: str) -> None:
    print(f"{time.monotonic() - started:5.1f} s  {what}", flush=True)


def takes(call: Call) -> float:
    return 3600 if call.job == FATAL and call.attempt == 1 else 0.5


async def add_jobs(redis_url: str, hook: str) -> None:
    async with connect(redis_url) as redis:
        await redis.delete("jobs", "places")
        for number in range(1, JOBS + 1):
            await Jobs(redis, "jobs", TTL).add(hook, f"job {number}")


def wait_until(condition: Callable[[], object]) -> None:
    while not condition():
        if time.monotonic() - started > 60:
            sys.exit("it takes too long")
        time.sleep(0.02)  # poll until it holds


def main() -> None:
    redis_url = os.environ["REDIS_URL"]
    environment = os.environ | {"LIMIT": str(LIMIT), "TTL": str(TTL)}
    workers: dict[int, subprocess.Popen[bytes]] = {}
    with Receiver(takes, tell) as receiver:
        asyncio.run(add_jobs(redis_url, receiver.url))
        try:
            for _ in range(WORKERS):
                worker = subprocess.Popen([sys.executable, "worker.py"], env=environment)
                workers[worker.pid] = worker
            wait_until(lambda: receiver.done.total() == 4)
            (stuck,) = (call for call in receiver.at_work if call.job == FATAL)
            tell(f"kill -9 {stuck.worker}")
            workers[stuck.worker].kill()
            wait_until(lambda: receiver.done.total() == JOBS)
        finally:
            for worker in workers.values():
                worker.terminate()
            for worker in workers.values():
                worker.wait()
    print(f"{JOBS} jobs are done, never more than {receiver.most} at once, by {WORKERS} workers")


if __name__ == "__main__":
    main()
