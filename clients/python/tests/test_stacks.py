"""Limits of applications in each framework, by one line."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import fastapi
import flask
import httpx
import pytest
import redis
from django.conf import settings
from support.server import Server

import django_site  # noqa: F401  before all modules that read the settings
from redis_ratelimit import Fixed, Limiter, SetupError, TokenBucket, aio
from redis_ratelimit.asgi import RateLimitMiddleware

settings.ROOT_URLCONF = __name__

# These modules read the settings when they are imported.
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.core.handlers.asgi import ASGIHandler  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.test import Client, RequestFactory, override_settings  # noqa: E402
from django.urls import path  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.test import APIRequestFactory  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

from redis_ratelimit import django as for_django  # noqa: E402
from redis_ratelimit import fastapi as for_fastapi  # noqa: E402
from redis_ratelimit import flask as for_flask  # noqa: E402
from redis_ratelimit import rest_framework as for_rest  # noqa: E402

LIMIT, THREE = Fixed(2, "1h"), Fixed(3, "1h")


def hello(_: Any) -> HttpResponse:
    return HttpResponse("hello")


async def async_hello(_: Any) -> HttpResponse:
    return HttpResponse("hello")


urlpatterns = [path("", hello), path("async", async_hello)]


@pytest.fixture
def limiter(url: str) -> Iterator[Limiter]:
    with Limiter.from_url(url, timeout=10) as limiter:
        yield limiter


def assert_denied(status: int, headers: Any, name: str) -> None:
    assert status == 429
    assert headers["Retry-After"] == "3600"
    assert headers["X-RateLimit-Limit"] == "2"
    assert headers["RateLimit-Policy"] == f'"{name}";q=2;w=3600'


def test_django_middleware(limiter: Limiter, admin: redis.Redis) -> None:
    with override_settings(RATELIMIT=limiter.limit("api", LIMIT)):
        client = Client()
        answers = [client.get("/") for _ in range(3)]
        assert [one.status_code for one in answers] == [200, 200, 429]
        assert answers[0]["X-RateLimit-Remaining"] == "1"
        assert_denied(answers[2].status_code, answers[2], "api")
        assert answers[2]["Content-Type"] == "application/problem+json"
        assert answers[2].json()["violated-policies"] == ["api"]
        # Another address has its own limit.
        assert client.get("/", REMOTE_ADDR="192.0.2.7").status_code == 200
    assert set(admin.keys()) == {"api:127.0.0.1", "api:192.0.2.7"}


def test_django_key_function(limiter: Limiter, admin: redis.Redis) -> None:
    options = {
        "RATELIMIT": limiter.limit("api", LIMIT),
        "RATELIMIT_KEY": lambda request: request.headers.get("X-User"),
    }
    with override_settings(**options):
        assert Client().get("/")["X-RateLimit-Remaining"] == "1"
        assert Client().get("/", headers={"x-user": "alice"})["X-RateLimit-Remaining"] == "1"
    assert set(admin.keys()) == {"ip:api:127.0.0.1", "api:alice"}


def test_django_reports_invalid_settings() -> None:
    with pytest.raises(ImproperlyConfigured, match="RATELIMIT is to be"):
        Client().get("/")


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_django_with_asgi(url: str, kind: str) -> None:
    async def get_responses() -> list[httpx.Response]:
        limiter = Limiter.from_url(url, timeout=10) if kind == "sync" else aio.Limiter.from_url(url)
        with override_settings(RATELIMIT=limiter.limit("api", LIMIT)):
            transport = httpx.ASGITransport(app=ASGIHandler(), client=("192.0.2.1", 4711))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                answers = [await client.get("/async") for _ in range(3)]
        closing = limiter.close()
        if closing is not None:
            await closing
        return answers

    answers = asyncio.run(get_responses())
    assert [one.status_code for one in answers] == [200, 200, 429]
    assert_denied(answers[2].status_code, answers[2].headers, "api")


def test_django_view_decorator(limiter: Limiter) -> None:
    view = for_django.ratelimit(limiter.limit("login", LIMIT), cost=2)(hello)
    answers = [view(RequestFactory().get("/")) for _ in range(2)]
    assert [one.status_code for one in answers] == [200, 429]
    assert_denied(answers[1].status_code, answers[1], "login")
    with pytest.raises(ImproperlyConfigured, match=r"aio\.Limiter"):
        for_django.ratelimit(limiter.limit("login", LIMIT))(async_hello)


def test_django_coroutine_view_decorator(url: str) -> None:
    async def get_responses() -> list[int]:
        async with aio.Limiter.from_url(url, timeout=10) as limiter:
            view = for_django.ratelimit(limiter.limit("login", LIMIT))(async_hello)
            return [(await view(RequestFactory().get("/"))).status_code for _ in range(3)]

    assert asyncio.run(get_responses()) == [200, 200, 429]


# Value of X-RateLimit-Reset with `unix_reset`: the time at which LIMIT has recovered.
NOW = 1_800_000_000
RESET = str(NOW + 3600)


@pytest.fixture
def frozen_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freezes the clock of this process, like the clock of the server."""
    monkeypatch.setattr("redis_ratelimit.headers.time.time_ns", lambda: NOW * 10**9)


