"""Limits of a request and responses to denials, in every adapter for frameworks."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import redis
from django.http import HttpResponse

import django_site  # noqa: F401  before all modules that read the settings
from adapters import ADAPTERS, Send
from redis_ratelimit import UNLIMITED, Fixed, Limiter, Policy, Sketch, TokenBucket, asgi, wsgi
from tables import KEYS, limits_of, table


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def send(adapter: str) -> Send:
    return ADAPTERS[adapter]


@pytest.mark.parametrize("bound", [False, True], ids=["unbound", "bound"])
def test_keys_match_the_table(send: Send, url: str, admin: redis.Redis, bound: bool) -> None:
    with Limiter.from_url(url, timeout=10) as operator:
        operator.policies.set("default", Fixed(100, "1h"))
    for case in KEYS["keys"]:
        admin.flushall()
        limits = limits_of(case)
        options = {name: case[name] for name in ("name", "prefix") if name in case}
        by_header = "who" in case
        address = case.get("address", "198.51.100.7")
        answer = send(
            url, limits, address, case.get("who"), by_header=by_header, bound=bound, **options
        )
        assert answer.status == 200, case
        if isinstance(limits[0], Sketch):
            assert admin.keys() == ["app:addresses"]
            row = admin.execute_command(
                "RL.PEEK", "app:addresses", *limits[0].spec(item=case["key"])
            )
            assert row[2] == 49, case
        else:
            assert admin.keys() == [case["key"]], case


def test_key_of_matches_the_table(url: str) -> None:
    for case in KEYS["keys"]:
        with Limiter.from_url(url) as limiter:
            name = [case["name"]] if "name" in case else []
            bound = limiter.limit(*name, *limits_of(case))
            prefix = "" if isinstance(bound.limits[0], Sketch) else case.get("prefix", "")
            if case.get("who"):
                key = bound.key_of(case["who"])
            elif "who" in case or case["address"] is None:
                key = bound.key_of_address(case["address"])
            else:
                key = bound.key_of(case["address"])
            assert prefix + str(key) == case["key"], case


@pytest.mark.parametrize("name", KEYS["refused_names"])
def test_reserved_name_is_rejected(url: str, name: str) -> None:
    with Limiter.from_url(url) as limiter:
        with pytest.raises(ValueError, match="no name for a limit"):
            limiter.limit(name, Fixed(1, "1h"))
        with pytest.raises(ValueError, match="no name for a limit"):
            limiter.limit(Policy(name))


def test_two_limits_of_one_client_have_separate_usage(send: Send, url: str) -> None:
    passed = [send(url, "3/hour", "192.0.2.1", None).status for _ in range(5)]
    assert passed == [200, 200, 200, 429, 429]
    assert send(url, "3/day", "192.0.2.1", None).headers["X-RateLimit-Remaining"] == "2"
    # Limits with the same canonical words share usage.
    assert send(url, Fixed(3, 3600), "192.0.2.1", None).status == 429


@pytest.mark.parametrize("caller", [None, ""])
def test_request_without_a_key_has_the_limit_of_its_address(
    send: Send, url: str, caller: Any
) -> None:
    options = {"name": "api", "by_header": True}
    statuses = [send(url, "2/hour", "192.0.2.1:50001", caller, **options).status for _ in range(3)]
    assert statuses == [200, 200, 429]
    # A header cannot produce the key of an address.
    for value in ("192.0.2.1", "ip:192.0.2.1", "api:192.0.2.1", "ip:api:192.0.2.1"):
        assert send(url, "2/hour", "192.0.2.9", value, **options).status == 200


def test_unlimited_must_be_explicit(send: Send, adapter: str, url: str, admin: redis.Redis) -> None:
    key = (lambda: UNLIMITED) if adapter == "Flask" else (lambda _: UNLIMITED)
    for _ in range(3):
        answer = send(url, "1/hour", "192.0.2.1", None, key=key)
        assert answer.status == 200
        assert "X-RateLimit-Limit" not in answer.headers
        assert send(url, key, "192.0.2.1", None).status == 200
    assert admin.keys() == []


def test_request_without_an_address_is_logged(
    send: Send, url: str, admin: redis.Redis, caplog: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("redis_ratelimit.addresses._unknown_clients._logged_at", -1e9)
    with caplog.at_level(logging.WARNING, "redis_ratelimit"):
        for address in (None, "unix:", "testclient"):
            assert send(url, "5/hour", address, None, name="api").status == 200
    assert admin.keys() == ["ip:api:unknown"]
    lines = [one.getMessage() for one in caplog.records if one.name == "redis_ratelimit"]
    assert len(lines) == 1
    assert "without a client address" in lines[0]


def test_length_of_ipv6_networks_is_an_option(send: Send, url: str, admin: redis.Redis) -> None:
    text = "[2001:db8:1:2:3::4]:443"
    assert send(url, "5/hour", text, None, name="a", ipv6_prefix=48).status == 200
    assert send(url, "5/hour", text, None, name="b").status == 200
    assert set(admin.keys()) == {"a:2001:db8:1::/48", "b:2001:db8:1:2::/64"}
    with pytest.raises(ValueError, match="ipv6_prefix"):
        send(url, "5/hour", text, None, ipv6_prefix=129)


def test_address_helpers_name_clients_alike() -> None:
    for case in table("addresses")["addresses"]:
        options = {"ipv6_prefix": case["ipv6_prefix"]} if "ipv6_prefix" in case else {}
        assert asgi.address({"client": (case["text"], 1)}, **options) == case["key"]
        assert wsgi.address({"REMOTE_ADDR": case["text"]}, **options) == case["key"]
    assert asgi.address({"client": None}) is None
    assert wsgi.address({}) is None


def limits_of_plan(caller: str | None) -> Any:
    plans: dict[str | None, Any] = {
        "free": "1/hour",
        "pro": TokenBucket(3, 3, "1h"),
        "own": [Fixed(2, "1h"), Fixed(9, "1d")],
        "staff": UNLIMITED,
    }
    return plans[caller]


def function_of_request(adapter: str, function: Any) -> Any:
    """Returns `function`, a function of X-Who, as a function of the adapter's request."""
    import flask  # noqa: PLC0415

    if adapter == "Flask":
        return lambda: function(flask.request.headers.get("X-Who"))
    if adapter == "WSGI":
        return lambda environ: function(environ.get("HTTP_X_WHO"))
    if adapter == "ASGI":
        return lambda scope: function(dict(scope["headers"])[b"x-who"].decode())
    return lambda request: function(request.headers.get("X-Who"))


