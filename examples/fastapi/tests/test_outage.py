"""Outages of Redis under load."""

import logging
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from redis import Redis
from redis_ratelimit import TokenBucket
from serving import Serve
from traffic import ask, burst, get
from without_module import without_module

from support import poll
from support.binaries import Binary
from support.server import Server

# 100 in Redis, and 25 for one of four processes.
USER = {"user:{user}": TokenBucket(100, 1, "1h", name="user")}
# Large enough that the shared limit never denies.
PLENTY = TokenBucket(1_000_000, 1_000_000, name="global")

TOKENS = TokenBucket(10_000, 1, "1h", name="llm-tokens")

OUTAGE = {"limits": USER, "processes": 4, "global_limit": PLENTY}


BOB = {"X-Api-Key": "bob-key"}

MODULE_MISSING = (
    "the redis-ratelimit module is not loaded: "
    "start the server with --loadmodule /path/to/libredis_ratelimit.so policies yes"
)


def logged_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the log's lines as an unconfigured logger shows them."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "redis_ratelimit" and record.levelno >= logging.WARNING
    ]


def fill_key(key: str, redis: Redis) -> None:
    """Fills the key with 16 limits, the maximum: one more is an error."""
    for number in range(16):
        redis.execute_command("RL.FIXED", key, 1, "1h", "AS", f"own{number}")


def is_served_by_redis(url: str) -> bool:
    return get(url).headers.get("X-RateLimit-Limit") == "100"


def test_fail_open_applies_a_local_limit_until_redis_is_back(serve: Serve, server: Server) -> None:
    url = serve(**OUTAGE)
    assert burst([url], clients=5, requests=2) == {200: 10}
    assert get(url).headers["X-RateLimit-Remaining"] == "89"

    server.stop("kill")
    # Exactly the share of this process, regardless of the count in Redis.
    assert burst([url], clients=50, requests=2) == {200: 25, 429: 75}
    response = get(url)
    assert response.status_code == 429
    # Time of the next call to Redis, not of the next local unit.
    assert response.headers["Retry-After"] == "1"

    server.start()
    poll.until(lambda: is_served_by_redis(url), "Redis decides again", timeout=20)
    # The new Redis is empty: 100 units, less the unit of the request above.
    assert burst([url], clients=50, requests=3) == {200: 99, 429: 51}


def test_fail_closed_denies_every_request_until_redis_is_back(serve: Serve, server: Server) -> None:
    url = serve(fail_open=False, **OUTAGE)
    assert burst([url], clients=5, requests=2) == {200: 10}

    server.stop("kill")
    assert burst([url], clients=50, requests=2) == {503: 100}
    response = get(url)
    assert response.headers["Retry-After"] == "1"
    assert response.json()["type"].endswith("temporary-reduced-capacity")
    assert get(url, path="/health").status_code == 200

    server.start()
    poll.until(lambda: is_served_by_redis(url), "Redis decides again", timeout=20)


def test_no_request_fails_during_an_outage_under_load(serve: Serve, server: Server) -> None:
    """Each request gets 200 or 429, and exactly the limits pass."""
    url = serve(**OUTAGE)
    stop = Event()
    passed = 0

    def is_denied_with(limit: str | None) -> bool:
        nonlocal passed
        response = get(url)
        passed += response.status_code == 200
        limit_field = response.headers.get("X-RateLimit-Limit")
        return response.status_code == 429 and limit_field == limit

    with ThreadPoolExecutor(max_workers=1) as pool:
        traffic = pool.submit(burst, [url], clients=10, requests=5000, stop=stop)
        try:
            poll.until(lambda: is_denied_with("100"), "Redis denies", timeout=20)
            server.stop("kill")
            poll.until(lambda: is_denied_with(None), "the local limit denies", timeout=20)
            server.start()
            poll.until(lambda: is_denied_with("100"), "Redis denies again", timeout=20)
            assert not traffic.done()
        finally:
            stop.set()
        statuses = traffic.result()
    assert set(statuses) == {200, 429}
    # Limits of the first Redis, of this process, and of the second Redis.
    assert statuses[200] + passed == 100 + 25 + 100


def test_hanging_redis_opens_the_circuit(serve: Serve, server: Server) -> None:
    """A frozen server accepts connections and never replies. After a few timeouts, the circuit is
    open and no call is sent.
    """
    url = serve(**OUTAGE | {"timeout": 0.3, "pause": 3600.0})
    poll.until(lambda: is_served_by_redis(url), "Redis decides")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert burst([url], clients=10, requests=10) == {200: 25, 429: 75}
    finally:
        os.kill(server.pid, signal.SIGCONT)
    # The server replies again, but the pause is an hour.
    with server.client() as redis:
        redis.ping()
        redis.config_resetstat()
        assert burst([url], clients=10, requests=10) == {429: 100}
        assert "cmdstat_rl.mtake" not in redis.info("commandstats")


def test_after_the_pause_the_circuit_closes_again(serve: Serve, server: Server) -> None:
    url = serve(**OUTAGE | {"timeout": 0.3, "pause": 0.2})
    poll.until(lambda: is_served_by_redis(url), "Redis decides")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert burst([url], clients=10, requests=10) == {200: 25, 429: 75}
    finally:
        os.kill(server.pid, signal.SIGCONT)
    poll.until(lambda: is_served_by_redis(url), "Redis decides again", timeout=20)