@pytest.mark.usefixtures("frozen_time")
def test_django_reports_the_reset_as_unix_time(limiter: Limiter) -> None:
    with override_settings(RATELIMIT=limiter.limit("api", LIMIT)):
        assert Client().get("/")["X-RateLimit-Reset"] == "3600"
        with override_settings(RATELIMIT_UNIX_RESET=True):
            assert Client().get("/")["X-RateLimit-Reset"] == RESET
    view = for_django.ratelimit(limiter.limit("login", LIMIT), unix_reset=True)(hello)
    assert view(RequestFactory().get("/"))["X-RateLimit-Reset"] == RESET


class User:
    is_authenticated = True

    def __init__(self, pk: int) -> None:
        self.pk = pk


def rest_answers(throttle: Any, user: User | None, times: int = 3) -> list[Any]:
    class View(APIView):
        throttle_classes = (throttle,)
        throttle_scope = "exports"
        authentication_classes = ()
        permission_classes = ()

        def get(self, _: Any) -> Response:
            return Response("hello")

    answers = []
    for _ in range(times):
        request = APIRequestFactory().get("/")
        if user is not None:
            request._force_auth_user = user
        answers.append(View.as_view()(request))
    return answers


def test_rest_framework_throttles_by_rate(limiter: Limiter, admin: redis.Redis) -> None:
    with override_settings(RATELIMIT_LIMITER=limiter):
        answers = rest_answers(for_rest.UserRateThrottle, User(7))
        assert [one.status_code for one in answers] == [200, 200, 429]
        assert answers[2]["Retry-After"] == "60"
        assert [one.status_code for one in rest_answers(for_rest.AnonRateThrottle, None)] == (
            [200, 429, 429]
        )
        # AnonRateThrottle does not limit logged-in users.
        assert {one.status_code for one in rest_answers(for_rest.AnonRateThrottle, User(7))} == (
            {200}
        )
        assert [one.status_code for one in rest_answers(for_rest.ScopedRateThrottle, User(7))] == (
            [200, 429, 429]
        )
    assert set(admin.keys()) == {
        "throttle_user_7",
        "throttle_anon_127.0.0.1",
        "throttle_exports_7",
    }


def test_rest_framework_throttle_with_a_bound_limit(limiter: Limiter, admin: redis.Redis) -> None:
    class Searches(for_rest.Throttle):
        limit = limiter.limit("search", TokenBucket(2, 1, "30s"))

    answers = rest_answers(Searches, User(7))
    assert [one.status_code for one in answers] == [200, 200, 429]
    assert answers[2]["Retry-After"] == "30"
    rest_answers(Searches, None)
    assert set(admin.keys()) == {"search:user:7", "ip:search:127.0.0.1"}


def test_rest_framework_reports_a_missing_limiter() -> None:
    with pytest.raises(ImproperlyConfigured, match="RATELIMIT_LIMITER"):
        rest_answers(for_rest.UserRateThrottle, User(7))


