"""nginx with the configuration of the example, and requests to it."""

import asyncio
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx
import local_nginx
from delaying_proxy import DelayingProxy
from redis import Redis

from support import poll
from support.ports import reserve_port
from support.server import Server

ALICE = {"X-Api-Key": "alice-secret"}
BOB = {"X-Api-Key": "bob-secret"}

# Without certificates, because loading them takes longer than the requests.
PLAIN = {"verify": False, "trust_env": False, "timeout": 60}

# Timeout that is long enough for a busy machine. Tests of outages have their own.
LONG_TIMEOUT = {"timeout_ms = 100": "timeout_ms = 20000"}
# For tests of connections and failures, which each worker has separately.
ONE_WORKER = {"worker_processes auto": "worker_processes 1"}


class Gateway:
    """Running nginx."""

    def __init__(self, folder: Path, redis_url: str, changes: Mapping[str, str]) -> None:
        self._resources = ExitStack()
        self._log = folder / "log"
        port, application_port = reserve_port(self._resources), reserve_port(self._resources)
        self.port = port
        changes = {
            "listen 8080;": f"listen 127.0.0.1:{port};",
            "server 127.0.0.1:8081;": f"server 127.0.0.1:{application_port};",
            "listen 127.0.0.1:8081;": f"listen 127.0.0.1:{application_port};",
            **changes,
        }
        nginx = local_nginx.find()
        assert nginx, "there is no nginx with Lua"
        # Append mode, because nginx opens the file again for its access log.
        with self._log.open("ab") as log:
            self.process = local_nginx.start(nginx, folder, changes, redis_url, log.fileno())
        self._resources.callback(self._end)
        self.client = self._resources.enter_context(
            httpx.Client(base_url=f"http://127.0.0.1:{port}", **PLAIN)
        )

    def wait_until_ready(self) -> None:
        poll.until(self._is_ready, "nginx is ready", timeout=20)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log()
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=20).close()
        except ConnectionRefusedError:
            return False
        return True

    def get(self, path: str = "/", headers: Mapping[str, str] = ALICE) -> httpx.Response:
        return self.client.get(path, headers=headers)

    def log(self) -> str:
        return self._log.read_text()

    def outcomes(self, count: int) -> Counter[str]:
        """Counts the outcomes that the access log has for `count` requests."""

        def lines() -> list[str]:
            return [line for line in self.log().splitlines() if line.startswith("127.0.0.1 ")]

        # nginx answers a request before it logs it.
        poll.until(lambda: len(lines()) >= count, "all requests are in the log", timeout=20)
        return Counter(line.split()[-1] for line in lines())

    def count_logged(self, text: str) -> int:
        """Counts the occurrences of a text in the log."""
        return self.log().count(text)

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def workers(self) -> set[str]:
        """Returns the process ids of the workers."""
        pid = self.process.pid
        return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        self._resources.close()


class Gateways:
    """Starts gateways: `gateways(server)`. They end with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[Gateway] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for gateway in self._running:
            gateway.close()

    def start(self, redis_url: str, changes: Mapping[str, str] | None = None) -> Gateway:
        """Starts an nginx that may exit by itself."""
        folder = self._folder / f"nginx-{len(self._running)}"
        folder.mkdir()
        gateway = Gateway(folder, redis_url, changes or {})
        self._running.append(gateway)
        return gateway

    def __call__(
        self, server: Server | DelayingProxy, *changes: Mapping[str, str], login: str = ""
    ) -> Gateway:
        """Starts nginx with a server. `login` is empty or has the form `user:password@`."""
        merged = {**LONG_TIMEOUT}
        for change in changes:
            merged |= change
        gateway = self.start(f"redis://{login}127.0.0.1:{server.port}", merged)
        gateway.wait_until_ready()
        return gateway


def burst(
    gateways: list[Gateway], *, clients: int, requests: int, headers: Mapping[str, str] = ALICE
) -> Counter[int]:
    """Sends requests from parallel clients with a connection each. Counts the statuses."""

    async def run_client(number: int) -> list[int]:
        url = str(gateways[number % len(gateways)].client.base_url)
        async with httpx.AsyncClient(headers=headers, **PLAIN) as client:
            return [(await client.get(url)).status_code for _ in range(requests)]

    async def run_clients() -> Counter[int]:
        statuses = await asyncio.gather(*(run_client(number) for number in range(clients)))
        return Counter(status for of_client in statuses for status in of_client)

    return asyncio.run(run_clients())


def set_policy(redis: Redis, name: str, specs: str) -> None:
    redis.execute_command("RL.POLICYSET", name, *specs.split())


def fields(response: httpx.Response) -> dict[str, str]:
    """Returns the rate limit fields and Retry-After."""
    return {
        name: value
        for name, value in response.headers.items()
        if "ratelimit" in name or name == "retry-after"
    }