def test_error_on_one_key_is_not_an_outage(serve: Serve, server: Server) -> None:
    url = serve(**OUTAGE)
    with server.client() as redis:
        fill_key("rl:{acme}:user:bob", redis)
    # A full key is not an outage.
    assert burst([url], clients=10, requests=10, headers=BOB) == {503: 100}
    assert is_served_by_redis(url)


def test_key_of_another_type_fails_only_its_requests(serve: Serve, server: Server) -> None:
    url = serve(**OUTAGE)
    with server.client() as redis:
        redis.set("rl:{acme}:user:bob", "no limiter")
    response = get(url, headers=BOB)
    assert (response.status_code, "RateLimit" in response.headers) == (500, False)
    assert is_served_by_redis(url)
    # In shadow mode, no request fails.
    assert get(serve(shadow=True, **OUTAGE), headers=BOB).status_code == 200


@pytest.mark.parametrize("fail_open", [True, False])
def test_begin_and_end_of_an_outage_are_logged_once(
    serve: Serve, server: Server, caplog: pytest.LogCaptureFixture, fail_open: bool
) -> None:
    url = serve(fail_open=fail_open, **OUTAGE | {"pause": 0.05})
    assert is_served_by_redis(url)
    server.stop("kill")
    # Enough requests that several calls are tried after pauses.
    failures = 0

    def has_failed() -> bool:
        nonlocal failures
        failures += burst([url], clients=10, requests=2).total()
        return failures >= 200

    poll.until(has_failed, "many requests have failed", timeout=30)
    assert len(logged_lines(caplog)) == 1
    server.start()
    poll.until(lambda: get(url) and len(logged_lines(caplog)) > 1, "the end is logged", timeout=20)
    assert burst([url], clients=10, requests=10).total() == 100
    begin_line, end_line = logged_lines(caplog)
    assert begin_line.startswith("Redis is away: ")
    assert end_line == "Redis is back"


def test_outage_is_logged_once_in_shadow_mode(
    serve: Serve, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(shadow=True, fail_open=False, **OUTAGE)
    server.stop("kill")
    assert burst([url], clients=10, requests=10) == {200: 100}
    assert len(logged_lines(caplog)) == 1


def test_repeated_error_is_logged_once(
    serve: Serve, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(**OUTAGE | {"pause": 3600.0})
    with server.client() as redis:
        fill_key("rl:{acme}:user:bob", redis)
    for _ in range(20):
        get(url, headers=BOB)
        assert is_served_by_redis(url)
    (line,) = logged_lines(caplog)
    assert line.startswith("Redis refuses a call for 'rl:{acme}:user:bob': the key has 16 limits")


def test_missing_module_is_logged_once_at_the_start(
    serve: Serve, plain_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(redis_url=f"redis://127.0.0.1:{plain_server.port}", **OUTAGE)
    (line,) = logged_lines(caplog)
    assert line == f"Redis refuses a call for 'redis-ratelimit:check': {MODULE_MISSING}"
    # A missing module is not an outage, so no request passes.
    assert [get(url).status_code for _ in range(10)] == [500] * 10
    assert logged_lines(caplog) == [line]


def test_restart_without_the_module_is_logged_once(
    serve: Serve, binary: Binary, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(binary) as server:
        url = serve(redis_url=f"redis://127.0.0.1:{server.port}", **OUTAGE | {"pause": 0.05})
        assert is_served_by_redis(url)
        server.stop("kill")
        get(url)
        without_module(server).start()

        def missing_lines() -> list[str]:
            return [line for line in logged_lines(caplog) if line.endswith(MODULE_MISSING)]

        poll.until(lambda: get(url) and missing_lines(), "the missing module is logged", timeout=20)
        for _ in range(10):
            assert get(url).status_code == 500
        assert len(missing_lines()) == 1


def test_redis_may_be_unavailable_at_the_start(
    serve: Serve, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.stop("kill")
    url = serve(**OUTAGE)
    assert burst([url], clients=10, requests=10) == {200: 25, 429: 75}
    server.start()
    poll.until(lambda: is_served_by_redis(url), "Redis decides", timeout=20)
    begin_line, end_line = logged_lines(caplog)
    assert begin_line.startswith("Redis is away: ")
    assert end_line == "Redis is back"


def test_local_decisions_show_no_remaining_units(serve: Serve, server: Server) -> None:
    """Responses without Redis show the policy but not the process's local share."""
    url = serve(**OUTAGE)
    policy = get(url).headers["RateLimit-Policy"]
    server.stop("kill")
    responses = [get(url) for _ in range(26)]
    assert [response.status_code for response in responses] == [200] * 25 + [429]
    for response in responses:
        assert not [name for name in response.headers if name.startswith("x-ratelimit")]
        assert "RateLimit" not in response.headers
        assert response.headers["RateLimit-Policy"] == policy


def test_a_cost_that_fits_the_limit_but_not_the_share_may_be_retried(
    serve: Serve, server: Server
) -> None:
    url = serve(**OUTAGE | {"limits": {}, "llm_limits": (TOKENS,)})
    server.stop("kill")
    response = ask(url, prompt="hi", max_tokens=5000)
    assert response.status_code == 429
    assert response.headers["Retry-After"] == "1"
