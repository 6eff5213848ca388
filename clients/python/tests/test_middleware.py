"""Existing applications with one line for a limit, over real HTTP."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import fastapi
import flask
import http_sf
import httpx
import pytest
import redis
from support.clock import Clock
from support.server import Server

from redis_ratelimit import (
    Decision,
    Fixed,
    LeakyBucket,
    Limiter,
    Local,
    Policy,
    TokenBucket,
    aio,
    asgi,
    fields,
    headers,
    tasks,
    threads,
    wsgi,
)
from serving import uvicorn_serves, werkzeug_serves

# Serves an application with the arguments of the middleware and of the limiter.
Serve = Callable[..., str]


def _bound(limiter: Any, middleware: dict[str, Any]) -> dict[str, Any]:
    """Returns the middleware's arguments with the limiter, or with a limit bound to it."""
    if "bound" not in middleware:
        return {"limiter": limiter, **middleware}
    name, others = middleware["bound"], {**middleware}
    del others["bound"]
    return {**others, "limit": limiter.limit(name, others["limit"])}


def fastapi_application(url: str, options: dict[str, Any], middleware: dict[str, Any]) -> Any:
    limiter = aio.Limiter.from_url(url, **options)

    @asynccontextmanager
    async def lifespan(_: fastapi.FastAPI) -> Any:
        yield
        await limiter.close()

    app = fastapi.FastAPI(lifespan=lifespan)

    @app.get("/items")
    async def items() -> dict[str, int]:
        return {"item": 1}

    @app.get("/own")
    async def items_with_own_fields(response: fastapi.Response) -> None:
        response.headers["X-RateLimit-Limit"] = "7"
        response.headers["RateLimit"] = '"own";r=7'

    # The key is a name from a header; a real application would use the authenticated user.
    def key(scope: asgi.Scope) -> str | None:
        headers = dict(scope["headers"])
        return headers[b"user"].decode() if b"user" in headers else None

    middleware = _bound(limiter, middleware)
    app.add_middleware(asgi.RateLimitMiddleware, **{"key": key, **middleware})
    return uvicorn_serves(app)


def flask_application(url: str, options: dict[str, Any], middleware: dict[str, Any]) -> Any:
    limiter = Limiter.from_url(url, **options)
    app = flask.Flask(__name__)

    @app.get("/items")
    def items() -> dict[str, int]:
        return {"item": 1}

    @app.get("/own")
    def items_with_own_fields() -> Any:
        return {}, 200, {"X-RateLimit-Limit": "7", "RateLimit": '"own";r=7'}

    def key(environ: wsgi.Environ) -> str | None:
        return environ.get("HTTP_USER")

    app.wsgi_app = wsgi.RateLimitMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, **{"key": key, **_bound(limiter, middleware)}
    )

    @contextmanager
    def serve_app() -> Iterator[str]:
        with limiter, werkzeug_serves(app) as served:
            yield served

    return serve_app()


@pytest.fixture(params=["FastAPI", "Flask"])
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def serve(framework: str, url: str) -> Iterator[Serve]:
    with ExitStack() as served:

        def serve(options: dict[str, Any] | None = None, **middleware: Any) -> str:
            options = {"timeout": 10.0, **(options or {})}
            application = fastapi_application if framework == "FastAPI" else flask_application
            return served.enter_context(application(url, options, middleware))

        yield serve


# Shared, as each client would read the certificates of all authorities.
http = httpx.Client(timeout=30)


def get(url: str, path: str = "/items", user: str | None = "alice") -> httpx.Response:
    return http.get(url + path, headers={} if user is None else {"User": user})


def status_counts(url: str, clients: int, requests: int, **options: Any) -> Counter[int]:
    def request(_: int) -> list[int]:
        return [get(url, **options).status_code for _ in range(requests)]

    with ThreadPoolExecutor(clients) as pool:
        return Counter(status for one in pool.map(request, range(clients)) for status in one)


def field(response: httpx.Response, name: str) -> dict[str, dict[str, int]]:
    """Parses a list of structured fields."""
    items = http_sf.parse(response.headers[name].encode(), tltype="list")
    return {str(item): dict(parameters) for item, parameters in items}


def test_exactly_the_limit_passes(serve: Serve) -> None:
    url = serve(limit=Fixed(50, "1h"))
    assert status_counts(url, clients=8, requests=10) == {200: 50, 429: 30}
    # Each user has a limit, and a request without a key has the limit of its address.
    assert status_counts(url, clients=1, requests=3, user="bob") == {200: 3}
    assert status_counts(url, clients=4, requests=15, user=None) == {200: 50, 429: 10}