def test_fastapi_route_dependency(url: str) -> None:
    async def get_responses() -> list[httpx.Response]:
        async with aio.Limiter.from_url(url, timeout=10) as limiter:
            app = fastapi.FastAPI()
            search = for_fastapi.RateLimit(limiter.limit("search", LIMIT))

            @app.get("/search", dependencies=[fastapi.Depends(search)])
            async def answer() -> str:
                return "found"

            @app.get("/free")
            async def free() -> str:
                return "free"

            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                answers = [await client.get("/search") for _ in range(3)]
                assert "X-RateLimit-Limit" not in (await client.get("/free")).headers
                return answers

    answers = asyncio.run(get_responses())
    assert [one.status_code for one in answers] == [200, 200, 429]
    assert answers[0].headers["X-RateLimit-Remaining"] == "1"
    assert_denied(answers[2].status_code, answers[2].headers, "search")
    assert answers[2].headers["Content-Type"] == "application/problem+json"
    assert answers[2].json()["violated-policies"] == ["search"]


def test_flask_view_decorator(limiter: Limiter, admin: redis.Redis) -> None:
    app = flask.Flask(__name__)

    @app.get("/search")
    @for_flask.ratelimit(limiter.limit("search", LIMIT))
    def search() -> str:
        return "found"

    @app.get("/by-user")
    @for_flask.ratelimit(
        limiter.limit("by-user", LIMIT), key=lambda: flask.request.headers.get("user")
    )
    def by_user() -> str:
        return "found"

    client = app.test_client()
    answers = [client.get("/search") for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    assert answers[0].headers["X-RateLimit-Remaining"] == "1"
    assert_denied(answers[2].status_code, answers[2].headers, "search")
    assert answers[2].json["violated-policies"] == ["search"]
    assert client.get("/by-user").headers["X-RateLimit-Limit"] == "2"
    assert client.get("/by-user", headers={"user": "alice"}).headers["X-RateLimit-Limit"] == "2"
    assert set(admin.keys()) == {"search:127.0.0.1", "by-user:alice", "ip:by-user:127.0.0.1"}


@pytest.mark.usefixtures("frozen_time")
def test_route_and_view_report_the_reset_as_unix_time(limiter: Limiter, url: str) -> None:
    app = flask.Flask(__name__)
    app.get("/")(for_flask.ratelimit(limiter.limit("flask", LIMIT), unix_reset=True)(lambda: "hi"))
    assert app.test_client().get("/").headers["X-RateLimit-Reset"] == RESET

    async def get_responses() -> httpx.Response:
        async with aio.Limiter.from_url(url, timeout=10) as async_limiter:
            app = fastapi.FastAPI()
            search = for_fastapi.RateLimit(async_limiter.limit("fastapi", LIMIT), unix_reset=True)
            app.get("/", dependencies=[fastapi.Depends(search)])(lambda: "hi")
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.get("/")

    assert asyncio.run(get_responses()).headers["X-RateLimit-Reset"] == RESET


def statuses_with_flask(url: str) -> list[int]:
    app = flask.Flask(__name__)
    app.testing = True
    with Limiter.from_url(url) as limiter:
        app.get("/")(for_flask.ratelimit(limiter.limit("flask", THREE))(lambda: "hello"))
        return [app.test_client().get("/").status_code for _ in range(5)]


def statuses_with_django(url: str) -> list[int]:
    with (
        Limiter.from_url(url) as limiter,
        override_settings(RATELIMIT=limiter.limit("django", THREE)),
    ):
        return [Client().get("/").status_code for _ in range(5)]


def statuses_with_fastapi(url: str) -> list[int]:
    async def get_responses() -> list[int]:
        async with aio.Limiter.from_url(url) as limiter:
            app = fastapi.FastAPI()
            app.add_middleware(RateLimitMiddleware, limit=limiter.limit("fastapi", THREE))
            app.get("/")(lambda: "hello")
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return [(await client.get("/")).status_code for _ in range(5)]

    return asyncio.run(get_responses())


@pytest.mark.parametrize(
    "statuses_of", [statuses_with_flask, statuses_with_django, statuses_with_fastapi]
)
def test_first_application_has_a_limit(
    server: Server, url: str, statuses_of: Callable[[str], list[int]]
) -> None:
    """An application as a new user writes it is limited, and reports a wrong password at the first
    request.
    """
    assert statuses_of(url) == [200, 200, 200, 429, 429]
    with pytest.raises(SetupError, match=r"WRONGPASS .*password"):
        statuses_of(f"redis://shop:wrong@127.0.0.1:{server.port}")
