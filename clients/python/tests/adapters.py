"""Adapters for frameworks behind one interface: one request, with an address and a header."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import fastapi
import flask
import httpx
from django.http import HttpResponse
from django.test import RequestFactory

from redis_ratelimit import Limiter, aio, asgi, wsgi
from redis_ratelimit import django as for_django
from redis_ratelimit import fastapi as for_fastapi
from redis_ratelimit import flask as for_flask


@dataclass
class Answer:
    """Response of an application."""

    status: int
    headers: Mapping[str, str]
    body: bytes


# Sends one request to an application behind an adapter. The arguments are the URL of the server,
# the limit, the client's address, the value of X-Who, the value of X-Status, and options of the
# adapter. The application responds with the status of X-Status, or raises an error.
Send = Callable[..., Answer]


def _status(text: str | None) -> int:
    if text == "error":
        raise ZeroDivisionError
    return int(text or 200)


def _headers(caller: str | None, status: int | str | None) -> dict[str, str]:
    headers = {} if caller is None else {"X-Who": caller}
    return headers if status is None else {**headers, "X-Status": str(status)}


def send_to_wsgi(
    url: str,
    limit: Any,
    address: str | None,
    caller: str | None,
    status: Any = None,
    **options: Any,
) -> Answer:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        code = _status(environ.get("HTTP_X_STATUS"))
        start_response(f"{code} answered", [])
        return [b"served"]

    started: list[Any] = []
    environ = {} if address is None else {"REMOTE_ADDR": address}
    names = {"X-Who": "HTTP_X_WHO", "X-Status": "HTTP_X_STATUS"}
    environ |= {names[name]: value for name, value in _headers(caller, status).items()}
    with _limiter(url, options) as limiter:
        options = _options(options, lambda environ: environ.get("HTTP_X_WHO"), limiter, limit)
        middleware = wsgi.RateLimitMiddleware(app, **options)
        body = middleware(environ, lambda line, fields: started.append((line, dict(fields))))
    return Answer(int(started[0][0].split()[0]), started[0][1], b"".join(body))


def send_to_flask(
    url: str,
    limit: Any,
    address: str | None,
    caller: str | None,
    status: Any = None,
    **options: Any,
) -> Answer:
    app = flask.Flask(__name__)
    app.testing = True
    with _limiter(url, options) as limiter:
        key = lambda: flask.request.headers.get("X-Who")  # noqa: E731
        options = _options(options, key, limiter, limit)

        @app.get("/")
        @for_flask.ratelimit(**options)
        def view() -> Any:
            return "served", _status(flask.request.headers.get("X-Status"))

        response = app.test_client().get(
            "/", headers=_headers(caller, status), environ_overrides={"REMOTE_ADDR": address}
        )
    return Answer(response.status_code, response.headers, response.data)


def send_to_django(
    url: str,
    limit: Any,
    address: str | None,
    caller: str | None,
    status: Any = None,
    **options: Any,
) -> Answer:
    with _limiter(url, options) as limiter:
        key = lambda request: request.headers.get("X-Who")  # noqa: E731
        options = _options(options, key, limiter, limit)

        @for_django.ratelimit(**options)
        def view(request: Any) -> HttpResponse:
            return HttpResponse("served", status=_status(request.headers.get("X-Status")))

        request = RequestFactory().get("/", headers=_headers(caller, status))
        request.META["REMOTE_ADDR"] = address or ""
        response = view(request)
    return Answer(response.status_code, response.headers, response.content)


def send_to_asgi(
    url: str,
    limit: Any,
    address: str | None,
    caller: str | None,
    status: Any = None,
    **options: Any,
) -> Answer:
    async def app(scope: Any, _: Any, send: Any) -> None:
        code = _status(dict(scope["headers"]).get(b"x-status", b"200").decode())
        await send({"type": "http.response.start", "status": code, "headers": []})
        await send({"type": "http.response.body", "body": b"served"})

    def caller_of(scope: Any) -> str | None:
        caller = dict(scope["headers"]).get(b"x-who")
        return None if caller is None else caller.decode()

    def make_app(limiter: Any, options: dict[str, Any]) -> Any:
        return asgi.RateLimitMiddleware(app, **_options(options, caller_of, limiter, limit))

    return asyncio.run(_send(url, address, _headers(caller, status), options, make_app))


def send_to_fastapi(
    url: str,
    limit: Any,
    address: str | None,
    caller: str | None,
    status: Any = None,
    **options: Any,
) -> Answer:
    def make_app(limiter: Any, options: dict[str, Any]) -> Any:
        app = fastapi.FastAPI()
        options = _options(options, lambda request: request.headers.get("x-who"), limiter, limit)
        dependency = for_fastapi.RateLimit(**options)

        @app.get("/", dependencies=[fastapi.Depends(dependency)])
        async def route() -> str:
            return "served"

        return app

    return asyncio.run(_send(url, address, _headers(caller, status), options, make_app))


async def _send(
    url: str, address: str | None, headers: dict[str, str], options: dict[str, Any], make_app: Any
) -> Answer:
    prefix = options.pop("prefix", "")
    async with aio.Limiter.from_url(url, timeout=10, prefix=prefix) as limiter:
        client: Any = None if address is None else (address, 4711)
        transport = httpx.ASGITransport(app=make_app(limiter, options), client=client)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            response = await client.get("/", headers=headers)
    return Answer(response.status_code, response.headers, response.content)


def _limiter(url: str, options: dict[str, Any]) -> Limiter:
    return Limiter.from_url(url, timeout=10, prefix=options.pop("prefix", ""))


def _options(options: dict[str, Any], key: Any, limiter: Any, limit: Any) -> dict[str, Any]:
    """Returns the options of an adapter. With `by_header`, `key` is its key function; with `bound`,
    the limit is bound to the limiter.
    """
    options = {**options}
    if options.pop("by_header", False):
        options["key"] = key
    if options.pop("bound", False):
        limits = limit if isinstance(limit, list) else [limit]
        name = options.pop("name", None)
        return {**options, "limit": limiter.limit(*([] if name is None else [name]), *limits)}
    return {**options, "limit": limit, "limiter": limiter}


ADAPTERS: dict[str, Send] = {
    "ASGI": send_to_asgi,
    "WSGI": send_to_wsgi,
    "FastAPI": send_to_fastapi,
    "Flask": send_to_flask,
    "Django": send_to_django,
}