def test_header_fields_of_responses(serve: Serve, clock: Clock) -> None:
    # The server's clock advances, but the limiter's does not.
    options = {"remember_denials": False}
    url = serve(options, limit=TokenBucket(10, 1, "6s"), name="api")
    response = get(url)
    assert response.json() == {"item": 1}
    assert response.headers["X-RateLimit-Limit"] == "10"
    assert response.headers["X-RateLimit-Remaining"] == "9"
    assert response.headers["X-RateLimit-Reset"] == "6"
    assert field(response, "RateLimit-Policy") == {"api": {"q": 10, "w": 60}}
    assert field(response, "RateLimit") == {"api": {"r": 9, "t": 6}}
    assert "Retry-After" not in response.headers
    unix = get(serve(options, limit=Fixed(5, "1h", name="hour"), unix_reset=True))
    seconds = int(unix.headers["X-RateLimit-Reset"]) - int(time.time())
    assert 3500 < seconds <= 3601, "seconds since 1970, by the clock of this process"
    assert status_counts(url, clients=1, requests=9) == {200: 9}
    clock.advance("1s")
    denied = get(url)
    assert denied.status_code == 429
    assert denied.headers["Retry-After"] == "5"
    assert denied.headers["X-RateLimit-Remaining"] == "0"
    assert field(denied, "RateLimit") == {"api": {"r": 0, "t": 5}}
    assert denied.headers["Content-Type"] == "application/problem+json"
    assert denied.json()["violated-policies"] == ["api"]
    assert denied.json()["status"] == 429
    assert get(url, "/nowhere").status_code == 429
    # After the announced wait.
    clock.advance("5s")
    assert get(url).status_code == 200


def test_header_fields_list_several_limits(serve: Serve) -> None:
    url = serve(limit=[TokenBucket(2, 2, 1, name="burst"), Fixed(1000, "1d")])
    response = get(url)
    assert field(response, "RateLimit-Policy") == {
        "burst": {"q": 2, "w": 1},
        "fixed-1000-1d": {"q": 1000, "w": 86_400},
    }
    assert field(response, "RateLimit") == {
        "burst": {"r": 1, "t": 1},
        "fixed-1000-1d": {"r": 999, "t": 86_400},
    }
    get(url)
    denied = get(url)
    assert denied.json()["violated-policies"] == ["burst"]
    assert field(denied, "RateLimit") == {"burst": {"r": 0, "t": 1}, "fixed-1000-1d": {"r": 998}}


def test_one_limit_has_its_own_name_everywhere() -> None:
    limit = Fixed(1, "1h", name="burst")
    denied = Decision(False, 1, 0, 1000, 1000, limits=(limit,))
    header_fields = fields(denied)
    assert header_fields["RateLimit-Policy"] == '"burst";q=1;w=3600'
    assert header_fields["RateLimit"] == '"burst";r=0;t=1'
    assert json.loads(headers.problem(denied))["violated-policies"] == ["burst"]


def test_shadow_policy_has_no_header_fields(serve: Serve, url: str) -> None:
    with Limiter.from_url(url, timeout=10) as operator:
        operator.policies.set("trial", Fixed(1, "1h", shadow=True))
    response = get(serve(limit=Policy("trial")))
    assert response.status_code == 200
    assert not [name for name in response.headers if "ratelimit" in name.lower()]


def test_policy_change_applies_to_a_running_application(serve: Serve, url: str) -> None:
    with Limiter.from_url(url, timeout=10) as operator:
        operator.policies.set("api", Fixed(2, "1h"), Fixed(1, "1h", name="new", shadow=True))
        options = {"remember_denials": False}
        served = serve(options, limit=Policy("user:alice", "api"), name="api")
        assert status_counts(served, clients=1, requests=3) == {200: 2, 429: 1}
        operator.policies.set("user:alice", Fixed(5, "1h"))
        response = get(served)
        assert response.status_code == 200
        assert field(response, "RateLimit-Policy") == {"api": {"q": 5}}
        # Clients do not see shadow limits.
        assert field(response, "RateLimit") == {"api": {"r": 2, "t": 3600}}


def test_bound_limit_in_middleware(serve: Serve, admin: redis.Redis) -> None:
    url = serve(bound="api", limit=Fixed(2, "1h"))
    assert status_counts(url, clients=1, requests=3) == {200: 2, 429: 1}
    assert admin.keys() == ["api:alice"]


def test_missing_limiter_is_rejected() -> None:
    for middleware in (asgi.RateLimitMiddleware, wsgi.RateLimitMiddleware):
        with pytest.raises(TypeError, match="limiter is needed"):
            middleware(None, limit=Fixed(2, "1h"))  # type: ignore[call-arg, arg-type]


def test_cost_is_a_function_of_the_request(serve: Serve, framework: str) -> None:
    def cost(request: Any) -> int:
        path = request["path"] if framework == "FastAPI" else request["PATH_INFO"]
        return 5 if path == "/own" else 1

    url = serve(limit=Fixed(7, "1h"), cost=cost)
    assert get(url, "/own").status_code == 200
    assert get(url, "/own").status_code == 429
    assert status_counts(url, clients=1, requests=3) == {200: 2, 429: 1}


