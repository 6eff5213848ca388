"""Workers, their jobs and their leases."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from jobs import GROUP, STREAM, Jobs, connect
from worker import KEY

from support import poll
from support.server import Server

EXAMPLE = Path(__file__).parents[1]


class WorkerPool:
    def __init__(self, server: Server) -> None:
        self.workers: list[subprocess.Popen[str]] = []
        self._server = server
        self.url = f"redis://127.0.0.1:{server.port}"

    def start(
        self, count: int, *, limit: int, ttl: float, log: int | None = None
    ) -> list[subprocess.Popen[str]]:
        """Starts workers. `log` is the stderr of subprocess.Popen."""
        environment = os.environ | {
            "REDIS_URL": self.url,
            "LIMIT": str(limit),
            "TTL": str(ttl),
        }
        started = [
            subprocess.Popen(
                [sys.executable, EXAMPLE / "worker.py"], env=environment, stderr=log, text=True
            )
            for _ in range(count)
        ]
        self.workers += started
        return started

    def add_jobs(self, hook: str, *names: str) -> None:
        async def add() -> None:
            async with connect(self.url) as redis:
                for name in names:
                    await Jobs(redis, ttl=0).add(hook, name)

        asyncio.run(add())

    def jobs_left(self) -> tuple[int, int]:
        """Returns the number of jobs, and how many of them a worker has."""
        with self._server.client(decode_responses=True) as redis:
            return redis.xlen(STREAM), redis.xpending(STREAM, GROUP)["pending"]

    def leases(self) -> dict[str, int]:
        """Returns the stored expiry of each lease by holder, including dead holders."""
        with self._server.client(decode_responses=True) as redis:
            words = redis.execute_command("RL.INFO", KEY) or []
        info = dict(zip(words[::2], words[1::2], strict=True))
        return {holder: expires_at for holder, _, expires_at in info.get("leases", [])}

    def idle_ms(self) -> int:
        """Returns the time since the oldest job was renewed, in milliseconds."""
        with self._server.client(decode_responses=True) as redis:
            (job,) = redis.xpending_range(STREAM, GROUP, "-", "+", 1)
        return job["time_since_delivered"]

    def waiting_for_lease(self) -> int:
        """Returns the number of calls that wait in the server for a lease."""
        with self._server.client(decode_responses=True) as redis:
            return redis.info("ratelimit_waiting")["ratelimit_blocked_clients"]

    def module_calls(self) -> dict[str, int]:
        """Returns the number of calls of the module, by command."""
        with self._server.client(decode_responses=True) as redis:
            info = redis.info("ratelimit_commands")
        return {name.removeprefix("ratelimit_"): fields["calls"] for name, fields in info.items()}

    def is_a_worker_waiting_for_a_job(self) -> bool:
        """Returns `True` if one worker waits in the server for a job."""
        with self._server.client(decode_responses=True) as redis:
            return redis.info("clients")["blocked_clients"] == 1

    def calls(self, command: str) -> int:
        """Returns the server's count of calls of a command."""
        with self._server.client(decode_responses=True) as redis:
            stats = redis.info("commandstats")
        return stats.get(f"cmdstat_{command}", {"calls": 0})["calls"]

    def wait_for_calls(self, command: str, count: int) -> None:
        """Waits for `count` more calls of a command."""
        target = self.calls(command) + count
        poll.until(lambda: self.calls(command) >= target, f"{count} calls of {command}", timeout=30)
