"""Workers while Redis is away, or has no module: what they do, and what they tell."""

import os
import socket
import subprocess
import sys

import pytest
from receiver import Receiver
from staff import EXAMPLE, Staff
from without_module import without_module

from support import poll
from support.binaries import Binary
from support.server import Server


def fail_tries(server: Server, count: int) -> None:
    """Lets so many connections fail, where the server was."""
    with socket.create_server(("127.0.0.1", server.port)) as port:
        port.settimeout(30)
        for _ in range(count):
            port.accept()[0].close()


def hire_one_who_looks(staff: Staff) -> subprocess.Popen[str]:
    """A worker whose log is kept, and who has begun to look for jobs."""
    looked = staff.calls("xautoclaim")
    (worker,) = staff.hire(1, limit=1, ttl=10, log=subprocess.PIPE)
    poll.until(lambda: staff.calls("xautoclaim") > looked, "it looks for jobs", timeout=30)
    return worker


def log_of_recovery(
    worker: subprocess.Popen[str], staff: Staff, server: Server, receiver: Receiver
) -> str:
    """Returns a worker's log after eight failed tries, the server's return and one finished job."""
    fail_tries(server, 8)
    # It comes back empty, without even the group of workers.
    server.start()
    staff.add_jobs(receiver.url, "next")
    poll.until(lambda: receiver.done["next"] == 1, "it is done", timeout=30)
    worker.terminate()
    _, log = worker.communicate(timeout=30)
    return log


def test_an_outage_is_one_line_when_it_begins_and_one_when_it_is_over(
    staff: Staff, server: Server
) -> None:
    with Receiver(lambda _: 0.01) as receiver:
        worker = hire_one_who_looks(staff)
        server.stop("kill")
        log = log_of_recovery(worker, staff, server, receiver)
    begins, ends = log.splitlines()
    assert begins.startswith(f"worker {worker.pid}: Redis is away: ")
    assert ends == f"worker {worker.pid}: Redis is back"


def test_a_worker_may_start_before_redis_does(staff: Staff, server: Server) -> None:
    server.stop("kill")
    with Receiver(lambda _: 0.01) as receiver:
        (worker,) = staff.hire(1, limit=1, ttl=10, log=subprocess.PIPE)
        log = log_of_recovery(worker, staff, server, receiver)
    assert len(log.splitlines()) == 2


@pytest.mark.parametrize("program", ["worker.py", "demo.py"])
def test_a_server_without_the_module_is_told_of_in_one_line(
    program: str, plain_server: Server
) -> None:
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


def test_a_server_that_comes_back_without_the_module_is_told_of_in_one_line(
    binary: Binary,
) -> None:
    with Server(binary) as server:
        staff = Staff(server)
        worker = hire_one_who_looks(staff)
        server.stop("kill")
        fail_tries(server, 8)
        without_module(server).start()

        def tries() -> int:
            with server.client(decode_responses=True) as redis:
                return redis.info("errorstats").get("errorstat_ERR", {"count": 0})["count"]

        poll.until(lambda: tries() >= 4, "it has tried", timeout=30)
        worker.terminate()
        _, log = worker.communicate(timeout=30)
    away, *told = log.splitlines()
    assert away.startswith(f"worker {worker.pid}: Redis is away: ")
    # One that says that it is back may come before or after.
    missing = (
        "the redis-ratelimit module is not loaded: "
        "start the server with --loadmodule /path/to/libredis_ratelimit.so policies yes"
    )
    assert [line for line in told if not line.endswith("Redis is back")] == [
        f"worker {worker.pid}: Redis refuses a call for 'rl:places': {missing}"
    ]
