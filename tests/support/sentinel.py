"""Sentinels that monitor a primary and promote its replica after a failure."""

import os
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import redis
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from support import poll
from support.ports import reserve_port
from support.server import Server, ServerError

NAME = "limits"
# Timeout in seconds for a failover, which takes three seconds on an idle machine. Sentinels pause
# for half a minute if their clock seems to jump, as on a busy machine.
TIMEOUT = 120.0


class Sentinels:
    """Three sentinels with a quorum of two, within a `with` block. The monitored servers must have
    the real time, by which sentinels detect failures.
    """

    def __init__(self, primary: Server, replicas: int = 1) -> None:
        self._primary, self._replicas = primary, replicas
        self._owned = ExitStack()
        self._ports: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []

    def __enter__(self) -> Self:
        try:
            for _ in range(3):
                self._start()
            self._manager = redis.sentinel.Sentinel(
                [("127.0.0.1", port) for port in self._ports],
                sentinel_kwargs={"socket_timeout": 20, "retry": Retry(NoBackoff(), 0)},
                socket_timeout=20,
                retry=Retry(NoBackoff(), 0),
            )
            for client in self._manager.sentinels:
                self._owned.callback(client.close)
            poll.until(self._know_all, "the sentinels know the servers and each other", TIMEOUT)
        except BaseException:
            self._owned.close()
            raise
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            for log in self._logs:
                error.add_note(
                    "a sentinel's log ends in\n" + log.read_text(errors="replace")[-4000:]
                )
        self._owned.close()

    def _start(self) -> None:
        port = reserve_port(self._owned)
        directory = Path(
            self._owned.enter_context(tempfile.TemporaryDirectory(prefix="ratelimit-sentinel-"))
        )
        lines = [
            "bind 127.0.0.1",
            f"port {port}",
            f"sentinel monitor {NAME} 127.0.0.1 {self._primary.port} 2",
            f"sentinel down-after-milliseconds {NAME} 2000",
            f"sentinel failover-timeout {NAME} 5000",
        ]
        (directory / "sentinel.conf").write_text("".join(f"{line}\n" for line in lines))
        log = directory / "sentinel.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [self._primary.binary.path, "sentinel.conf", "--sentinel"],
                cwd=directory,
                env=os.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._owned.callback(_end, process)
        self._ports.append(port)
        self._processes.append(process)
        self._logs.append(log)

    def _know_all(self) -> bool:
        for process, log in zip(self._processes, self._logs, strict=True):
            if process.poll() is not None:
                raise ServerError(f"a sentinel ended\n{log.read_text(errors='replace')}")
        try:
            views = [sentinel.sentinel_masters()[NAME] for sentinel in self._manager.sentinels]
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        return all(
            view["num-slaves"] == self._replicas
            and view["num-other-sentinels"] == 2
            and view["flags"] == "master"
            for view in views
        )

    def client(self) -> redis.Redis:
        """Returns a client that connects to the current primary. It resends nothing."""
        return self._owned.enter_context(self._manager.master_for(NAME))

    def primary_port(self) -> int | None:
        """Returns the port of the primary that the sentinels announce."""
        try:
            return self._manager.discover_master(NAME)[1]
        except redis.sentinel.MasterNotFoundError:
            return None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