def test_fields_of_the_handlers_own_limits_are_kept(serve: Serve) -> None:
    response = get(serve(limit=Fixed(50, "1h")), "/own")
    assert response.headers.get_list("X-RateLimit-Limit") == ["7"]
    assert field(response, "RateLimit") == {"own": {"r": 7}, "default": {"r": 49, "t": 3600}}


def test_request_without_a_key_is_limited_by_address(serve: Serve, url: str) -> None:
    served = serve(limit=Fixed(2, "1h"), key=None)
    assert status_counts(served, clients=1, requests=3) == {200: 2, 429: 1}
    with Limiter.from_url(url, timeout=10) as limiter:
        assert not limiter.limit(Fixed(2, "1h")).peek("127.0.0.1")


def test_request_with_a_wait_is_delayed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    url = serve(limit=LeakyBucket(3, 1, "2s"))
    monkeypatch.setattr(tasks.Transport, "sleep", staticmethod(sleep))
    monkeypatch.setattr(threads.Transport, "sleep", staticmethod(slept.append))
    assert status_counts(url, clients=1, requests=4) == {200: 3, 429: 1}
    assert slept == [2.0, 4.0]


def test_outage_does_not_fail_the_application(serve: Serve, server: Server) -> None:
    open_url = serve(limit=Fixed(2, "1h"))
    closed_url = serve({"on_outage": "closed"}, limit=Fixed(2, "1h"))
    local = serve({"on_outage": Local(share=0.5)}, limit=Fixed(4, "1h"))
    by_policy = serve(limit=Policy("api"))
    server.stop("kill")
    assert status_counts(open_url, clients=1, requests=5) == {200: 5}
    assert status_counts(local, clients=1, requests=5) == {200: 2, 429: 3}
    assert status_counts(by_policy, clients=1, requests=2) == {200: 2}
    denied = get(closed_url)
    assert denied.status_code == 503
    assert denied.headers["Retry-After"] == "1"
    assert denied.json()["type"].endswith("temporary-reduced-capacity")
    for response in (denied, get(open_url), get(local)):
        # Limits of this process are not the client's, but the policy is unchanged.
        assert not [name for name in response.headers if name.startswith("x-ratelimit")]
        assert "RateLimit" not in response.headers
        assert "default" in field(response, "RateLimit-Policy")
    assert "RateLimit-Policy" not in get(by_policy).headers


def test_denial_names_the_violated_limits(serve: Serve, server: Server) -> None:
    limits = [Fixed(9, "1h", name="many"), Fixed(1, "1h", name="few"), Fixed(1, "2h")]
    served = serve(limit=limits)
    local = serve({"on_outage": Local()}, limit=limits)
    one = serve({"on_outage": Local()}, limit=Fixed(1, "1h"), name="api")
    get(served)
    assert get(served).json()["violated-policies"] == ["few", "fixed-1-2h"]
    server.stop("kill")
    get(local)
    denied = get(local)
    assert denied.json()["violated-policies"] == ["few", "fixed-1-2h"]
    assert set(denied.json()["violated-policies"]) < set(field(denied, "RateLimit-Policy"))
    get(one)
    assert get(one).json()["violated-policies"] == list(field(get(one), "RateLimit-Policy"))


def test_banned_key_names_all_limits() -> None:
    limits = (Fixed(9, "1h", name="many"), Fixed(1, "1h", name="few"))
    each = tuple(Decision(True, one, 0, 0, 0, name=one) for one in ("many", "few"))  # type: ignore[arg-type]
    denied = Decision(False, 1, 0, 1000, 1000, each=each, limits=limits)
    assert json.loads(headers.problem(denied))["violated-policies"] == ["many", "few"]


def test_setup_error_is_raised_instead_of_allowing_the_request(
    serve: Serve, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with redis.Redis.from_url(url) as client:
        client.set("FIXED 2 3600000:alice", "no limiter")
    served = serve(limit=Fixed(2, "1h"))

    # Servers close the connection after a 500, so use a new connection for each request.
    def status(url: str) -> int:
        return httpx.get(url + "/items", headers={"User": "alice"}).status_code

    assert [status(served) for _ in range(3)] == [500] * 3
    assert status_counts(served, clients=1, requests=3, user="bob") == {200: 2, 429: 1}
    by_policy = serve(limit=Policy("nowhere"))
    assert [status(by_policy) for _ in range(3)] == [500] * 3
    lines = [record.getMessage() for record in caplog.records if record.name == "redis_ratelimit"]
    assert [line for line in lines if "WRONGTYPE" in line]
    assert [line for line in lines if "RL.POLICYSET" in line]


def test_full_server_is_503(serve: Serve, url: str) -> None:
    served = serve({"on_outage": "open"}, limit=Fixed(2, "1h"))
    with redis.Redis.from_url(url) as client:
        client.config_set("maxmemory", 1)
        try:
            denied = get(served)
        finally:
            client.config_set("maxmemory", 0)
    assert denied.status_code == 503
    assert denied.headers["Retry-After"] == "1"
    assert "RateLimit" not in denied.headers
    assert "violated-policies" not in denied.json()
