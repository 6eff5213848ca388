"""Application behind gunicorn, with gevent workers forked from a master that loaded it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import redis
from support import poll
from support.server import Server

from faults import Faults

APPLICATION = """
import os

from redis_ratelimit import Concurrency, Fixed, Limiter, Local, TokenBucket
from redis_ratelimit.wsgi import RateLimitMiddleware

limiter = Limiter.from_url(os.environ["LIMITER_URL"], timeout=20, on_outage=Local())
units = limiter.units("hot", Fixed(1000, "1h"))
if os.environ["CALLS_BEFORE_FORK"]:
    # Creates connections, locks and a tracking thread in the master.
    for _ in range(3):
        limiter.take("master", Fixed(1, "1h"))
    units.take()


def serve(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/wait":
        bucket = TokenBucket(1, 1, "3s")
        limiter.take("wait", bucket)
        limiter.take("wait", bucket, wait=30).require()
    elif path == "/lease":
        with limiter.lease("pool", Concurrency(2, 30), wait=20):
            limiter.take("leased", Fixed(1000, "1h"))
    elif path == "/denied":
        while limiter.take("denied", Fixed(3, "1h")):
            pass
        assert not limiter.take("denied", Fixed(3, "1h"))
    elif path == "/units":
        units.take().require()
    start_response("200 OK", [])
    return [b"served"]


app = RateLimitMiddleware(serve, limiter=limiter, limit=Fixed(1000, "1h"), key=lambda _: "all")
"""


@contextmanager
def gunicorn_serves(tmp_path: Path, url: str, *, calls_before_fork: bool) -> Iterator[httpx.Client]:
    """Serves the application by one worker."""
    (tmp_path / "served.py").write_text(APPLICATION)
    path = tmp_path / "socket"
    words = ["--worker-class", "gevent", "--preload", "--workers", "1", "--bind", f"unix:{path}"]
    environment = {
        **os.environ,
        "LIMITER_URL": url,
        "CALLS_BEFORE_FORK": "yes" if calls_before_fork else "",
        "PYTHONWARNINGS": "ignore",
    }
    log = tmp_path / "log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *words, "served:app"],
            cwd=tmp_path,
            env=environment,
            stdout=output,
            stderr=output,
        ) as process,
    ):
        try:
            poll.until(
                lambda: "Booting worker" in log.read_text(), "the worker has started", timeout=30
            )
            transport = httpx.HTTPTransport(uds=str(path))
            with httpx.Client(transport=transport, base_url="http://test", timeout=40) as client:
                yield client
        finally:
            process.terminate()
            process.wait(30)
            print(log.read_text())


@pytest.mark.parametrize("calls_before_fork", [False, True], ids=["first-call", "after-calls"])
def test_greenlets_of_a_preloaded_application_use_the_limiter(
    server: Server, admin: redis.Redis, tmp_path: Path, calls_before_fork: bool
) -> None:
    # The proxy delays connecting, so that several greenlets wait for a connection.
    with (
        Faults(server.port, delay=0.02).running() as proxy,
        gunicorn_serves(
            tmp_path, f"redis://127.0.0.1:{proxy.port}", calls_before_fork=calls_before_fork
        ) as client,
        ThreadPoolExecutor(20) as pool,
    ):

        def get_all(path: str, count: int) -> list[httpx.Response]:
            return list(pool.map(lambda _: client.get(path), range(count)))

        for path in ("/", "/units", "/denied", "/lease"):
            responses = get_all(path, 20)
            assert [one.status_code for one in responses] == [200] * 20, path
            # The server decided each request.
            remaining = [int(one.headers["X-RateLimit-Remaining"]) for one in responses]
            assert len(set(remaining)) == 20
        # A waiting greenlet lets others run.
        waiting = pool.submit(client.get, "/wait")
        poll.until(lambda: admin.exists("wait"), "the call waits", timeout=20)
        assert get_all("/", 3)[0].status_code == 200
        assert not waiting.done()
        assert waiting.result().status_code == 200
