"""Flask with Flask-Limiter, and FastAPI with slowapi, limited by one URI, over real HTTP."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import flask_limiter.util
import httpx
import pytest
import redis
import slowapi
import slowapi.errors
import slowapi.util
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from flask import Flask
from support.server import Server

import redis_ratelimit.storage  # noqa: F401  this line, and the URI, are all that is needed
from serving import uvicorn_serves, werkzeug_serves

LIMIT = "50/hour"
# Timeouts in seconds, long enough for a busy machine.
LONG_TIMEOUTS = {"socket_timeout": 30, "socket_connect_timeout": 30, "timeout": 30}


class Site:
    """Running application."""

    def __init__(self, url: str, client: httpx.Client) -> None:
        self._url, self._client = url, client

    def get(self) -> httpx.Response:
        return self._client.get(self._url)


@contextmanager
def flask_site(uri: str, strategy: str, **options: Any) -> Iterator[Site]:
    app = Flask(__name__)
    limiter = flask_limiter.Limiter(
        flask_limiter.util.get_remote_address,
        app=app,
        storage_uri=uri,
        storage_options=LONG_TIMEOUTS,
        strategy=strategy,
        default_limits=[LIMIT],
        headers_enabled=True,
        **options,
    )

    @app.get("/")
    def index() -> str:
        return "passed"

    assert limiter.storage.whole_seconds, "Retry-After would be too short"
    with werkzeug_serves(app) as url, httpx.Client(timeout=60) as client:
        yield Site(url, client)
    limiter.storage.storage.close()


@contextmanager
def fastapi_site(uri: str, strategy: str) -> Iterator[Site]:
    app = FastAPI()
    limiter = slowapi.Limiter(
        slowapi.util.get_remote_address,
        storage_uri=uri,
        storage_options=LONG_TIMEOUTS,
        strategy=strategy,
        headers_enabled=True,
    )
    app.state.limiter = limiter
    app.add_exception_handler(
        slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler
    )

    @app.get("/", response_class=PlainTextResponse)
    @limiter.limit(LIMIT)
    def index(request: Request, response: Response) -> str:  # noqa: ARG001  slowapi's
        return "passed"

    with uvicorn_serves(app) as url, httpx.Client(timeout=60) as client:
        yield Site(url, client)
    limiter._storage.storage.close()


@pytest.fixture
def uri(server: Server) -> str:
    return f"ratelimit://127.0.0.1:{server.port}"


@pytest.fixture(params=["fixed-window", "moving-window", "sliding-window-counter"])
def strategy(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[flask_site, fastapi_site])
def site(request: pytest.FixtureRequest, uri: str, strategy: str) -> Iterator[Site]:
    with request.param(uri, strategy) as site:
        yield site


def test_eight_callers_get_exactly_the_limit(site: Site) -> None:
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda _: site.get().status_code, range(120)))
    assert sorted(answers) == [200] * 50 + [429] * 70


def test_response_reports_remaining_and_retry_after(site: Site) -> None:
    passed = site.get()
    assert (passed.status_code, passed.text) == (200, "passed")
    assert passed.headers["X-RateLimit-Limit"] == "50"
    assert passed.headers["X-RateLimit-Remaining"] == "49"
    for _ in range(49):
        site.get()
    denied = site.get()
    assert denied.status_code == 429
    assert denied.headers["X-RateLimit-Remaining"] == "0"
    # The server's clock stands still.
    assert 3598 <= int(denied.headers["Retry-After"]) <= 3601


def test_flask_limiter_counts_in_memory_during_an_outage(
    uri: str, server: Server, admin: redis.Redis
) -> None:
    with flask_site(uri, "moving-window", in_memory_fallback=["2/hour"]) as site:
        assert site.get().status_code == 200
        assert admin.dbsize() == 1
        server.stop()
        assert [site.get().status_code for _ in range(3)] == [200, 200, 429]