def test_limit_is_a_function_of_the_request(send: Send, adapter: str, url: str) -> None:
    limit = function_of_request(adapter, limits_of_plan)
    key = function_of_request(adapter, lambda caller: caller)

    def allowed_count(caller: str) -> int:
        answers = [send(url, limit, "192.0.2.1", caller, key=key, name="api") for _ in range(5)]
        return sum(one.status == 200 for one in answers)

    assert [allowed_count(caller) for caller in ("free", "pro", "own", "staff")] == [1, 3, 2, 5]
    with pytest.raises(TypeError, match="needs a name"):
        send(url, limit, "192.0.2.1", "free", key=key)


def test_function_returns_limits_by_their_keys(send: Send, adapter: str, url: str) -> None:
    def limits_by_key(caller: str | None) -> Any:
        return {f"{{acme}}:user:{caller}": "2/hour", "{acme}:all": Fixed(3, "1h")}

    limit = function_of_request(adapter, limits_by_key)
    statuses = [
        send(url, limit, "192.0.2.1", caller).status for caller in ("a", "a", "a", "b", "b")
    ]
    assert statuses == [200, 200, 429, 200, 429]
    with pytest.raises(TypeError, match="text or bytes"):
        send(url, function_of_request(adapter, lambda _: {"": "2/hour"}), "192.0.2.1", "a")
    with pytest.raises(TypeError, match="need no key function"):
        send(url, limit, "192.0.2.1", "a", by_header=True)


