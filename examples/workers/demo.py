"""Four workers share two leases. One is killed during its job, which another worker repeats."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from jobs import STREAM, Jobs, connect
from receiver import Call, Receiver
from redis_ratelimit import RateLimitError
from redis_ratelimit.aio import Limiter
from worker import KEY

JOBS, WORKERS, LIMIT, TTL = 14, 4, 2, 3
# Job at which a worker hangs and is killed.
FATAL = "job 3"

Result = TypeVar("Result")

started = time.monotonic()


def log(text: str) -> None:
    print(f"{time.monotonic() - started:5.1f} s  {text}", flush=True)


async def add_jobs(redis_url: str, hook: str) -> None:
    async with connect(redis_url) as redis, Limiter(redis, timeout=TTL) as limiter:
        try:
            await limiter.check()
        except RateLimitError:  # already logged
            sys.exit(1)
        await redis.delete(STREAM, KEY)
        for number in range(1, JOBS + 1):
            await Jobs(redis, TTL).add(hook, f"job {number}")


def wait_until(condition: Callable[[], Result]) -> Result:
    while not (result := condition()):
        if time.monotonic() - started > 60:
            sys.exit("the demonstration takes longer than a minute")
        time.sleep(0.02)  # poll until the condition holds
    return result


def main() -> None:
    # SIGTERM must end the workers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    redis_url = os.environ["REDIS_URL"]
    environment = os.environ | {"LIMIT": str(LIMIT), "TTL": str(TTL)}
    workers: dict[int, subprocess.Popen[bytes]] = {}
    killed: list[int] = []

    def duration_of(call: Call) -> float:
        return 3600 if call.job == FATAL and not killed else 0.5

    with Receiver(duration_of, log) as receiver:

        def stuck_call() -> Call | None:
            return next((call for call in tuple(receiver.running) if call.job == FATAL), None)

        asyncio.run(add_jobs(redis_url, receiver.url))
        try:
            for _ in range(WORKERS):
                worker = subprocess.Popen([sys.executable, "worker.py"], env=environment)
                workers[worker.pid] = worker
            victim = wait_until(lambda: receiver.done.total() >= 4 and stuck_call()).worker
            killed.append(victim)
            log(f"kill -9 {victim}")
            workers[victim].kill()
            wait_until(lambda: receiver.done.total() == JOBS)
        finally:
            for worker in workers.values():
                worker.terminate()
            for worker in workers.values():
                worker.wait()
    print(f"{JOBS} jobs are done, never more than {receiver.maximum} at once, by {WORKERS} workers")


if __name__ == "__main__":
    main()
