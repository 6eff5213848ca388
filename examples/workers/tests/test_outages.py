"""Workers and their logs in an outage of Redis, or without the module."""

import os
import socket
import subprocess
import sys

import pytest
from receiver import Receiver
from without_module import without_module
from worker_pool import EXAMPLE, WorkerPool

from support import poll
from support.binaries import Binary
from support.server import Server


def fail_connections(server: Server, count: int) -> None:
    """Accepts and closes `count` connections on the port of the stopped server."""
    with socket.create_server(("127.0.0.1", server.port)) as port:
        port.settimeout(30)
        for _ in range(count):
            port.accept()[0].close()


def start_searching_worker(pool: WorkerPool) -> subprocess.Popen[str]:
    """Starts a worker with a captured log and waits until it looks for jobs."""
    before = pool.calls("xautoclaim")
    (worker,) = pool.start(1, limit=1, ttl=10, log=subprocess.PIPE)
    poll.until(lambda: pool.calls("xautoclaim") > before, "the worker looks for jobs", timeout=30)
    return worker


def log_of_recovery(
    worker: subprocess.Popen[str], pool: WorkerPool, server: Server, receiver: Receiver
) -> str:
    """Returns a worker's log after eight failed tries, the server's return and one finished job."""
    fail_connections(server, 8)
    # The server is empty, without the consumer group.
    server.start()
    pool.add_jobs(receiver.url, "next")
    poll.until(lambda: receiver.done["next"] == 1, "the job is done", timeout=30)
    worker.terminate()
    _, log = worker.communicate(timeout=30)
    return log


def test_begin_and_end_of_an_outage_are_logged_once(pool: WorkerPool, server: Server) -> None:
    with Receiver(lambda _: 0.01) as receiver:
        worker = start_searching_worker(pool)
        server.stop("kill")
        log = log_of_recovery(worker, pool, server, receiver)
    begin_line, end_line = log.splitlines()
    assert begin_line.startswith(f"worker {worker.pid}: Redis is away: ")
    assert end_line == f"worker {worker.pid}: Redis is back"


def test_worker_may_start_before_redis(pool: WorkerPool, server: Server) -> None:
    server.stop("kill")
    with Receiver(lambda _: 0.01) as receiver:
        (worker,) = pool.start(1, limit=1, ttl=10, log=subprocess.PIPE)
        log = log_of_recovery(worker, pool, server, receiver)
    assert len(log.splitlines()) == 2


@pytest.mark.parametrize("program", ["worker.py", "demo.py"])
def test_missing_module_is_logged_once(program: str, plain_server: Server) -> None:
    run = subprocess.run(
        [sys.executable, program],
        check=False,
        cwd=EXAMPLE,
        env=os.environ | {"REDIS_URL": f"redis://127.0.0.1:{plain_server.port}"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert run.returncode == 1
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert line.endswith(
        "the redis-ratelimit module is not loaded: "
        "start the server with --loadmodule /path/to/libredis_ratelimit.so policies yes"
    )


def test_restart_without_the_module_is_logged_once(
    binary: Binary,
) -> None:
    with Server(binary) as server:
        pool = WorkerPool(server)
        worker = start_searching_worker(pool)
        server.stop("kill")
        fail_connections(server, 8)
        without_module(server).start()

        def failed_calls() -> int:
            with server.client(decode_responses=True) as redis:
                return redis.info("errorstats").get("errorstat_ERR", {"count": 0})["count"]

        poll.until(lambda: failed_calls() >= 4, "the worker has made calls", timeout=30)
        worker.terminate()
        _, log = worker.communicate(timeout=30)
    begin, *lines = log.splitlines()
    assert begin.startswith(f"worker {worker.pid}: Redis is away: ")
    # The line about the end of the outage may come before or after.
    missing = (
        "the redis-ratelimit module is not loaded: "
        "start the server with --loadmodule /path/to/libredis_ratelimit.so policies yes"
    )
    assert [line for line in lines if not line.endswith("Redis is back")] == [
        f"worker {worker.pid}: Redis refuses a call for 'rl:places': {missing}"
    ]