def test_charge_of_a_failed_request_is_refunded(adapter: str, send: Send, url: str) -> None:
    if adapter == "FastAPI":
        pytest.skip("a dependency does not see the response")

    def failed(response: Any) -> bool:
        return bool(response.status_code >= 400)

    for limit in ("5/hour", Fixed(1000, "1h"), Fixed(10, "1h", cost=5), ["5/hour", "9/day"]):
        options = {"name": f"api-{limit}", "refund": failed}
        for status in (500, 404, 401):
            assert send(url, limit, "192.0.2.1", None, status, **options).status == status
        first = send(url, limit, "192.0.2.1", None, 200, **options)
        second = send(url, limit, "192.0.2.1", None, 200, **options)
        remaining = [int(one.headers["X-RateLimit-Remaining"]) for one in (first, second)]
        assert remaining[0] > remaining[1]
        limit_units = int(first.headers["X-RateLimit-Limit"])
        assert remaining[0] == limit_units - (5 if limit_units == 10 else 1)


@pytest.mark.parametrize("adapter", ["ASGI", "WSGI", "Django"])
def test_charge_of_a_request_that_raises_is_refunded(send: Send, url: str) -> None:
    def refund(response: Any) -> bool:
        return bool(response.status_code == 500)

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            send(url, "2/hour", "192.0.2.1", None, "error", refund=refund)
    assert send(url, "2/hour", "192.0.2.1", None, refund=refund).status == 200


def test_refund_needs_no_server(send: Send, adapter: str) -> None:
    """During an outage nothing is charged, so nothing is refunded."""
    if adapter == "FastAPI":
        pytest.skip("a dependency does not see the response")
    for limit in ("2/hour", "2000/hour"):
        for _ in range(4):
            answer = send("redis://127.0.0.1:1", limit, "192.0.2.1", None, 500, refund=bool)
            assert answer.status == 500


def denied_hook(adapter: str) -> Any:
    """Returns a hook that creates a response of the framework."""

    async def send_json(denial: Any, scope: Any, receive: Any, send: Any) -> None:
        from starlette.responses import JSONResponse  # noqa: PLC0415

        await JSONResponse({"slow": denial.status}, 420, denial.headers)(scope, receive, send)

    body = json.dumps({"slow": 429}).encode()
    if adapter == "ASGI":
        return lambda _, denial: lambda *arguments: send_json(denial, *arguments)
    if adapter == "WSGI":

        def app(_: Any, start_response: Any) -> list[bytes]:
            start_response("420 slow", [])
            return [body]

        return lambda *_: app
    if adapter == "Flask":
        return lambda denial: ({"slow": denial.status}, 420)
    if adapter == "Django":
        return lambda *_: HttpResponse(body, status=420)
    import fastapi  # noqa: PLC0415

    return lambda *_: fastapi.Response(body, 420)


def test_denied_hook_creates_the_response(send: Send, adapter: str, url: str) -> None:
    options = {"denied": denied_hook(adapter)}
    assert send(url, "1/hour", "192.0.2.1", None, **options).body.strip(b'"') == b"served"
    answer = send(url, "1/hour", "192.0.2.1", None, **options)
    assert answer.status == 420
    assert json.loads(answer.body) == {"slow": 429}


def test_denial_has_the_same_response_everywhere(send: Send, url: str) -> None:
    for _ in range(2):
        answer = send(url, "1/hour", "192.0.2.1", None, name="api")
    assert answer.status == 429
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["RateLimit-Policy"] == '"api";q=1;w=3600'
    assert answer.headers["Retry-After"] == "3600"
    assert json.loads(answer.body)["violated-policies"] == ["api"]


def test_second_name_is_rejected(url: str) -> None:
    with Limiter.from_url(url) as limiter:
        bound = limiter.limit("api", "1/hour")
        with pytest.raises(TypeError, match="bound already"):
            wsgi.RateLimitMiddleware(None, limit=bound, name="other")  # type: ignore[arg-type]
